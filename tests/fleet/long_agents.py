"""An agent whose model reads many pages, one call after another: `read N` makes N calls."""

from __future__ import annotations

import api_shim as agents
from workers.models import ToolMessage, UserMessage
from workers.scripted import last_user_text

PAGE_BYTES = 5 * 1024


@agents.tool
async def page(n: int) -> str:
    """Return a page."""
    return f"{n:04} page " * (PAGE_BYTES // 10)


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Call for the next page until all are read; the answer says how much the request held."""
    last = max(at for at, message in enumerate(request.messages) if isinstance(message, UserMessage))
    read = sum(isinstance(message, ToolMessage) for message in request.messages[last:])
    if read < int(last_user_text(request).split()[1]):
        return agents.ScriptedReply(calls=[agents.ScriptedCall("client.page", {"n": read})])
    return agents.ScriptedReply(text=f"{len(request.messages)} messages")


reader = agents.Agent(name="reader", model=agents.ScriptedModel(script), tools=[page])
