"""Send → the turn's body starts, in another process: one idle worker, random gaps of 2 to 22 ms (arq's default poll: to 500 ms).

The body says when it started over a socket beside Redis. References: raw XADD → XREADGROUP, and arq as it comes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import redis.asyncio as aioredis
from arq import create_pool
from arq.connections import RedisSettings

import api_shim as agents
from api_shim.local import place_of
from benchmarks.measure import Latency, Marks, marking, now, process, report_latencies

Send = Callable[[int], Awaitable[object]]


async def _sample(send: Send, marks: Marks, count: int, longest: float) -> list[float]:
    gaps = random.Random(7)  # noqa: S311 - the same gaps each time
    values = []
    for at in range(count + 10):
        await asyncio.sleep(gaps.uniform(0.002, longest))
        await send(now())
        sent, started = await marks.next()
        if at >= 10:  # the first ones warm both processes
            values.append((started - sent) / 1e6)
    return values


async def _ours(url: str, marks: Marks, count: int) -> Latency:
    agents.connect(url)
    agent = agents.Agent.load_from(agent_name="noop")
    with process("ours", url, "10", marks=marks):
        sessions = [await agent.start_session() for _ in range(count + 10)]

        async def send(sent: int) -> None:
            await sessions.pop().start_turn(str(sent))

        values = await _sample(send, marks, count, 0.022)
    await place_of(url).close()
    agents.connect(None)
    return Latency("turnstream", values)


async def _raw(url: str, marks: Marks, count: int) -> Latency:
    client = aioredis.Redis.from_url(url)
    with process("raw-reader", url, marks=marks):
        values = await _sample(lambda sent: client.xadd("raw:jobs", {"t": sent}), marks, count, 0.022)
    await client.aclose()
    return Latency("raw XADD → XREADGROUP", values)


async def _arq(url: str, marks: Marks, count: int, poll: float, longest: float) -> Latency:
    pool = await create_pool(RedisSettings.from_dsn(url))
    with process("arq", url, str(poll), "10", marks=marks):
        values = await _sample(lambda sent: pool.enqueue_job("arq_job", sent), marks, count, longest)
    await pool.aclose()
    return Latency(f"arq, poll {poll:g} s", values)


async def run(url: str) -> None:
    """Measure and print."""
    with marking() as marks:
        raw = await _raw(url, marks, 300)
        ours = await _ours(url, marks, 300)
        fast = await _arq(url, marks, 150, 0.01, 0.022)
        stock = await _arq(url, marks, 40, 0.5, 0.5)
    report_latencies("send → turn body, idle worker", ours, [raw, fast, stock], "p50 ≤ 1.8 x raw")
