"""Whose turn it is: workers that stand still, are frozen, are killed, or are only busy."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import redis.asyncio as aioredis
from eventually import eventually
from fleet import HERE, Fleet, Log, WorkerProcess
from load import Observed

import api_shim as agents
from api_shim.local import place_of
from broker.stored_session import read_stored

LEASE_S: Final = 2.0
RECOVERY_S: Final = LEASE_S + 5
SERVES: Final = "standing_agents:stander"


@contextmanager
def standing(fleet: Fleet, *, at: str = "", wedged: float = 60) -> Iterator[WorkerProcess]:
    """Run the worker that can be made to stand still."""
    told = {"TURNSTREAM_LEASE": str(LEASE_S), "TURNSTREAM_TEST_STAND": at, "TURNSTREAM_TEST_WEDGED": str(wedged)}
    command = [sys.executable, str(HERE / "standing_agents.py")]
    process = subprocess.Popen(command, cwd=HERE, env={**fleet.env, **told}, stderr=subprocess.PIPE, text=True)
    log = Log(process)
    try:
        log.until("worker_started")
        yield WorkerProcess(process, log)
    finally:
        process.kill()
        process.wait(timeout=10)
        log.thread.join(timeout=5)


@contextmanager
def another(fleet: Fleet) -> Iterator[WorkerProcess]:
    with fleet.worker("--lease", str(LEASE_S), serves=SERVES) as worker:
        yield worker


async def stopped(worker: WorkerProcess) -> None:
    """Wait until a process stands still."""

    def state() -> str:
        return Path(f"/proc/{worker.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]

    await eventually(state, "the process is stopped", until=lambda seen: seen == "T", within=10)


def stander(fleet: Fleet) -> agents.Agent:
    return agents.Agent.load_from(agent_name="stander", url=fleet.url)


def sent(worker: WorkerProcess) -> list[str]:
    """The writes that a worker has sent, or was about to."""
    return [line.split()[1] for line in worker.log.lines if line.startswith("sends ")]


async def expect_one_story(fleet: Fleet, observed: Observed, attempts: int) -> None:
    """Whoever watched saw all of the log, it is sound, and it says how many attempts there were."""
    broker = place_of(fleet.url).broker
    await observed.expect_whole(broker)
    notices = [event.details for event in observed.seen if isinstance(event, agents.Notice) and event.details]
    assert notices == [{"reason": "worker_lost", "attempt": attempt} for attempt in range(2, attempts + 1)]
    runs = [record.run for record in (await read_stored(broker, observed.session.id)).records if record.run]
    assert len(dict.fromkeys(runs)) <= attempts


async def begun(fleet: Fleet) -> int:
    """How often the tool was begun."""
    async with aioredis.Redis.from_url(fleet.url) as client:
        return int(await client.get(f"{fleet.prefix}effect:begun") or 0)


# F04: busy, not gone.


async def test_a_tool_that_blocks_the_loop_for_two_leases_keeps_its_turn(fleet: Fleet) -> None:
    """Plain CPU work on the worker's loop: a thread renews meanwhile. Another worker stands by, and gets nothing."""
    with standing(fleet) as worker, another(fleet) as other:
        session = await stander(fleet).start_session()
        observed = Observed(session)
        assert isinstance(await session.run(f"spin {2.2 * LEASE_S}"), agents.Completed)
        lines = [*worker.log.lines, *other.log.lines]
        assert sum('"turn_begun"' in line for line in lines) == 1
        assert not [line for line in lines if "lease_lost" in line]
    assert await begun(fleet) == 1
    await expect_one_story(fleet, observed, attempts=1)


@pytest.mark.parametrize("message", [f"hold {2.2 * LEASE_S}", "stop"], ids=["lock held", "SIGSTOP"])
async def test_a_holder_that_could_not_renew_writes_nothing_more(fleet: Fleet, message: str) -> None:
    """Not even its thread ran: the turn is another's by then, and the first thing that it does is to ask, not to write."""
    with standing(fleet) as worker:
        session = await stander(fleet).start_session()
        observed = Observed(session)
        running = asyncio.create_task(session.run(message))
        await eventually(lambda: begun(fleet), "the tool runs", within=10)
        if message == "stop":
            await stopped(worker)
        writes = sent(worker)
        with another(fleet):
            state = await asyncio.wait_for(running, RECOVERY_S + 5)
        if message == "stop":
            worker.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(worker.log.until, '"outcome": "stopped"')

        assert sent(worker) == writes
        assert [line for line in worker.log.lines if "lease_lost" in line]
    assert isinstance(state, agents.Completed)
    assert await begun(fleet) == 1
    (result,) = [entry async for entry in session.history() if isinstance(entry, agents.ToolResultEntry)]
    assert result.is_error
    await expect_one_story(fleet, observed, attempts=2)


async def test_a_process_whose_loop_stands_still_for_good_loses_its_turns(fleet: Fleet) -> None:
    """Its thread would renew for ever; it stops after a minute (a second here), and the turn goes on elsewhere."""
    with standing(fleet, wedged=1) as worker:
        session = await stander(fleet).start_session()
        observed = Observed(session)
        running = asyncio.create_task(session.run("spin 600"))
        await eventually(lambda: begun(fleet), "the tool runs", within=10)
        with another(fleet):
            assert isinstance(await asyncio.wait_for(running, 1 + RECOVERY_S + 5), agents.Completed)
        assert worker.process.poll() is None
        assert [line for line in worker.log.lines if "worker_stands_still" in line]
    await expect_one_story(fleet, observed, attempts=2)


# F02: frozen. How a worker is killed amid a turn: test_worker_process.py.


@pytest.mark.parametrize(("at", "attempts"), [("begin.before", 1), ("begin.after", 2), ("append.before", 2)])
async def test_a_worker_frozen_past_its_lease_writes_nothing_when_it_wakes_up(
    fleet: Fleet, at: str, attempts: int
) -> None:
    """Between its claim and its first event (F02), and at that event."""
    session = await stander(fleet).start_session()
    observed = Observed(session)
    running = asyncio.create_task(session.run("hello"))
    broker = place_of(fleet.url).broker
    wake = f"{broker.keys.queue(0, 'stander')}:wake"
    await eventually(lambda: broker.client.delete(wake), "the token is gone, so that the job is claimed")
    with standing(fleet, at=at) as worker:
        await asyncio.to_thread(worker.log.until, "stands")
        await stopped(worker)
        writes = sent(worker)
        with another(fleet):
            assert isinstance(await asyncio.wait_for(running, RECOVERY_S + 5), agents.Completed)
        worker.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(worker.log.until, session.id if at == "begin.before" else '"outcome": "stopped"')

        assert sent(worker) == writes
    await expect_one_story(fleet, observed, attempts)
