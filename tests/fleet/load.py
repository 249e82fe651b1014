"""Turns in several states, each with an observer and a client that waits: what a broker's trouble must not harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Final

import pytest
from eventually import eventually
from fleet import Fleet, WorkerProcess

import api_shim as agents
from api_shim.local import place_of
from broker.broker import Broker
from broker.history_check import check_history
from broker.protocol.wire import parse_cursor
from broker.seen_check import check_seen
from broker.stored_session import read_stored

RETURN_S: Final = 5.0
"""Within so many seconds of the broker's return, work goes on."""


class Observed:
    """A session, everything that one observer sees of it, and what it was told when it could not see everything."""

    def __init__(self, session: agents.Session, after: str | None = None) -> None:
        self.session = session
        self.seen: list[agents.Event] = []
        self.lost: agents.ObservationLost | None = None
        self._after = after
        self.task = asyncio.create_task(self._observe())

    async def _observe(self) -> None:
        events = self.session.iter_events(after=self._after)
        async with aclosing(events):  # type: ignore[type-var] # an async generator, declared as what it promises
            try:
                async for event in events:
                    self.seen.append(event)
            except agents.ObservationLost as lost:
                self.lost = lost

    async def saw(self, kind: type[agents.Event], within: float = RETURN_S) -> None:
        """Wait until an event of a kind has come."""
        await eventually(
            lambda: any(isinstance(event, kind) for event in self.seen), f"a {kind.__name__} is seen", within=within
        )

    async def expect_whole(self, broker: Broker, sends: Sequence[agents.Turn] = ()) -> None:
        """The session ends; the observer has seen all of its log from where it began, and the log is sound."""
        await self.session.cancel()
        async with asyncio.timeout(RETURN_S):
            await self.task
        stored = await read_stored(broker, self.session.id)
        assert check_history(stored.records, last=stored.last, sends=[turn.id for turn in sends]) == []
        if self.lost is None:
            after = None if self._after is None else parse_cursor(self.session.id, self._after)
            assert check_seen(self.seen, stored.records, after=after, ended=True) == []


class Load:
    """A turn that writes, one that is parked, and an idle session; each observed, and the first two waited for."""

    def __init__(self, clerk: agents.Agent, url: str) -> None:
        self._clerk = clerk
        self.broker = place_of(url).broker
        self.turns: list[agents.Turn] = []

    async def _send(self, message: str) -> tuple[Observed, agents.Turn, asyncio.Task[agents.TurnState[object]]]:
        observed = Observed(await self._clerk.start_session())
        turn = await observed.session.send_message(message)
        self.turns.append(turn)
        return observed, turn, asyncio.create_task(turn.result())

    async def begin(self, words: int = 500) -> None:
        """Let it run; returns once each turn is in its state."""
        self.writing, _, self._written = await self._send(f"stream {words}")
        self.parked, self._parked_turn, asked = await self._send("ask someone")
        self.idle = Observed(await self._clerk.start_session())
        await self.writing.saw(agents.TextDelta)
        self._blocked = await asked
        assert isinstance(self._blocked, agents.Blocked)

    async def answer(self) -> None:
        """Answer what the parked turn asks: it goes on, and ends."""
        assert isinstance(self._blocked, agents.Blocked)
        waiting = asyncio.create_task(self._parked_turn.result(after=self._blocked))
        outcome = await self._parked_turn.answer(self._blocked.callbacks[0].id, agents.AllowApproval())
        assert isinstance(outcome, agents.Answered)
        assert isinstance(await waiting, agents.Completed)

    async def expect_to_go_on(self, within: float = RETURN_S) -> None:
        """Within so many seconds from now on, a new turn runs, the parked one is answered and ends, the running one writes on."""
        before = len(self.writing.seen)
        async with asyncio.timeout(within):
            new, _ = await asyncio.gather(self.idle.session.run("hello"), self.answer())
            assert isinstance(new, agents.Completed)
        wrote = lambda: len(self.writing.seen) > before or self._written.done()  # noqa: E731
        await eventually(wrote, "the running turn writes on", within=within)

    async def expect_everything(self) -> None:
        """Each turn ended as it should, and each observer saw its session's whole log, in which nobody was lost."""
        async with asyncio.timeout(30):
            assert isinstance(await self._written, agents.Completed)
        for observed in (self.writing, self.parked, self.idle):
            sends = [turn for turn in self.turns if turn._session == observed.session]
            await observed.expect_whole(self.broker, sends)
            assert observed.lost is None
            said = [event for event in observed.seen if isinstance(event, agents.Notice) and event.source == "worker"]
            assert not said, f"an outage is no lost worker: {said}"


def clerk_of(url: str) -> agents.Agent:
    return agents.Agent.load_from(agent_name="clerk", url=url)


@asynccontextmanager
async def ground(url: str, monkeypatch: pytest.MonkeyPatch, **settings: str) -> AsyncIterator[tuple[Fleet, Load]]:
    """Open a deployment with a lease of two seconds; this process is a client of it."""
    settings = {"TURNSTREAM_LEASE": "2", **settings}
    fleet = Fleet(url, "trouble:", **settings)
    for name, value in {"TURNSTREAM_PREFIX": fleet.prefix, **settings}.items():
        monkeypatch.setenv(name, value)
    agents.connect(url)
    try:
        yield fleet, Load(clerk_of(url), url)
    finally:
        await place_of(url).close()
        agents.connect(None)


@asynccontextmanager
async def running(fleet: Fleet, *options: str) -> AsyncIterator[WorkerProcess]:
    """Run a worker process; this loop goes on while it starts and stops, and with it a proxy between it and its broker."""
    with ExitStack() as stack:
        worker = await asyncio.to_thread(stack.enter_context, fleet.worker(*options))
        try:
            yield worker
        finally:
            await asyncio.to_thread(stack.close)


def expect_alive(worker: WorkerProcess) -> None:
    """It runs, and nothing but the broker's trouble has met it."""
    assert worker.process.poll() is None
    failed = [line for line in worker.log.lines if "failed" in line or '"level": "error"' in line]
    assert not failed, f"the worker met more than the broker's trouble: {failed}"
