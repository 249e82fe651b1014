"""One agent with everything: a tool server, a subagent, a hook, a policy and a client tool. Its turn parks three times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import api_shim as agents

SERVER = Path(__file__).parent.parent / "mcp_server.py"


@agents.tool
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@agents.client_tool
def read_clipboard() -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Read the user's clipboard."""


class Limit(agents.Hook):
    """Pays no more than 50, counts the calls that it saw, and keeps the count across workers."""

    name = "limit"

    class State(BaseModel):
        """What is kept."""

        calls: int = 0

    async def pre_tool_call(self, ctx: agents.HookContext[State], call: agents.HookCall) -> dict[str, Any] | None:
        """Count a call, and change one that pays too much."""
        ctx.state = self.State(calls=ctx.state.calls + 1)
        if call.name == "client.pay" and isinstance(call.arguments, dict):
            return {"amount": min(int(str(call.arguments["amount"])), 50)}
        return None


POLICY = agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.pay"], decision="ask")])

clerk = agents.Subagent(
    name="clerk",
    description="Pays.",
    tools=[pay],
    mcps=[],
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(calls=[agents.ScriptedCall("client.pay", {"amount": 70})]),
            agents.ScriptedReply(text="The clerk has paid."),
        ]
    ),
)

agent = agents.Agent(
    name="whole",
    instructions="Be careful.",
    tools=[pay, read_clipboard],
    hooks=[Limit()],
    permission_policy=POLICY,
    subagents=[clerk],
    mcps=[agents.MCPServer("calc", command=sys.executable, args=[str(SERVER), "stdio"])],
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(text="First, a sum.", calls=[agents.ScriptedCall("mcp.calc.add", {"a": 2, "b": 3})]),
            agents.ScriptedReply(text="Now to pay.", calls=[agents.ScriptedCall("client.pay", {"amount": 100})]),
            agents.ScriptedReply(calls=[agents.ScriptedCall("client.read_clipboard", {})]),
            agents.ScriptedReply(calls=[agents.ScriptedCall("agents.spawn", {"agent": "clerk", "task": "Pay 70."})]),
            agents.ScriptedReply(text="All is done."),
        ]
    ),
)


def answer_to(callback: agents.OpenCallback) -> object:
    """Allow what is asked, and read the clipboard."""
    return "a number" if isinstance(callback, agents.OpenClientToolCall) else agents.AllowApproval()
