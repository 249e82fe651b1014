"""What a test may leave behind: nothing that lives for ever."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from fnmatch import fnmatchcase
from typing import Final, cast

import redis.asyncio as aioredis
from eventually import eventually

PERMANENT: Final = (
    "sessions",
    "sessions:*",
    "workers*",
    "active",
    "dead",
    "deadlines",
    "queue:*",
    "clock",  # the offset that only tests set
)
"""Keys of a shard without a TTL that belong to no session."""

_SESSION: Final = re.compile(r"(\{s\d+\}).*?((?:0|[1-9]\d{0,3})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


async def leaked_keys(client: aioredis.Redis, prefix: str) -> list[str]:
    """Return the keys of a prefix that have no TTL, belong to no open session and are not on the permanent list."""
    leaked = []
    for pattern in (f"{prefix}*", f"arq:*{prefix}*"):
        async for raw in client.scan_iter(match=pattern, count=1000):
            key = raw.decode()
            if await client.pttl(key) != -1:
                continue
            match = _SESSION.search(key)
            if match is not None:
                session = f"{prefix}{match[1]}:session:{match[2]}"
                status = await cast("Awaitable[bytes | None]", client.hget(session, "status"))
                if status is not None and status != b"terminated":
                    continue
            elif any(fnmatchcase(key.removeprefix(prefix).partition("}:")[2], name) for name in PERMANENT):
                continue
            leaked.append(key)
    return sorted(leaked)


async def drop_keys(client: aioredis.Redis, prefix: str) -> None:
    """Remove every key of a prefix."""
    for pattern in (f"{prefix}*", f"arq:*{prefix}*"):
        keys = [key async for key in client.scan_iter(match=pattern, count=1000)]
        if keys:
            await client.unlink(*keys)


async def expect_no_tasks() -> None:
    """Fail when tasks are pending that the test has not ended."""

    def pending() -> list[str]:
        current = asyncio.current_task()
        return [repr(task) for task in asyncio.all_tasks() if task is not current and not task.done()]

    await eventually(pending, "every task that the test started has ended", until=lambda left: not left, within=1.0)
