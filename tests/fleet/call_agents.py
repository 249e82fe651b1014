"""An agent that makes the calls that a message names, each of another kind; and a model that keeps what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from fleet_agents import count

import api_shim as agents
from workers.models import AssistantMessage, ModelDelta, ModelStop, ModelText, ModelToolCall, ToolMessage
from workers.scripted import last_user_text

CALLS: Final = {
    "run": "client.work",
    "again": "client.work_again",
    "asked": "client.pay",
    "client": "client.color",
    "spawn": "agents.spawn",
}


class Caller:
    """Makes the calls that the first message names, all at once, then says "done"."""

    def __init__(self) -> None:
        self.requests: list[agents.ModelRequest] = []

    async def stream(self, request: agents.ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the reply that is due."""
        self.requests.append(request)
        if any(isinstance(message, AssistantMessage) and message.calls for message in request.messages):
            yield ModelText("done")
        else:
            key, _, kinds = last_user_text(request).partition(" ")
            yield ModelText("let me see")
            for kind in (word for word in kinds.split() if word in CALLS):
                arguments = {"agent": "helper", "task": "help"} if kind == "spawn" else {"key": f"{key}.{kind}"}
                yield ModelToolCall(kind, CALLS[kind], arguments)
        yield ModelStop()


class Helper:
    """A subagent's model, which calls a tool first."""

    async def stream(self, request: agents.ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the reply that is due."""
        if isinstance(request.messages[-1], ToolMessage):
            yield ModelText("helped")
        else:
            yield ModelToolCall("below", "client.work_again", {"key": "below"})
        yield ModelStop()


class Looks(agents.Hook):
    """Looks at each call, and decides nothing."""

    async def pre_tool_call(self, ctx: Any, call: Any) -> None:
        """Look."""

    async def post_tool_call(self, ctx: Any, call: Any, result: Any) -> None:
        """Look."""


@agents.tool
async def work(key: str) -> str:
    """Have an effect."""
    await count(key)
    return "worked"


@agents.tool(retry_safe=True)
async def work_again(key: str) -> str:
    """Have an effect that may come twice."""
    await count(key)
    return "worked"


@agents.tool
async def pay(key: str) -> str:
    """Have an effect that a person allows first."""
    await count(key)
    return "paid"


@agents.client_tool
def color(key: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the client."""


def caller(model: Any = None) -> agents.Agent:
    """Return the agent."""
    return agents.Agent(
        name="caller",
        model=model or Caller(),
        tools=[work, work_again, pay, color],
        permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.pay"], decision="ask")]),
        subagents=[agents.Subagent(name="helper", description="helps", model=Helper())],
        hooks=[Looks()],
    )
