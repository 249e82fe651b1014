"""The embedded broker: fakeredis in this process, the same scripts, one per event loop.

It is for first steps and tests; whatever blocks, fails, restarts or races is proved on a real server. Its differences are
handled here and listed:

- no `INFO`, so the check at start is skipped;
- a cancelled `BLPOP` stays behind and swallows the next token, so a worker's fallback poll is short (`FALLBACK_POLL`); it is a
  task that nobody owns, so whoever closes the broker ends it (`end_blocked`);
- a task's cancellation is swallowed now and then, so tasks that use it are cancelled until they have ended (`end_task`);
- a key that has expired stays in memory until somebody looks at it, so workers have them dropped (`drop_expired`);
- JSON encoded or decoded in Lua differs from Redis, so scripts do neither;
- a script costs 0.4-0.7 ms, and each write wakes every blocked reader.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import fakeredis
import redis.asyncio as aioredis
from fakeredis import aioredis as fake_aioredis

FALLBACK_POLL: Final = 0.05
"""Seconds between polls of a worker on this broker."""

_SWALLOWED_S: Final = 0.05


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended: Python 3.11's wait_for, in fakeredis, swallows a cancellation that meets its result."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_SWALLOWED_S)


class EmbeddedServer:
    """One in-process broker. Equal only to itself; it ends with whoever holds it."""

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer(version=(7,))

    def pool(self, **options: Any) -> aioredis.ConnectionPool:
        """Return a connection pool of this server; `options` go to its connections."""
        return aioredis.ConnectionPool(
            connection_class=fake_aioredis.FakeAsyncRedisConnection,
            server=self._server,
            version=(7,),
            server_type="redis",
            protocol=2,
            **options,
        )

    def drop_expired(self) -> None:
        """Drop the keys that have expired: of those that nobody reads, fakeredis does so when all are counted."""
        for database in self._server.dbs.values():
            len(database)

    async def end_blocked(self) -> None:
        """End the commands that still block in this server, though their connections are gone."""
        left = [task for task in asyncio.all_tasks() if self._blocks(task)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _blocks(self, task: asyncio.Task[Any]) -> bool:
        coroutine = task.get_coro()
        if getattr(coroutine, "__qualname__", "") != "AsyncFakeSocket._async_blocking":
            return False
        frame = getattr(coroutine, "cr_frame", None)
        return frame is not None and getattr(frame.f_locals.get("self"), "_server", None) is self._server
