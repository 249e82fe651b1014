"""Steering: messages to a turn that is under way, a start that is refused meanwhile, and stopping a turn.

    python examples/steering.py

It prints:

    one message more: joins the turn
    another start: Busy
    Rome, in two sentences, not too dry
    a steer that came too late: TurnConflict
    the next turn: interrupted
    the one after it: Bern
"""

from __future__ import annotations

import asyncio

import api_shim as agents


@agents.tool
def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city} is a city."


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Look up the city that was asked for last, and write about it as the messages since then want it."""
    last = max(at for at, message in enumerate(request.messages) if text_of(message).startswith("Write"))
    city = text_of(request.messages[last]).split()[-1]
    since = request.messages[last + 1 :]
    if not any(isinstance(message, agents.ToolMessage) for message in since):
        return agents.ScriptedReply(calls=[agents.ScriptedCall("client.look_up", {"city": city})])
    return agents.ScriptedReply(text=", ".join([city, *filter(None, map(text_of, since))]))


def text_of(message: agents.ModelMessage) -> str:
    return message.text if isinstance(message, agents.UserMessage) else ""


journalist = agents.Agent(
    name="journalist",
    tools=[look_up],
    permission_mode="ask",  # so that its turns wait, as long as this program likes
    model=agents.ScriptedModel(script),
)


async def asked(session: agents.Session, text: str) -> tuple[agents.Turn, agents.Blocked]:
    """Start a turn, and wait until it has its question."""
    turn = await session.start_turn(text)
    assert isinstance(turn, agents.Turn)
    state = await turn.result()
    assert isinstance(state, agents.Blocked)
    return turn, state


async def main() -> None:
    session = await journalist.start_session()
    turn, state = await asked(session, "Write about Rome")
    joined = await session.send_message("in two sentences")  # joins the active turn, or starts one if none is
    print("one message more:", "starts a turn" if joined.started else "joins the turn")
    print("another start:", type(await session.start_turn("Write about Oslo")).__name__)  # nothing was added
    await turn.steer("not too dry")  # as send_message, but for this turn only
    await turn.answer(state.callbacks[0].id, agents.AllowApproval())
    print((await turn.result(after=state)).text)
    print("a steer that came too late:", type(await turn.steer("in verse")).__name__)

    turn, state = await asked(session, "Write about Atlantis")
    await turn.interrupt()  # wherever it runs; its questions are closed, the session stays open
    match await turn.result():
        case agents.Interrupted(cause):
            print("the next turn:", cause)
    turn, state = await asked(session, "Write about Bern")
    await turn.answer(state.callbacks[0].id, agents.AllowApproval())
    print("the one after it:", (await turn.result(after=state)).text)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
