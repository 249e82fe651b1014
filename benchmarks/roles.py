"""The other process of a benchmark: `python -m benchmarks.roles ROLE URL …`. Prints `ready` once it is."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

import redis.asyncio as aioredis

import api_shim as agents
from benchmarks.measure import mark, now
from workers.scripted import last_user_text


def ready() -> None:
    """Tell the parent process."""
    print("ready", flush=True)


def noop(request: agents.ModelRequest) -> agents.ScriptedReply:
    """The body of a turn: its first model call."""
    mark(int(last_user_text(request)))
    return agents.ScriptedReply(text="ok")


async def ours(url: str, slots: int) -> None:
    """One Turnstream worker."""
    from broker.broker import Broker
    from broker.settings import Settings
    from workers.logging import configure_logging
    from workers.worker import TurnWorker

    configure_logging(level=40)
    broker = Broker(Settings(redis_url=url, slots=slots))
    worker = TurnWorker(broker, [agents.Agent(name="noop", model=agents.ScriptedModel(noop)).definition])
    main = asyncio.create_task(worker.main())
    await worker.ready.wait()
    ready()
    await main


async def arq_job(_ctx: dict[Any, Any], sent: int) -> None:
    """The body of arq's job."""
    mark(sent)


async def stock_arq(url: str, poll: float, slots: int) -> None:
    """One arq worker as it comes, at a poll delay."""
    from arq.connections import RedisSettings
    from arq.worker import Worker

    async def started(_ctx: dict[Any, Any]) -> None:
        ready()

    worker = Worker(
        functions=[cast("Any", arq_job)],
        redis_settings=RedisSettings.from_dsn(url),
        poll_delay=poll,
        max_jobs=slots,
        on_startup=cast("Any", started),
        handle_signals=False,
    )
    await worker.async_run()


async def raw_reader(url: str) -> None:
    """The floor of a dispatch: one consumer group reader."""
    client = aioredis.Redis.from_url(url)
    await client.xgroup_create("raw:jobs", "g", id="$", mkstream=True)
    ready()
    while True:
        for _, entries in await client.xreadgroup("g", "c", {"raw:jobs": ">"}, count=10, block=0):
            for entry_id, fields in entries:
                mark(int(fields[b"t"]))
                await client.xack("raw:jobs", "g", entry_id)


async def raw_appender(url: str, count: int, gap: float) -> None:
    """Append to a stream, with the time in each entry."""
    client = aioredis.Redis.from_url(url)
    ready()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for _ in range(count):
        await client.xadd("raw:events", {"e": json.dumps({"t": now(), "text": "x" * 150})})
        await asyncio.sleep(gap)


async def appender(url: str, session_id: str, count: int, gap: float) -> None:
    """Append notices to a session as its worker does, with the time in each one."""
    from broker import queue, runs
    from broker.broker import Broker
    from broker.settings import Settings
    from workers.effects import Effects

    broker = Broker(Settings(redis_url=url))
    claimed = await queue.claim(broker, broker.keys.queue(0, "noop"), worker="w", slots=1, lease=60, budget=5)
    job = queue.read_job(*claimed.jobs[0])
    begun = await runs.begin(
        broker, session_id, job=job.id, turn=job.turn_id, wake=job.wake, fence="w:1", worker="w", after="0-0", page=1
    )
    if not isinstance(begun, runs.Begun):
        raise TypeError(begun)
    ready()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    last = begun.last
    for op in range(1, count + 1):
        effects = Effects()
        effects.notice("x" * 150, level="info", source=None, details={"t": now()})
        _, last = await runs.append(broker, runs.Write(session_id, "w:1", op, last), effects.values, budget=5)
        await asyncio.sleep(gap)


def main() -> None:
    role, url, *rest = sys.argv[1:]
    match role:
        case "ours":
            asyncio.run(ours(url, int(rest[0])))
        case "arq":
            asyncio.run(stock_arq(url, float(rest[0]), int(rest[1])))
        case "raw-reader":
            asyncio.run(raw_reader(url))
        case "raw-appender":
            asyncio.run(raw_appender(url, int(rest[0]), float(rest[1])))
        case "appender":
            asyncio.run(appender(url, rest[0], int(rest[1]), float(rest[2])))
        case _:
            raise SystemExit(f"no role {role!r}")


if __name__ == "__main__":
    main()
