"""A broker that is away: every call says so with one of our errors, and a send says whether it may have arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agents_for_tests import Home, StepModel, done, started
from real_server import RealServer, serving

import api_shim as agents

UNKNOWN = "00000000-0000-4000-8000-000000000000"
ALLOW = agents.AllowApproval()


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Home, RealServer]]:
    """Serve a server that the test may stop, with short budgets."""
    monkeypatch.setenv("TURNSTREAM_PREFIX", "away:")
    for setting in ("COMMAND_BUDGET", "RECONNECT_BUDGET", "SOCKET_TIMEOUT"):
        monkeypatch.setenv(f"TURNSTREAM_{setting}", "0.3")
    with serving(tmp_path) as server:
        agents.connect(server.url)
        home = Home(server.url)
        try:
            yield home, server
        finally:
            await home.stop_workers()
            await home.place.close()
            agents.connect(None)


Use = Callable[[agents.Session, agents.Turn], Awaitable[Any]]


def first(events: AsyncIterator[Any]) -> Awaitable[Any]:
    return anext(aiter(events))


USES: dict[str, Use] = {
    "info": lambda session, _: session.info(),
    "turns": lambda session, _: session.turns(),
    "history": lambda session, _: first(session.history()),
    "subagents": lambda session, _: session.subagents(),
    "rename": lambda session, _: session.rename("new"),
    "archive": lambda session, _: session.archive(),
    "cancel": lambda session, _: session.cancel(),
    "start": lambda session, _: session.start_turn("more"),
    "run": lambda session, _: session.run("more"),
    "get": lambda _, turn: turn.get(),
    "result": lambda _, turn: turn.result(),
    "turn's events": lambda _, turn: first(turn.iter_events()),
    "steer": lambda _, turn: turn.steer("more"),
    "interrupt": lambda _, turn: turn.interrupt(),
    "answer": lambda _, turn: turn.answer(UNKNOWN, ALLOW),
    "list": lambda *_: first(agents.list_sessions()),
    "open": lambda *_: agents.Agent.load_from(agent_name="any").start_session(),
    "import": lambda *_: agents.Agent.load_from(agent_name="any").start_session(
        history=[agents.HistoryImportReasoning(text="x")]
    ),
}


async def test_every_call_says_that_the_broker_is_away(served: tuple[Home, RealServer]) -> None:
    _, server = served
    session = await agents.Agent.load_from(agent_name="nobody").start_session()
    turn = started(await session.start_turn("hi"))
    server.process.kill()
    server.process.wait()

    async def told(use: Use) -> Exception | None:
        try:
            await use(session, turn)
        except Exception as error:  # noqa: BLE001 - which one it is, is the question
            return error
        return None

    errors = dict(zip(USES, await asyncio.gather(*(told(use) for use in USES.values())), strict=True))
    assert {name: type(error).__name__ for name, error in errors.items()} == dict.fromkeys(
        USES, "BrokerUnavailableError"
    )
    unnamed = {name for name, error in errors.items() if session.id not in str(error)}
    assert unnamed == {"list", "open", "import"}, "which are about no session of the user's yet"
    for name in ("get", "result", "turn's events", "steer", "interrupt"):
        assert turn.id in str(errors[name])
    with pytest.raises(agents.ObservationLost):
        await first(session.iter_events())
    with pytest.raises(agents.BrokerUnavailableError, match="check that the broker runs"):
        await session.info()


async def test_a_send_that_may_have_arrived_says_so_and_its_key_tells(served: tuple[Home, RealServer]) -> None:
    """Without a key of the user's the SDK made one: sending again with it never applies the message twice."""
    home, server = served
    agent = await home.agent(StepModel())
    session = await agent.start_session()
    done(await session.run("one"))
    await home.broker.client.execute_command("CLIENT", "PAUSE", "700", "WRITE")  # type: ignore[no-untyped-call] # redis-py has no types here

    with pytest.raises(agents.OutcomeUnknownError, match=session.id) as unknown:
        await asyncio.wait_for(session.send_message("two"), 5)

    assert server.process.poll() is None
    async with asyncio.timeout(10):
        while True:
            try:
                turn = await session.send_message("two", idempotency_key=unknown.value.idempotency_key)
                break
            except agents.AgentsError:
                continue
    done(await turn.result())
    assert [entry.text async for entry in session.history() if isinstance(entry, agents.MessageEntry)].count("two") == 1
