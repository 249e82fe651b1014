"""An event's append → an observer in another process has it, typed: 100 events/s of 200 bytes.

Reference: raw XADD → XREAD BLOCK.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator

import redis.asyncio as aioredis

import api_shim as agents
from api_shim.local import place_of
from benchmarks.measure import Latency, now, process, report_latencies

COUNT = 500
GAP = 0.01


async def _raw(url: str) -> Latency:
    client = aioredis.Redis.from_url(url)
    values: list[float] = []
    with process_with_start("raw-appender", url, str(COUNT), str(GAP)) as begin:
        last = b"0-0"
        begin()
        while len(values) < COUNT:
            for _, entries in await client.xread({"raw:events": last}, block=5000):
                for entry_id, fields in entries:
                    values.append((now() - json.loads(fields[b"e"])["t"]) / 1e6)
                    last = entry_id
    await client.aclose()
    return Latency("raw XADD → XREAD BLOCK", values[20:])


async def _ours(url: str) -> Latency:
    agents.connect(url)
    session = await agents.Agent.load_from(agent_name="noop").start_session()
    await session.start_turn("0")
    values: list[float] = []
    events = session.iter_events()
    async with contextlib.aclosing(events):  # type: ignore[type-var] # an async generator, as documented
        with process_with_start("appender", url, session.id, str(COUNT), str(GAP)) as begin:
            await anext(events)
            begin()
            async for event in events:
                if isinstance(event, agents.Notice) and isinstance(event.details, dict):
                    values.append((now() - event.details["t"]) / 1e6)
                    if len(values) == COUNT:
                        break
    await place_of(url).close()
    agents.connect(None)
    return Latency("turnstream", values[20:])


@contextlib.contextmanager
def process_with_start(role: str, url: str, *arguments: str) -> Iterator[Callable[[], None]]:
    """Run a role that appends once it is told to."""
    with process(role, url, *arguments) as running:

        def begin() -> None:
            if running.stdin is not None:
                running.stdin.write("\n")
                running.stdin.flush()

        yield begin


async def run(url: str) -> None:
    """Measure and print."""
    await asyncio.sleep(0.1)
    raw = await _raw(url)
    ours = await _ours(url)
    report_latencies("append → observer in another process", ours, [raw], "p50 ≤ 1.5 x raw, p99 ≤ 3 x raw")
