"""A support desk: refunds need a person, and the customer's screen is a tool of the client.

Three parties share one session: the customer's window follows it, an approver answers from elsewhere, the turn parks for both.

    python examples/support_desk.py

It prints, the three working side by side, in an order like this:

    [window] Which order is it?
    [customer] Your order number? A-17
    [window] One moment.
    [approver] Allow refund? {'order': 'A-17', 'euros': 40}: yes
    [window] 40 EUR are on their way to you.
    Completed
"""

from __future__ import annotations

import asyncio

import api_shim as agents


@agents.tool
def refund(order: str, euros: int) -> str:
    """Refund an order."""
    return f"{euros} EUR refunded for order {order}"


@agents.client_tool
def show_form(question: str) -> str:  # type: ignore[empty-body] # a stub: it runs at the client
    """Show the customer a form and return what they typed."""


desk = agents.Agent(
    name="support_desk",
    instructions="Help customers. Ask for the order number before you refund.",
    tools=[refund, show_form],
    permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.refund"], decision="ask")]),
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(
                text="Which order is it?",
                calls=[agents.ScriptedCall("client.show_form", {"question": "Your order number?"})],
            ),
            agents.ScriptedReply(
                text="One moment.", calls=[agents.ScriptedCall("client.refund", {"order": "A-17", "euros": 40})]
            ),
            agents.ScriptedReply(text="40 EUR are on their way to you.", delay=0.02),
        ]
    ),
)


@show_form.answer
def customer_types(question: str) -> str:
    print(f"[customer] {question} A-17")
    return "A-17"


async def window(session: agents.Session) -> None:
    """The customer's window: every reply."""
    async for event in session.iter_events():
        match event:
            case agents.EntryCompleted(entry=agents.MessageEntry(role="assistant") as reply):
                print("[window]", reply.text)
            case _:
                pass


async def approver(session_id: str) -> None:
    """Someone else, who knows only the session's id."""
    session = agents.session(session_id)
    async for event in session.iter_events():
        match event:
            case agents.CallbackOpened(agents.OpenApproval(request), turn_id=str(turn_id)):
                print(f"[approver] {event.callback.title} {request.arguments}: yes")
                await session.turn(turn_id).answer(event.callback.id, agents.AllowApproval())
            case _:
                pass


async def main() -> None:
    session = await desk.start_session(on_client_tool=agents.ClientToolAnswers(show_form))
    others = [asyncio.create_task(window(session)), asyncio.create_task(approver(session.id))]
    turn = await session.start_turn("My order never came, I want my money back.")
    assert isinstance(turn, agents.Turn)
    state = await turn.result()
    while isinstance(state, agents.Blocked):  # the approval is somebody else's: wait past it
        state = await turn.result(after=state)
    await session.cancel()
    await asyncio.gather(*others)  # readers end with the session
    print(type(state).__name__)


if __name__ == "__main__":
    asyncio.run(main())
