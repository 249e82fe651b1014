"""A power cut tears the append-only file anywhere: what is left of it is whole transitions, from which every turn goes on."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import fleet_agents
import pytest
from eventually import eventually
from load import clerk_of, ground, running
from real_server import serving

import api_shim as agents
from broker.broker import Broker
from broker.settings import Settings
from broker.stored_session import check_tree, read_tree
from workers.worker import TurnWorker

EVERYSEC = ("--appendonly", "yes", "--appendfsync", "everysec")
PREFIX = "trouble:"


async def broken_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[agents.Turn]:
    """Kill a server under load; return the turns whose sends had returned. What it wrote is in the folder."""
    with serving(folder, *EVERYSEC) as server:
        async with ground(server.url, monkeypatch) as (fleet, load), running(fleet):
            clerk = clerk_of(server.url)

            async def send(text: str) -> agents.Turn:
                turn = await (await clerk.start_session()).send_message(text)
                state = await turn.result()
                if isinstance(state, agents.Blocked):
                    await turn.answer(state.callbacks[0].id, agents.AllowApproval())
                    state = await turn.result(after=state)
                assert isinstance(state, agents.Completed)
                return turn

            await load.begin()
            sent = await asyncio.gather(*(send(text) for text in ("hello", "ask a", "stream 20") * 3))
            server.process.kill()
            server.process.wait()
            return [*load.turns, *sent]


@asynccontextmanager
async def restored(folder: Path) -> AsyncIterator[Broker]:
    """Start a server from a folder."""
    with serving(folder, *EVERYSEC) as server:
        broker = Broker(Settings(redis_url=server.url, prefix=PREFIX, lease=2.0))
        try:
            yield broker
        finally:
            await broker.close()


async def expect_sound(broker: Broker) -> list[str]:
    """Every session that is stored is as the history checker wants it; return their turns."""
    (found,) = await broker.read(("ZRANGE", f"{broker.keys.base(0)}sessions", 0, -1))
    turns: list[str] = []
    for session_id in found:
        for stored, findings in check_tree(await read_tree(broker, session_id.decode())):
            assert findings == []
            turns += stored.turns
    return turns


async def at_work(broker: Broker) -> list[bytes]:
    """The sessions whose turn has not ended and is not parked."""
    base = broker.keys.base(0)
    (active,) = await broker.read(("ZRANGE", f"{base}active", 0, -1))
    jobs = await broker.read(*(("HGET", f"{base}session:{session_id.decode()}", "job") for session_id in active))
    return [session_id for session_id, job in zip(active, jobs, strict=True) if job != b"parked"]


async def expect_to_go_on(folder: Path) -> int:
    """Every turn that is stored there ends, or waits for an answer; return how many there are."""
    async with restored(folder) as broker:
        turns = await expect_sound(broker)
        worker = TurnWorker(broker, [fleet_agents.clerk.definition])
        working = asyncio.create_task(worker.main())
        try:
            await eventually(lambda: at_work(broker), "no turn is at work", until=lambda left: left == [], within=20)
        finally:
            await worker.drain(0)
            await asyncio.gather(working, return_exceptions=True)
        assert await expect_sound(broker) == turns
    return len(turns)


def torn(folder: Path, into: Path, keep: float) -> Path:
    """Copy a server's folder, with that part of what it appended last."""
    shutil.copytree(folder, into)
    (written,) = (path for path in into.rglob("*.aof*") if ".base." not in path.name and ".manifest" not in path.name)
    os.truncate(written, int(written.stat().st_size * keep))
    return into


@pytest.mark.parametrize("cuts", [pytest.param(40, marks=pytest.mark.soak), 4])
async def test_what_is_left_is_sound_and_goes_on(cuts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "whole").mkdir()
    accepted = await broken_off(tmp_path / "whole", monkeypatch)
    places = random.Random(cuts)  # noqa: S311 - the same places each time
    slots = asyncio.Semaphore(4)

    async def cut(at: int) -> int:
        async with slots:
            return await expect_to_go_on(torn(tmp_path / "whole", tmp_path / f"cut{at}", places.uniform(0.05, 1)))

    async with restored(torn(tmp_path / "whole", tmp_path / "kept", 1)) as broker:
        kept = await expect_sound(broker)
    left = await asyncio.gather(*(cut(at) for at in range(cuts)))

    assert {turn.id for turn in accepted} <= set(kept)  # the process was killed, not the machine
    assert max(left) > min(left)
