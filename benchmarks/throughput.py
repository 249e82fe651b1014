"""No-op turns/s of one worker process, the queue filled first; nine events a turn. Reference: stock arq's no-op jobs.

Timed from the first body's start to the end of the last turn (arq: to the last body's start, which favours it).
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis.asyncio as aioredis
from arq import create_pool
from arq.connections import RedisSettings

import api_shim as agents
from api_shim.local import place_of
from benchmarks.measure import Marks, marking, now, process


async def _ours(url: str, marks: Marks, count: int) -> float:
    agents.connect(url)
    agent = agents.Agent.load_from(agent_name="noop")
    sessions = await asyncio.gather(*(agent.start_session() for _ in range(count)))
    await asyncio.gather(*(session.start_turn("0") for session in sessions))
    broker = place_of(url).broker
    with process("ours", url, "100", marks=marks):
        _, first = await marks.next()
        draining = asyncio.create_task(_drain(marks))
        while await broker.client.zcard(f"{broker.keys.base(0)}active"):  # noqa: ASYNC110 - it is in another process
            await asyncio.sleep(0.005)
        seconds = (now() - first) / 1e9
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
    ended = [await session.turns() for session in (sessions[0], sessions[-1])]
    states: list[Any] = [await turns[0].get() for turns in ended]
    if not all(isinstance(state, agents.Completed) for state in states):
        raise RuntimeError(f"turns did not complete: {states}")
    await place_of(url).close()
    agents.connect(None)
    return count / seconds


async def _drain(marks: Marks) -> None:
    while True:
        await marks.next(3600)


async def _arq(url: str, marks: Marks, count: int, slots: int) -> float:
    pool = await create_pool(RedisSettings.from_dsn(url))
    for _ in range(count):
        await pool.enqueue_job("arq_job", 0)
    await pool.aclose()
    with process("arq", url, "0.5", str(slots), marks=marks):
        first = last = (await marks.next())[1]
        for _ in range(count - 1):
            last = (await marks.next())[1]
    return count / ((last - first) / 1e9)


async def run(url: str) -> None:
    """Measure and print."""
    client = aioredis.Redis.from_url(url)
    with marking() as marks:
        ours = await _ours(url, marks, 3000)
        await client.flushdb()
        arq_100 = await _arq(url, marks, 2000, 100)
        await client.flushdb()
        arq_10 = await _arq(url, marks, 400, 10)
    await client.aclose()
    print("\nno-op turns/s of one worker    reach: ≥ 1.2 x arq jobs at 100 slots")
    print(f"  {'turnstream, 100 slots':<34} {ours:8.0f} turns/s    {ours / arq_100:6.2f} x arq, 100 slots")
    print(f"  {'arq, 100 slots':<34} {arq_100:8.0f} jobs/s")
    print(f"  {'arq, as it comes (10 slots)':<34} {arq_10:8.0f} jobs/s")
