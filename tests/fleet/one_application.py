"""One application: `python one_application.py`. Where its turns run is the environment's to say, not this file's."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

import api_shim as agents


class Order(BaseModel):
    """What the agent answers."""

    item: str
    price: int


@agents.tool
async def price_of(item: str) -> int:
    """Tell what an item costs."""
    return 10 * len(item)


@agents.tool
def buy(item: str, price: int) -> str:
    """Buy an item."""
    return f"bought {item} for {price}"


@agents.client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: `answer_color` answers
    """Ask the person for a color."""


@ask_color.answer
def answer_color(of: str) -> str:
    """Answer at the client."""
    print(f"client: a color of {of}?", flush=True)
    return "red"


class Cap(agents.Hook):
    """Pays no more than 30."""

    async def pre_tool_call(self, _ctx: Any, call: agents.HookCall) -> Any:
        """Change what is too much."""
        if call.name == "client.buy" and isinstance(call.arguments, dict):
            return {**call.arguments, "price": min(int(call.arguments["price"]), 30)}
        return None


Reply, Call = agents.ScriptedReply, agents.ScriptedCall

shop = agents.Agent(
    name="shop",
    tools=[price_of, buy, ask_color],
    permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.buy"], decision="ask")]),
    hooks=[Cap()],
    output_type=Order,
    subagents=[
        agents.Subagent(
            name="scout",
            description="Looks around.",
            tools=[price_of],
            model=agents.ScriptedModel(
                [Reply(calls=[Call("client.price_of", {"item": "hat"})]), Reply(text="A hat is 30.")]
            ),
        )
    ],
    model=agents.ScriptedModel(
        [
            Reply(text="Prices first.", calls=[Call("client.price_of", {"item": "boots"})]),
            Reply(calls=[Call("client.ask_color", {"of": "boots"})]),
            Reply(calls=[Call("agents.spawn", {"agent": "scout", "task": "Look."})]),
            Reply(text="To buy.", calls=[Call("client.buy", {"item": "red boots", "price": 50})]),
            Reply(text='{"item": "red boots", "price": 30}'),
        ]
    ),
)


def allow(_ctx: object, request: agents.ApprovalRequest) -> agents.AllowApproval:
    """Allow what is asked, and say so."""
    print(f"approval: {request.tool.id} {request.arguments}", flush=True)
    return agents.AllowApproval()


def tell(event: agents.Event) -> None:
    """Print what the turn did."""
    match event:
        case agents.EntryCompleted(agents.ToolResultEntry() as entry):
            said = "".join(getattr(block, "text", "") for block in entry.content)
            print(f"result: {entry.name} -> {said}", flush=True)
        case agents.EntryCompleted(agents.MessageEntry() as entry):
            print(f"{entry.role}: {entry.text}", flush=True)
        case agents.TurnEnded(state):
            print("ended:", type(state).__name__, flush=True)
        case _:
            pass


async def main() -> None:
    """Run two turns of one session."""
    session = await shop.start_session(title="boots", on_approval=allow)
    state = await session.run("Buy boots.", on_event=tell)
    assert isinstance(state, agents.Completed)
    print("output:", state.output, [call.name for call in state.tool_calls], flush=True)
    again = await session.run("And now?", output_type=Order, on_event=tell)
    assert isinstance(again, agents.Completed)
    print("output:", type(again.output).__name__, flush=True)
    print("history:", [type(entry).__name__ async for entry in session.history()], flush=True)


if __name__ == "__main__":
    asyncio.run(main())
