"""5. Sends, steering, interrupts.

A session has at most one active turn, running or parked. A message joins it or is refused, as the sender wishes; an interrupt
ends it. A send with a key of the sender's is applied once, however often it is sent.
"""

from __future__ import annotations

import pytest
from homes import Home

import api_shim as agents


@agents.tool
def look_up(city: str) -> str:
    """Look a city up."""
    return f"{city} is a city"


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Call the tool first, and end with all that people said."""
    if not any(isinstance(message, agents.ToolMessage) for message in request.messages):
        return agents.ScriptedReply(calls=[agents.ScriptedCall("client.look_up", {"city": "Rome"})])
    said = [message.text for message in request.messages if isinstance(message, agents.UserMessage)]
    return agents.ScriptedReply(text=", ".join(said))


async def parked(home: Home) -> tuple[agents.Session, agents.Turn, agents.Blocked]:
    """A turn that waits for an approval: active, for as long as the test likes."""
    agent = await home.agent(agents.ScriptedModel(script), tools=[look_up], permission_mode="ask")
    session = await agent.start_session()
    turn = await session.send_message("Write about Rome")
    state = await turn.result()
    assert isinstance(state, agents.Blocked)
    return session, turn, state


async def test_a_message_joins_the_active_turn_and_the_model_reads_it(home: Home) -> None:
    """`started` tells the sender which it was; the message is read at the turn's next model call."""
    session, turn, state = await parked(home)
    joined = await session.send_message("in two sentences")
    steered = await turn.steer("not too dry")
    await turn.answer(state.callbacks[0].id, agents.AllowApproval())

    assert (turn.started, joined.started) == (True, False)
    assert joined == steered == turn
    assert (await turn.result(after=state)).text == "Write about Rome, in two sentences, not too dry"


async def test_a_start_is_refused_while_a_turn_is_active_and_leaves_nothing_behind(home: Home) -> None:
    session, turn, _ = await parked(home)
    refused = await session.start_turn("Write about Oslo")

    assert isinstance(refused, agents.Busy)
    assert refused.turn == turn
    assert "Write about Oslo" not in [e.text async for e in session.history() if isinstance(e, agents.MessageEntry)]


async def test_an_interrupt_ends_the_turn_and_keeps_the_session(home: Home) -> None:
    """Its questions are closed, its calls have results, and the next turn's model reads that they did not run."""
    session, turn, state = await parked(home)
    await turn.interrupt()
    ended = await turn.result()
    assert isinstance(ended, agents.Interrupted)
    assert ended.cause == "interrupted"
    assert isinstance(await turn.answer(state.callbacks[0].id, agents.AllowApproval()), agents.AlreadySettled)

    following = await session.run("And now?")
    assert isinstance(following, agents.Completed)
    assert following.text == "Write about Rome, And now?"


async def test_what_comes_for_a_turn_that_has_ended_is_a_conflict(home: Home) -> None:
    """`steer` and `interrupt` mean this turn and no other: they never hit the next one."""
    session, turn, _ = await parked(home)
    await turn.interrupt()
    await turn.result()

    assert await turn.steer("too late") == agents.TurnConflict(active_turn_id=None)
    assert await turn.interrupt() == agents.TurnConflict(active_turn_id=None)
    assert (await session.info()).status == "waiting"


async def test_a_send_with_a_key_is_applied_once(home: Home) -> None:
    """A sender that does not know whether its message came sends it again; the same key with other words is refused."""
    session = await (await home.agent("scripted:echo")).start_session()
    first = await session.send_message("Order A-17 was paid.", idempotency_key="event-1")
    await first.result()
    again = await session.send_message("Order A-17 was paid.", idempotency_key="event-1")

    assert again == first
    assert len(await session.turns()) == 1
    with pytest.raises(agents.SessionIdempotencyConflictError):
        await session.send_message("Order A-18 was paid.", idempotency_key="event-1")
