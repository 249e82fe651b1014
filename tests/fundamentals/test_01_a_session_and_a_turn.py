"""1. A session and a turn.

A session is a conversation with an agent. A turn is one piece of work in it: it begins with a message, and it ends with a record
that says how. Handles of both are only ids: what they name lives in the broker.
"""

from __future__ import annotations

import pytest
from homes import Home
from pydantic import BaseModel

import api_shim as agents

GREETING = agents.ScriptedModel([agents.ScriptedReply(text="Hello, Ada."), agents.ScriptedReply(text="Still here.")])


async def test_a_turn_begins_with_a_message_and_ends_with_a_record(home: Home) -> None:
    """`run` sends a message, waits, and returns the record. `output` is the model's last text."""
    agent = await home.agent(GREETING)
    session = await agent.start_session()
    state = await session.run("I am Ada.")

    assert isinstance(state, agents.Completed)
    assert state.output == state.text == "Hello, Ada."


async def test_a_session_remembers_its_turns(home: Home) -> None:
    """The second turn's model call reads the first turn too; the history is the session's, not the turn's."""
    agent = await home.agent(GREETING)
    session = await agent.start_session(title="A talk")
    await session.run("I am Ada.")
    await session.run("Are you there?")

    said = [entry.text async for entry in session.history() if isinstance(entry, agents.MessageEntry)]
    assert said == ["I am Ada.", "Hello, Ada.", "Are you there?", "Still here."]
    assert len(await session.turns()) == 2
    assert (await session.info()).title == "A talk"


async def test_an_id_is_all_that_is_needed_to_come_back(home: Home) -> None:
    """A handle made from an id sends nothing, equals the first one, and finds the same record."""
    agent = await home.agent(GREETING)
    session = await agent.start_session()
    turn = await session.send_message("I am Ada.")
    state = await turn.result()
    again = agent.session(session.id)

    assert again == session
    assert again.turn(turn.id) == turn
    found = await again.turn(turn.id).get()
    assert isinstance(found, agents.Completed)
    assert (found.turn_id, found.text) == (state.turn_id, "Hello, Ada.")


async def test_a_turn_that_fails_says_why_and_the_session_goes_on(home: Home) -> None:
    """How a turn ended is a value to match on, never an exception."""
    away = agents.ScriptedReply(error=agents.ModelError("the model is away", code="model_unavailable"))
    agent = await home.agent(agents.ScriptedModel([away]))
    session = await agent.start_session()

    match await session.run("Hello?"):
        case agents.Failed(error):
            assert error.code == "model_unavailable"
        case other:
            pytest.fail(f"the turn did not fail: {other}")
    assert (await session.info()).status == "waiting"


async def test_an_output_type_makes_an_object_of_the_text_or_says_that_it_does_not_fit(home: Home) -> None:
    class City(BaseModel):
        name: str
        people: int

    replies = [agents.ScriptedReply(text='{"name": "Bern", "people": 134000}'), agents.ScriptedReply(text="Bern")]
    session = await (await home.agent(agents.ScriptedModel(replies), output_type=City)).start_session()
    first, second = await session.run("Which?"), await session.run("And again?")

    assert isinstance(first, agents.Completed)
    assert isinstance(second, agents.Completed)
    assert first.output == City(name="Bern", people=134_000)
    assert isinstance(second.output, agents.InvalidOutput)


async def test_a_session_ends_once_and_stays_readable(home: Home) -> None:
    """An ended session takes no further message, and what was said can still be read."""
    agent = await home.agent(GREETING)
    session = await agent.start_session()
    await session.run("I am Ada.")
    await session.cancel()

    with pytest.raises(agents.SessionTerminatedError):
        await session.send_message("One more thing.")
    assert len([entry async for entry in session.history()]) == 2
