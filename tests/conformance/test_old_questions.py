"""Questions that stay open (F37): no limit but one that somebody chose; what is listed is what can still be answered."""

from __future__ import annotations

import pytest
from agents_for_tests import (
    Home,
    blocked,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    opened,
    seen,
    started,
    stored,
)
from eventually import eventually

import api_shim as agents
from broker.deadlines import expire
from broker.protocol.content import content_text
from workers import housekeeping

HOUR = 3600
WEEK = 7 * 24 * HOUR


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look at once."""
    monkeypatch.setattr(housekeeping, "LOOK_S", 0.05)


async def later(home: Home, seconds: float) -> None:
    """Let so much time have passed since the test began, and all that is due by then have happened."""
    await home.broker.commands.command("SET", f"{home.broker.keys.base(0)}clock", seconds * 1000)
    while (await expire(home.broker, 0)).wait == 0:
        pass


async def listed(turn: agents.Turn) -> list[str]:
    """The questions that a turn lists as open."""
    state = await turn.get()
    return [callback.id for callback in state.callbacks] if isinstance(state, agents.Blocked) else []


async def test_without_a_limit_a_question_waits_a_week_and_takes_its_answer(home: Home) -> None:
    turn = started(await (await (await home.asking()).start_session()).start_turn("hi"))
    question = await opened(turn)
    await later(home, WEEK)
    assert await listed(turn) == [question.id]

    assert isinstance(await turn.answer(question.id, agents.AllowApproval()), agents.Answered)

    done(await turn.result())
    (entry,) = entries_of(await stored(turn._session), agents.ToolResultEntry)
    assert (content_text(entry.content), entry.is_error) == ("3", False)


async def test_a_limit_of_an_hour_expires_a_question_which_is_no_denial(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_CALLBACK_TIMEOUT", str(HOUR))
    agent = await home.asking([call("add", a=1, b=2)], [call("add", a=3, b=4)])
    turn = started(await (await agent.start_session()).start_turn("hi"))
    first = await opened(turn)
    await later(home, HOUR - 60)
    assert await listed(turn) == [first.id]

    await later(home, HOUR + 1)

    (second,) = await eventually(
        lambda: listed(turn), "the next question is asked", until=lambda ids: ids not in ([], [first.id]), within=10
    )
    assert await turn.answer(first.id, agents.AllowApproval()) == agents.AlreadySettled()
    await turn.answer(second, agents.DenyApproval("no"))
    done(await turn.result())
    told = [content_text(entry.content) for entry in entries_of(await stored(turn._session), agents.ToolResultEntry)]
    assert "nobody answered in time" in told[0]
    assert told[1].endswith("a person denied it: no.")


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
async def test_ending_a_turn_that_is_parked_withdraws_what_it_asked(home: Home, how: str) -> None:
    agent = await home.asking([call("add", a=1, b=2), call("add", a=3, b=4)])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    first, second = blocked(await turn.result()).callbacks
    await turn.answer(first.id, agents.AllowApproval())
    await seen(session, "=result")
    assert await listed(turn) == [second.id]

    await (session.cancel() if how == "cancel" else turn.interrupt())

    assert await listed(turn) == []
    assert await turn.answer(second.id, agents.AllowApproval()) == agents.AlreadySettled()
    events = await stored(session)
    assert [event.callback_id for event in events if isinstance(event, agents.CallbackResolved)] == [
        first.id,
        second.id,
    ]
    results = entries_of(events, agents.ToolResultEntry)
    assert [content_text(entry.content) for entry in results if not entry.is_error] == ["3"]
