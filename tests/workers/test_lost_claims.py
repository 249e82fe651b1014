"""Claims whose replies were lost: what they gave is neither stranded here nor started beyond the slots."""

from __future__ import annotations

import asyncio
from typing import Any

import holders
import pytest
from eventually import eventually
from turns import Gate, working

from broker import queue, transitions
from broker.broker import Broker
from broker.protocol.errors import BrokerUnavailableError
from workers.agent import AgentDefinition
from workers.models import ModelStop
from workers.worker import TurnWorker


class Counting:
    """A model that says nothing until `over`; knows how many it was asked for at once."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.running = self.most = 0

    async def stream(self, _request: object) -> Any:
        """Wait."""
        self.running += 1
        self.most = max(self.most, self.running)
        await self.over.wait()
        self.running -= 1
        yield ModelStop()


class Lossy:
    """Loses the reply of the first claim that gives jobs of `agent`; that worker looks again once `again` is open."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch, agent: str) -> None:
        self.lost: list[str] = []
        self.again = Gate()
        key, claim, wait = broker.keys.queue(0, agent), queue.claim, TurnWorker._wait_for_work

        async def lossy(at: Broker, asked: str, **options: Any) -> queue.Claimed:
            claimed = await claim(at, asked, **options)
            if claimed.jobs and asked == key and not self.lost:
                self.lost = [job_id for job_id, _ in claimed.jobs]
                raise BrokerUnavailableError("the reply was lost")
            return claimed

        async def gated(worker: TurnWorker, seconds: float) -> None:
            if self.lost:
                await self.again.wait()
            await wait(worker, seconds)

        monkeypatch.setattr(queue, "claim", lossy)
        monkeypatch.setattr(TurnWorker, "_wait_for_work", gated)


async def send(broker: Broker, agent: str, *, ring: bool = True) -> str:
    """Start a turn, in a session of its own; without a token, it is found by a claim."""
    session = await holders.open_session(broker, agent=agent)
    await transitions.start(broker, session, holders.sent("hi"), key=None, join=True)
    if not ring:
        await holders.command(broker, "DEL", f"{broker.keys.queue(0, agent)}:wake")
    return session


async def held(broker: Broker, worker: TurnWorker, sessions: list[str]) -> list[str]:
    """Those of the sessions whose turns a worker runs, in their first attempt."""
    found = [await holders.fields(broker, session, "job", "holder", "attempts") for session in sessions]
    return [at for at, told in zip(sessions, found, strict=True) if told == ["running", worker.id, "1"]]


def named(name: str, model: Counting) -> AgentDefinition:
    return AgentDefinition(model=model, name=name)


async def test_what_a_lost_reply_gave_has_its_slots_whatever_is_rung_for_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Counting()
    async with working(broker, named("other", model), slots=4) as worker:
        sessions = [await send(broker, "agent", ring=False) for _ in range(4)]
        lossy = Lossy(broker, monkeypatch, "agent")
        await worker.serve(named("agent", model))
        await lossy.again.reached.wait()
        worker._due.clear()

        for _ in range(2):
            await send(broker, "agent")
        await eventually(lambda: worker._due.is_set() or len(worker.tasks) == 2, "it was rung for them")
        lossy.again.open.set()

        await eventually(lambda: held(broker, worker, sessions), "all four run", until=lambda found: len(found) == 4)
        assert (model.most, worker.job_counter) == (4, 4)
        model.over.set()
        await eventually(lambda: worker.turns.finished, "all ended", until=lambda count: count == 6)


async def test_what_a_repeated_claim_gives_beyond_the_free_slots_is_not_held(
    redis_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease lapses, which costs no attempt, and a worker with slots takes it."""
    redis_broker.settings = redis_broker.settings.model_copy(update={"lease": 1.0})
    model = Counting()
    async with working(redis_broker, named("first", model), slots=3) as full:
        sessions = [await send(redis_broker, "second", ring=False) for _ in range(3)]
        lossy = Lossy(redis_broker, monkeypatch, "second")
        await full.serve(named("second", model))
        await lossy.again.reached.wait()
        sessions += [await send(redis_broker, "first", ring=False) for _ in range(2)]
        full._due.set()
        lossy.again.open.set()

        await eventually(lambda: held(redis_broker, full, sessions), "it is full", until=lambda found: len(found) == 3)
        async with working(redis_broker, named("second", model), slots=3) as idle:
            await eventually(
                lambda: held(redis_broker, idle, sessions), "the rest runs there", until=lambda found: len(found) == 2
            )
            assert (len(full.tasks), len(full.turns.leases), full.job_counter) == (3, 3, 3)
            model.over.set()
            await eventually(lambda: idle.turns.finished + full.turns.finished, "all", until=lambda count: count == 5)
