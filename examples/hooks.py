"""Hooks: your own code at six points of a turn. Here: around tool calls, with a state that the session keeps.

    python examples/hooks.py

It prints:

    [treasurer] Allow pay? over 100 EUR {'to': 'Bob', 'euros': 400} - yes
    turn 1: paid 80 EUR to Ann by card [hidden]
    turn 1: paid 400 EUR to Bob by card [hidden]
    turn 2: client.pay was not run: a hook skipped it: the budget of 500 EUR is used up.
    the budget's state: {'state': {'spent': 480}}
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from pydantic import BaseModel

import api_shim as agents


@agents.tool
def pay(to: str, euros: int) -> str:
    """Pay somebody."""
    return f"paid {euros} EUR to {to} by card 4929-1177"


class Budget(agents.Hook):
    """Whole euros, a question above 100, nothing above 500 in a session, and no card numbers for the model."""

    class State(BaseModel):
        spent: int = 0

    async def pre_tool_call(self, ctx: agents.HookContext[State], call: agents.HookCall) -> Any:
        assert isinstance(call.arguments, dict)  # a model may write any JSON
        wanted = call.arguments
        euros = int(float(wanted["euros"]))
        if ctx.state.spent + euros > 500:
            return agents.skip("the budget of 500 EUR is used up")
        ctx.state.spent += euros  # kept with this step, across turns and workers
        if euros > 100:
            return agents.request_approval("over 100 EUR")
        return {**wanted, "euros": euros}  # what the tool gets, and the log shows

    async def post_tool_call(
        self, ctx: agents.HookContext[State], call: agents.HookCall, result: agents.ToolResult
    ) -> Any:
        return re.sub(r"\d{4}-\d{4}", "[hidden]", result.text)


def pays(to: str, euros: float) -> agents.ScriptedCall:
    return agents.ScriptedCall("client.pay", {"to": to, "euros": euros})


payer = agents.Agent(
    name="hooked_payer",
    tools=[pay],
    hooks=[Budget()],
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(calls=[pays("Ann", 80.4), pays("Bob", 400)]),
            agents.ScriptedReply(text="Both are paid."),
            agents.ScriptedReply(calls=[pays("Carl", 30)]),
            agents.ScriptedReply(text="Carl must wait."),
        ]
    ),
)


def treasurer(ctx: agents.HandlerContext, request: agents.ApprovalRequest) -> agents.AllowApproval:
    print(f"[treasurer] {ctx.title} {request.arguments} - yes")
    return agents.AllowApproval()


async def main() -> None:
    session = await payer.start_session(on_approval=treasurer)
    for number, task in enumerate(["Pay Ann and Bob.", "Pay Carl."], 1):
        turn = await session.send_message(task)
        await turn.result()
        async for entry in session.history():
            if isinstance(entry, agents.ToolResultEntry) and entry.turn_id == turn.id:
                print(f"turn {number}: {entry.text}")
    kept = [entry.raw async for entry in session.history() if isinstance(entry, agents.UnknownEntry)]
    print("the budget's state:", kept[-1]["details"])
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
