"""What turns leave in the broker when their retention is over: nothing, after thousands of them too (F20)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as aioredis
from eventually import eventually
from fleet import Fleet
from leaks import keys_of, kind_of, leaked_keys
from process_leaks import WHY_NOT
from real_server import serving

import api_shim as agents
from api_shim.local import place_of

MORE_BYTES = 256 * 1024
"""What a server's own buffers and tables may take more afterwards. One turn's keys take 3 KB."""

BESIDE = {"workers", "worker", "queue:tick", "queue:promise", "queue:wake", "claimed", "swept", "check"}
"""Kinds of keys that a worker has whatever turns there are, and a TTL each."""


@pytest.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """A deployment with a server of its own; it keeps ended sessions for a second."""
    monkeypatch.setenv("TURNSTREAM_PREFIX", "kept:")
    monkeypatch.setenv("TURNSTREAM_RETENTION", "1")
    with serving(tmp_path) as server:
        agents.connect(server.url)
        yield Fleet(server.url, "kept:")
        await place_of(server.url).close()
        agents.connect(None)


@pytest.fixture
async def client(kept: Fleet) -> AsyncIterator[aioredis.Redis]:
    """A connection to its server."""
    async with aioredis.Redis.from_url(kept.url) as opened:
        yield opened


@pytest.fixture
def clerk(kept: Fleet) -> agents.Agent:
    """A handle of the agent that its workers serve."""
    return agents.Agent.load_from(agent_name="clerk", url=kept.url)


async def run_turns(clerk: agents.Agent, many: int) -> None:
    """Run so many turns, a hundred at once, each in a session of its own; each tenth waits for an answer."""
    left = iter(range(many))

    async def sender() -> None:
        for at in left:
            text = f"ask {at}" if at % 10 == 0 else "hello"
            state = await clerk.run(text, on_approval=lambda *_: agents.DenyApproval(), timeout=60)
            assert isinstance(state, agents.Completed), state

    await asyncio.gather(*(sender() for _ in range(100)))


async def left_of_turns(client: aioredis.Redis) -> list[str]:
    """The kinds of keys that are there for turns and sessions; what clients' retries need is let expire."""
    keys = await keys_of(client, "kept:")
    assert await leaked_keys(client, "kept:") == []
    for key in keys:
        if kind_of(key) == "nonce":  # its ten minutes are over
            await client.unlink(key)
    return sorted({kind_of(key) for key in keys} - BESIDE)


async def at_rest(client: aioredis.Redis) -> None:
    """Wait until nothing is left of sessions and turns."""
    what = "nothing is left of sessions and their turns"
    await eventually(lambda: left_of_turns(client), what, until=lambda left: left == [], within=20, every=0.25)


def held_by(pid: int) -> int:
    """How many descriptors a process has open; 0 where nobody tells."""
    return 0 if WHY_NOT else len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


async def bytes_held(client: aioredis.Redis) -> int:
    """What the server holds."""
    return int((await client.info("memory"))["used_memory"])


@pytest.mark.parametrize("many", [pytest.param(10_000, marks=pytest.mark.soak), 600])
async def test_after_thousands_of_turns_and_their_retention_memory_and_keys_are_as_before(
    kept: Fleet, client: aioredis.Redis, clerk: agents.Agent, many: int
) -> None:
    with kept.worker() as worker:
        await run_turns(clerk, 200)  # scripts are loaded, connections open, buffers as large as they get
        await at_rest(client)
        before, descriptors = await bytes_held(client), held_by(worker.process.pid)

        await run_turns(clerk, many)

        full = await bytes_held(client)
        await at_rest(client)
        what = f"{before:,} bytes are held again, and no more than {MORE_BYTES:,} beside them"
        after = await eventually(  # the server makes its tables smaller bit by bit
            lambda: bytes_held(client), what, until=lambda held: held < before + MORE_BYTES, within=10, every=0.1
        )
        assert held_by(worker.process.pid) <= descriptors + 4  # a connection for each use, when it is first needed
    print(f"{many:,} turns: {before:,} bytes before, {full:,} at their end, {after:,} after their retention")


async def test_a_worker_ends_idle_sessions_and_forgets_ended_ones(
    kept: Fleet, client: aioredis.Redis, clerk: agents.Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_IDLE_LIMIT", "1")  # of the sessions that this process opens from now on
    with kept.worker():
        idle, parked = await clerk.start_session(), await clerk.start_session()
        await idle.run("hello")
        state = await parked.run("ask 1")
        assert isinstance(state, agents.Blocked)

        ended = await parked.turn(state.turn_id).result(after=state, timeout=20)

        assert isinstance(ended, agents.Interrupted)
        assert ended.cause == "idle_limit"
        await at_rest(client)
        assert [info.id async for info in agents.list_sessions(host=kept.url)] == []
        for session in (idle, parked):
            with pytest.raises(agents.SessionNotFoundError):
                await session.info()
