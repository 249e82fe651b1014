"""Dead letters, as a program sees them: listed, and given another chance."""

from __future__ import annotations

import pytest
from agents_for_tests import Gate, Home, StepModel, done, home_fixture, started  # noqa: F401 - pytest finds the fixture here

import api_shim as agents


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks for lapsed leases each fifth of one."""
    monkeypatch.setenv("TURNSTREAM_LEASE", "2")


async def lose_every_worker(home: Home, session: agents.Session) -> None:
    """Let the lease of the session's turn lapse, as after the crash of the last worker that it may have."""
    broker = home.broker
    info = await session.info()
    key = f"{broker.keys.queue(0, info.agent_name)}:running"
    (job,) = await broker.commands.command("ZRANGE", key, 0, -1)
    await broker.commands.command(
        "HSET", broker.keys.of("session", session.id), "attempts", broker.settings.max_attempts
    )
    await broker.commands.command("ZADD", key, 1, job)


async def test_a_dead_letter_is_listed_and_retried_once(home: Home) -> None:
    gate = Gate()
    agent = await home.agent(StepModel(["half", gate], ["whole"]))
    session = await agent.start_session()
    turn = started(await session.start_turn("Pay 100."))
    await gate.reached.wait()
    await lose_every_worker(home, session)
    state = await turn.result(timeout=10)
    gate.open.set()
    assert isinstance(state, agents.Failed)
    attempts = home.broker.settings.max_attempts
    assert (state.error.code, state.error.details, state.text) == ("worker_lost", {"attempts": attempts}, "half")

    (letter,) = [each async for each in agents.list_dead_letters(host=home.url)]
    assert (letter.session_id, letter.turn_id, letter.preview) == (session.id, turn.id, "Pay 100.")
    assert [each async for each in agents.list_dead_letters(limit=0)] == []
    new = await session.turn(letter.turn_id).retry()

    assert isinstance(new, agents.Turn)
    assert new.started
    assert done(await new.result(timeout=10)).text == "whole"
    assert await session.turn(letter.turn_id).retry() == new
    assert [each async for each in agents.list_dead_letters()] == []
    assert await session.turns() == [turn, new]


async def test_a_retry_beside_an_active_turn_is_busy_and_of_no_dead_letter_an_error(home: Home) -> None:
    gates = Gate(), Gate()
    agent = await home.agent(StepModel(["half", gates[0]], ["wait", gates[1]]))
    session = await agent.start_session()
    turn = started(await session.start_turn("Pay 100."))
    await gates[0].reached.wait()
    await lose_every_worker(home, session)
    await turn.result(timeout=10)
    gates[0].open.set()
    active = started(await session.start_turn("Something else."))

    busy = await turn.retry()

    assert busy == agents.Busy(active)
    with pytest.raises(agents.TurnNotFoundError, match="not in the dead letters"):
        await active.retry()
    gates[1].open.set()
    done(await active.result(timeout=10))
    with pytest.raises(agents.TurnNotFoundError, match="not in the dead letters"):
        await active.retry()
    await session.cancel()
    with pytest.raises(agents.SessionTerminatedError):
        await turn.retry()
    letters = [each async for each in agents.list_dead_letters()]
    assert [letter.turn_id for letter in letters] == [turn.id]
