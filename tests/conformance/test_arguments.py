"""A wrong argument is refused by its name, before anything has changed; what a caller's function raises reaches the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agents_for_tests import Home, StepModel, add, call, home_fixture  # noqa: F401 - pytest finds the fixture `home` here

import api_shim as agents
from api_shim.arguments import TITLE_LIMIT

ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

Use = Callable[[Any], Any]
"""A use of a session that a type checker would refuse: hence Any."""

REFUSED: dict[str, tuple[Use, type[Exception], str]] = {
    "run timeout text": (lambda s: s.run("x", timeout="x"), TypeError, "timeout"),
    "run timeout nan": (lambda s: s.run("x", timeout=float("nan")), ValueError, "timeout"),
    "run on_event": (lambda s: s.run("x", on_event=5), TypeError, "on_event"),
    "key number": (lambda s: s.send_message("x", idempotency_key=5), TypeError, "idempotency_key"),
    "key half": (lambda s: s.send_message("x", idempotency_key="\ud800"), ValueError, "idempotency_key"),
    "key empty": (lambda s: s.start_turn("x", idempotency_key=""), ValueError, "idempotency_key"),
    "title long": (lambda s: s.rename("t" * (TITLE_LIMIT + 1)), ValueError, "title"),
    "title number": (lambda s: s.rename(5), TypeError, "title"),
    "after number": (lambda s: anext(s.iter_events(after=5)), TypeError, "after"),
    "after bytes": (lambda s: anext(s.iter_events(after=b"x")), TypeError, "after"),
    "history limit": (lambda s: anext(s.history(limit=-1)), ValueError, "limit"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_wrong_argument_is_named_and_no_turn_starts(name: str, home: Home) -> None:
    use, error, said = REFUSED[name]
    session = await (await home.agent(StepModel())).start_session()

    with pytest.raises(error, match=said):
        await use(session)

    assert await session.turns() == []


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"title": 5}, TypeError, "title"),
        ({"title": "t" * (TITLE_LIMIT + 1)}, ValueError, "title"),
        ({"session_inputs": 5}, TypeError, "session_inputs"),
        ({"session_inputs": {5: 1}}, TypeError, "session_inputs: an input id"),
        ({"session_inputs": {"a": ENDLESS}}, ValueError, r"session_inputs\['a'\]: nested too deeply"),
        ({"history": 0}, TypeError, "history must be"),
        ({"history": ""}, TypeError, "history must be"),
        (
            {"history": [{"type": "tool_call", "name": "x", "toolCallId": "c", "arguments": ENDLESS}]},
            ValueError,
            r"history\[0\]",
        ),
        ({"agent": 5}, TypeError, "agent must be"),
        ({"agent": {"colour": "red"}}, ValueError, "agent.colour"),
        ({"agent": {"reasoningEffort": 5}}, TypeError, "agent.reasoning_effort"),
        ({"on_approval": 5}, TypeError, "on_approval"),
        ({"idempotency_key": ""}, ValueError, "idempotency_key"),
        ({"agent": {"model": "nope:x"}}, agents.SdkError, "nope:x"),
    ],
)
async def test_a_session_is_not_opened_with_a_wrong_option(
    options: dict[str, Any], error: type[Exception], said: str, home: Home
) -> None:
    agent = await home.agent(StepModel())

    with pytest.raises(error, match=said):
        await agent.start_session(**options)

    assert [info async for info in agents.list_sessions()] == []


@pytest.mark.parametrize("name", ["", "a b", 'x"y', "é", "n" * 65])
def test_a_name_that_no_agent_can_have_is_refused_where_a_handle_is_made(name: str) -> None:
    """It would stand in keys and records."""
    for options in ({"agent_name": name}, {"agent_id": name}):
        with pytest.raises(ValueError, match="name"):
            agents.Agent.load_from(**options)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"scope": "foo"}, ValueError, "scope"),
        ({"status": "foo"}, ValueError, "status"),
        ({"limit": -1}, ValueError, "limit"),
        ({"limit": "x"}, TypeError, "limit"),
    ],
)
async def test_a_listing_says_what_it_cannot_do(
    options: dict[str, Any], error: type[Exception], said: str, home: Home
) -> None:
    await home.agent(StepModel())

    with pytest.raises(error, match=said):
        await anext(agents.list_sessions(**options))


async def test_a_turn_id_that_is_no_text_of_ours_is_a_turn_that_is_not_there(home: Home) -> None:
    turn = (await (await home.agent(StepModel())).start_session()).turn("\ud800")

    with pytest.raises(agents.TurnNotFoundError):
        await turn.get()
    assert await turn.interrupt() == await turn.steer("x") == agents.TurnConflict(None)


@pytest.mark.parametrize("error", [StopAsyncIteration, asyncio.CancelledError, ZeroDivisionError])
async def test_what_a_caller_s_function_raises_leaves_the_wait(error: type[BaseException], home: Home) -> None:
    """Also the exceptions that a wait's own machinery knows; the turn goes on and its callback stays open."""

    def fail(*_: object) -> None:
        raise error

    agent = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], permission_mode="ask")
    session = await agent.start_session()
    async with asyncio.timeout(10):
        with pytest.raises(error):
            await session.run("x", on_event=fail)
        (turn,) = await session.turns()
        blocked = await turn.result()
        assert isinstance(blocked, agents.Blocked)
        with pytest.raises(error):
            await agent.session(session.id, on_approval=fail).turn(turn.id).result()
    assert isinstance(await turn.get(), agents.Blocked)
