"""Renewal: a thread that asks and tells, what a run does past its lease's end, and what is left when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import holders
import pytest
from eventually import eventually
from leaks import drop_keys
from proxy import Proxy
from real_server import RealServer
from turns import Gate, Steps, call, staged, working, writer_for

from broker import fault_points, queue, transitions
from broker.broker import Broker
from broker.keys import new_id
from broker.runs import Superseded
from broker.settings import Settings
from workers import worker as worker_module
from workers.agent import AgentDefinition
from workers.effects import Effects
from workers.leases import Lease
from workers.models import ModelDelta, ModelRequest, ModelStop, ModelText
from workers.tools import tool
from workers.worker import TurnWorker

LEASE_S = 0.4


@pytest.fixture
async def short(real_server: RealServer) -> AsyncIterator[Broker]:
    """A broker whose leases are short, for what must lapse."""
    broker = Broker(Settings(redis_url=real_server.url, prefix=f"r{new_id()[:8]}:", lease=LEASE_S))
    yield broker
    await drop_keys(broker.client, broker.settings.prefix)
    await broker.close()


def port_of(broker: Broker) -> int:
    return int(urlsplit(str(broker.settings.redis_url)).port or 6379)


def notice(text: str) -> Effects:
    effects = Effects()
    effects.notice(text, level="info", source="test")
    return effects


async def said(broker: Broker, session_id: str) -> list[str]:
    return [record["message"] for record in await holders.records(broker, session_id) if record.get("source") == "test"]


# A holder and its lease.


async def test_a_writer_past_its_lease_waits_for_a_renewal(broker: Broker) -> None:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    writer.lease = Lease(until=monotonic() - 1)
    writing = asyncio.create_task(writer.write(notice("late")))
    await asyncio.sleep(0.05)
    assert await said(broker, holder.session_id) == []

    writer.lease.renew(monotonic() - 0.5)  # still over
    await asyncio.sleep(0.05)
    assert not writing.done()
    writer.lease.renew(monotonic() + 15)
    await writing

    assert await said(broker, holder.session_id) == ["late"]
    await writer.close()


async def test_a_write_that_waits_its_turn_past_the_lease_is_not_sent(redis_broker: Broker) -> None:
    """It was handed to a connection that hears nothing; when that goes on, the moment is over."""
    async with Proxy(port_of(redis_broker)) as proxy:
        broker = Broker(redis_broker.settings.model_copy(update={"redis_url": proxy.url}))
        holder = await holders.running(broker)
        writer = await writer_for(broker, holder)
        writer.lease = Lease(until=monotonic() + 0.2)
        proxy.hold()
        ahead = asyncio.create_task(broker.commands.command("PING"))
        await asyncio.sleep(0.02)  # it is on its way
        writing = asyncio.create_task(writer.write(notice("late")))
        await asyncio.sleep(0.3)
        proxy.go_on()
        await ahead
        await asyncio.sleep(0.1)
        assert await said(redis_broker, holder.session_id) == []

        writer.lease.renew(monotonic() + 15)
        await writing
        assert await said(redis_broker, holder.session_id) == ["late"]
        await writer.close()
        await broker.close()


async def test_a_tool_is_not_run_by_a_holder_that_stood_still_since_its_start_was_written(
    short: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start is in the log; the lease ran out before its body; whoever has the turn now says that it is not known."""
    ran: list[int] = []

    @tool
    async def pay() -> str:
        """Pay."""
        ran.append(1)
        return "paid"

    appends = 0

    async def standing() -> None:
        nonlocal appends
        appends += 1
        if appends == 2:  # the reply; then the tool's start
            await stage.worker.renewal.stop()
            (job_id,) = stage.worker.tasks
            lease = stage.worker.turns.leases.get(job_id)
            assert lease is not None
            lease.until = monotonic()

    monkeypatch.setitem(fault_points.armed, "append.after", standing)
    async with staged(short, Steps([call("pay", "a")]), pay) as stage:
        await stage.send()
        await eventually(lambda: appends, "its start is written", until=lambda seen: seen == 2)
        stage.worker.stopping.set()  # it takes nothing more
        async with working(short, AgentDefinition(model=Steps(), name="agent", tools=[pay])):
            assert (await stage.ended())["type"] == "completed"
        assert "what it did is not known" in (await stage.results())["a"]
    assert ran == []


# What a renewal says.


@pytest.mark.parametrize("why", ["lost", "ended"])
async def test_only_a_lease_that_was_lost_is_said_to_be(broker: Broker, logs: list[Any], why: str) -> None:
    """The hint of the interrupt is lost; the renewal stops the run all the same."""
    gate = Gate()
    async with staged(broker, Steps([gate, "done"])) as stage:
        stage.worker._stop = lambda *_: None  # type: ignore[method-assign] # the hint
        turn = await stage.send()
        await gate.reached.wait()
        if why == "ended":
            await transitions.interrupt(broker, stage.session_id, turn)
        else:
            (job_id,) = stage.worker.tasks
            stage.worker.stopping.set()  # it takes nothing more
            await holders.command(broker, "ZADD", f"{broker.keys.queue(0, 'agent')}:running", 1, job_id)
            await queue.claim(broker, broker.keys.queue(0, "agent"), worker="reaper", slots=0, lease=15, budget=5)
        await stage.worker.renewal.now(stage.worker.renewal.queues)
        await eventually(lambda: stage.worker.tasks, "its run stops", until=lambda tasks: not tasks)
        assert stage.worker.turns.handed_back == []
    assert len([entry for entry in logs if entry["event"] == "lease_lost"]) == (why == "lost")


async def test_a_run_is_told_once_to_stop_and_tidies_up(redis_broker: Broker) -> None:
    """By the hint, by each renewal, and by a drain: a second word would cut short what its tool does to clean up."""
    gate, cleaning, did = Gate(), Gate(), list[str]()

    @tool
    async def work() -> str:
        """Work."""
        try:
            await gate.wait()
        finally:
            await cleaning.wait()
            did.append("cleaned")
        return "worked"

    async with staged(redis_broker, Steps([call("work", "a")]), work) as stage:
        await stage.send()
        await gate.reached.wait()
        run = stage.worker.turns.runs[stage.session_id]
        release = run._sources.release
        run._sources.release = lambda: (did.append("released"), release())[1]  # type: ignore[method-assign, func-returns-value]
        await stage.interrupt()
        await cleaning.reached.wait()
        for _ in range(2):
            await stage.worker.renewal.now(stage.worker.renewal.queues)
        draining = asyncio.create_task(stage.worker.drain(0))
        await asyncio.sleep(0.02)
        assert did == []
        cleaning.open.set()
        await draining
    assert did == ["cleaned", "released"]


@pytest.mark.parametrize("why", ["ended", "drained"])
async def test_a_run_that_swallows_its_one_word_ends_at_its_next_write(short: Broker, why: str) -> None:
    """Its lease is over by then, and nobody renews it: its slot is free again all the same."""
    reached, free = asyncio.Event(), asyncio.Event()

    class Swallowing:
        async def stream(self, _request: ModelRequest) -> AsyncIterator[ModelDelta]:
            reached.set()
            while not free.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await free.wait()
            yield ModelText("b")
            yield ModelStop()

    async with staged(short, Swallowing()) as stage:
        await stage.send()
        await reached.wait()
        lease = stage.worker.turns.runs[stage.session_id].context.lease
        draining = None
        if why == "ended":
            await stage.interrupt()
            await eventually(lambda: lease.told, "it is told")
        else:
            draining = asyncio.create_task(stage.worker.drain(0))
            await eventually(lambda: stage.worker.turns.handed_back, "its turn is handed back")
        await eventually(lambda: lease.left, "its lease is over", until=lambda left: left < 0)
        free.set()
        await eventually(lambda: stage.worker.tasks, "it ends", until=lambda tasks: not tasks, within=2)
        if draining is not None:
            await draining
            await stage.interrupt()


async def test_who_waits_for_a_renewal_hears_that_the_lease_is_lost() -> None:
    lease = Lease(until=monotonic())
    waiting = asyncio.create_task(lease.stands())
    await asyncio.sleep(0)
    lease.lose()
    with pytest.raises(Superseded):
        await asyncio.wait_for(waiting, 1)


async def test_it_says_when_every_queue_last_answered(short: Broker) -> None:
    async with staged(short, Steps()) as stage:
        first = stage.worker.renewal.renewed_at
        assert first is not None
        await eventually(
            lambda: stage.worker.renewal.renewed_at, "it is newer", until=lambda at: at is not None and at > first
        )


# A worker that leaves while its broker is away.


async def test_a_drain_waits_for_its_broker_so_that_no_attempt_is_used(short: Broker) -> None:
    gate = Gate()
    async with Proxy(port_of(short)) as proxy:
        settings = short.settings.model_copy(update={"redis_url": proxy.url, "socket_timeout": 0.2, "lease": 15.0})
        broker = Broker(settings)
        async with staged(broker, Steps([gate, "done"])) as stage:
            turn = await stage.send()
            await gate.reached.wait()
            proxy.refusing = True
            proxy.cut()
            draining = asyncio.create_task(stage.worker.drain(0))
            await asyncio.sleep(2)
            assert not draining.done()
            proxy.refusing = False
            await draining
            assert stage.worker.turns.handed_back == [turn]
        assert await holders.fields(short, stage.session_id, "job", "attempts") == ["queued", "0"]
        await broker.close()


async def test_what_a_slow_claim_gives_a_worker_that_leaves_is_handed_back(
    redis_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply comes after the time that a drain gives it before it hands back what runs."""
    monkeypatch.setattr(worker_module, "_CLAIM_S", 0.05)
    gate, real = Gate(), queue.claim

    async def slow(*arguments: Any, **options: Any) -> queue.Claimed:
        claimed = await real(*arguments, **options)
        if claimed.jobs:
            await gate.wait()
        return claimed

    monkeypatch.setattr(queue, "claim", slow)
    session_id = await holders.open_session(redis_broker)
    turn = await holders.start(redis_broker, session_id)
    await holders.command(redis_broker, "DEL", f"{redis_broker.keys.queue(0, 'agent')}:wake")
    async with working(redis_broker, AgentDefinition(model=Steps([Gate()]), name="agent")) as worker:
        await gate.reached.wait()
        draining = asyncio.create_task(worker.drain(0))
        await asyncio.sleep(0.1)
        assert not draining.done()
        gate.open.set()
        await draining
        assert (worker.tasks, worker.turns.handed_back) == ({}, [turn])
    assert await holders.fields(redis_broker, session_id, "job", "attempts") == ["queued", "0"]


# The thread.


async def test_nothing_is_left_of_it(redis_broker: Broker) -> None:
    before = threading.active_count()
    async with staged(redis_broker, Steps()) as stage:
        assert threading.active_count() == before + 1
        await stage.send()
        await stage.ended()
    assert threading.active_count() == before


async def test_it_ends_at_once_while_the_broker_is_away(short: Broker) -> None:
    async with Proxy(port_of(short)) as proxy:
        broker = Broker(short.settings.model_copy(update={"redis_url": proxy.url, "lease": 60.0}))
        worker = TurnWorker(broker)
        worker.renewal.queues = (("agent", broker.keys.queue(0, "agent")),)
        proxy.hold()
        worker.renewal.start()
        await asyncio.wait_for(worker.renewal.stop(), 2)
        await broker.close()


async def test_it_ends_with_the_worker_s_loop(real_server: RealServer) -> None:
    """A program that drops its worker without a word leaves no thread that renews for ever."""

    async def forget() -> None:
        broker = Broker(Settings(redis_url=real_server.url, prefix=f"r{new_id()[:8]}:", lease=LEASE_S))
        TurnWorker(broker).renewal.start()
        await broker.close()

    before = threading.active_count()
    await asyncio.to_thread(asyncio.run, forget())
    await eventually(threading.active_count, "it has ended", until=lambda count: count <= before + 1)
