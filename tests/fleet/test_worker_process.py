"""A worker process: how it stops, and what becomes of its turns when it does not stop but dies."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest
from fleet import Fleet

import api_shim as agents


async def at_work(session: agents.Session) -> None:
    """Wait until a tool of the session runs."""
    async for event in session.iter_events():
        if isinstance(event, agents.EntryAdded) and isinstance(event.entry, agents.ToolResultEntry):
            return


async def test_what_does_not_finish_is_handed_back_at_once_and_costs_no_attempt(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    with fleet.worker("--grace", "0.2") as worker:
        session = await clerk.start_session()
        turn = await session.send_message("tool 30")
        await at_work(session)
        worker.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.process.wait, 10) == 0
        summary = json.loads(worker.log.until("worker_stopped"))
        assert summary["handed_back"] == [turn.id]

    with fleet.worker():  # the tool had started: it is not run again, and the model is told
        assert isinstance(await turn.result(timeout=10), agents.Completed)
        entries = [entry async for entry in session.history() if isinstance(entry, agents.ToolResultEntry)]
        assert [entry.is_error for entry in entries] == [True]
        await session.cancel()
        assert [event async for event in session.iter_events() if isinstance(event, agents.Notice)] == []


@pytest.mark.parametrize("lease", [2, pytest.param(15, marks=pytest.mark.soak)])
async def test_when_a_worker_is_killed_another_goes_on_within_lease_and_5_seconds(
    fleet: Fleet, clerk: agents.Agent, lease: int
) -> None:
    with fleet.worker("--lease", str(lease)) as worker:
        session = await clerk.start_session()
        turn = await session.send_message("stream 4000")
        async for event in session.iter_events():
            if isinstance(event, agents.TextDelta):
                break
        with fleet.worker("--lease", str(lease)) as other:
            worker.process.kill()
            killed = time.monotonic()
            await asyncio.to_thread(other.log.until, "turn_begun", lease + 10)
            took = time.monotonic() - killed
            assert took < lease + 5
            assert isinstance(await turn.result(timeout=30), agents.Completed)
            await session.cancel()
            notices = [event async for event in session.iter_events() if isinstance(event, agents.Notice)]
            assert [event.details for event in notices] == [{"reason": "worker_lost", "attempt": 2}]


async def test_an_idle_worker_is_idle(fleet: Fleet) -> None:
    """No busy loop: a few commands a second, and next to no CPU."""
    from api_shim.local import place_of

    with fleet.worker() as worker:
        client = place_of(fleet.url).broker.client

        def cpu() -> float:
            stat = Path(f"/proc/{worker.process.pid}/stat").read_text(encoding="ascii")
            fields = stat.rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / 100

        await asyncio.sleep(0.5)
        before, commands = cpu(), (await client.info("stats"))["total_commands_processed"]
        await asyncio.sleep(6)  # past the bell's own wait
        assert cpu() - before < 0.2
        assert (await client.info("stats"))["total_commands_processed"] - commands < 60 * 6
        assert worker.process.poll() is None
        assert not [line for line in worker.log.lines if '"level": "warning"' in line]
