"""An agent whose turns can end the process that runs them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import api_shim as agents
from workers.scripted import last_user_text

EXIT = 9


@agents.tool(retry_safe=True)
async def explode() -> str:
    """End the process, as a segmentation fault in a library does."""
    os._exit(EXIT)


class Deadly:
    """`crash model` ends the process while the model is asked, `crash tool` has a tool do it; all else takes a while."""

    async def stream(self, request: agents.ModelRequest) -> AsyncIterator[agents.ModelDelta]:
        """Yield the reply."""
        asked = last_user_text(request)
        yield agents.ModelText("Let me see. ")
        await asyncio.sleep(0.2)
        if asked == "crash model":
            os._exit(EXIT)
        if asked == "crash tool":
            yield agents.ModelToolCall("call_1", "client.explode", {})
            yield agents.ModelStop("tool_calls")
            return
        await asyncio.sleep(0.2)
        yield agents.ModelText("Done.")
        yield agents.ModelStop("end")


clerk = agents.Agent(name="clerk", model=Deadly(), tools=[explode], permission_mode="auto")
