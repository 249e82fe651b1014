"""The whole agent once more, for workers that are killed: what its tools did stands in a ledger, a line for each time.

Its tool server is a small program without the library, so that many workers can start one each.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

import api_shim as agents

SERVER: Final = Path(__file__).parent.parent / "workers" / "odd_server.py"
CALLS: Final = 5
"""How many calls the root's model makes."""


class Counting(agents.Hook):
    """Pays no more than 50, and counts the calls that it saw."""

    name = "counting"

    class State(BaseModel):
        """What is kept."""

        calls: int = 0

    async def pre_tool_call(self, ctx: agents.HookContext[State], call: agents.HookCall) -> dict[str, Any] | None:
        """Count a call, and change one that pays too much."""
        ctx.state = self.State(calls=ctx.state.calls + 1)
        if call.name == "client.pay" and isinstance(call.arguments, dict):
            return {"amount": min(int(str(call.arguments["amount"])), 50)}
        return None


def whole(name: str, folder: Path, *, stands: bool = False) -> agents.Agent:
    """An agent of this name with its ledger in a folder. `stands`: whoever pays waits until its process is killed."""
    ledger = folder / name

    def note(line: str) -> None:
        with ledger.open("a") as file:
            file.write(line + "\n")

    @agents.tool
    async def pay(amount: int) -> str:
        """Pay an amount: once, or not at all."""
        note(f"pay {amount}")
        if stands:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.05)
        return f"paid {amount}"

    @agents.tool(retry_safe=True)
    async def look_up() -> str:
        """Look something up, as often as need be."""
        note("look_up")
        return "found"

    @agents.client_tool
    def read_clipboard() -> str:  # type: ignore[empty-body] # a stub: the client answers
        """Read the user's clipboard."""

    def reply(text: str, *calls: tuple[str, dict[str, Any]]) -> agents.ScriptedReply:
        return agents.ScriptedReply(text=text, calls=[agents.ScriptedCall(*call) for call in calls])

    clerk = agents.Subagent(
        name="clerk",
        description="Pays.",
        tools=[pay],
        mcps=[],
        model=agents.ScriptedModel([reply("", ("client.pay", {"amount": 40})), reply("The clerk has paid.")]),
    )
    return agents.Agent(
        name=name,
        instructions="Be careful.",
        tools=[pay, look_up, read_clipboard],
        hooks=[Counting()],
        permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.pay"], decision="ask")]),
        subagents=[clerk],
        mcps=[agents.MCPServer("odd", command=sys.executable, args=["-SE", str(SERVER), b"heard".hex(), "1"])],
        model=agents.ScriptedModel(
            [
                reply("First, a look.", ("mcp.odd.say", {}), ("client.look_up", {})),
                reply("Now to pay.", ("client.pay", {"amount": 100})),
                reply("", ("client.read_clipboard", {})),
                reply("", ("agents.spawn", {"agent": "clerk", "task": "Pay 40."})),
            ],
            otherwise=reply("All is done."),
        ),
    )
