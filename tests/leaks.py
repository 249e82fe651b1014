"""What a test may leave behind in a broker: nothing that lives for ever. And no task.

`FATES` lists every key of a deployment by its kind, with how it goes; a test compares it with what the scripts name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

import redis
import redis.asyncio as aioredis
from eventually import eventually

KEPT: Final = "gets a TTL, the retention, when its session ends"
TURN: Final = "is deleted when its session's turn ends, or before"
TTL: Final = "has a TTL from its first write on"
PERMANENT: Final = "has no TTL: one per deployment, agent or queue; what stands in it goes"

FATES: Final = {
    "session": KEPT,
    "log": KEPT,
    "turns": KEPT,
    "settled": KEPT,
    "receipts": KEPT,
    "blobs": KEPT,
    "children": KEPT,
    "open": TURN,
    "asked": TURN,
    "text": TURN,
    "spawned": TURN,
    "arq:job": TURN,
    "draft": TTL,  # a starting history that is being staged: `log:<session>:<try>`, `blobs:<session>:<try>`
    "nonce": TTL,
    "swept": TTL,
    "check": TTL,
    "worker": TTL,
    "workers": TTL,
    "queue:wake": TTL,
    "queue:tick": TTL,
    "queue:promise": TTL,
    "claimed": TTL,
    "last": TTL,  # the turn that a worker runs on its last attempt
    "queue": PERMANENT,  # a zset that holds no job is no key; a turn's end takes its job out
    "queue:running": PERMANENT,
    "sessions": PERMANENT,  # a session leaves it after its retention, as it leaves the dead letters
    "dead": PERMANENT,
    "active": PERMANENT,
    "deadlines": PERMANENT,
    "clock": PERMANENT,  # the offset that only tests set
}
"""Every kind of key, and how it goes."""

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAMED: Final = re.compile(r"(.*?\{s\d+\}:)(.*)")
_OWNED: Final = re.compile(rf"(.*?\{{s(\d+)\}}:)[a-z]+:(\2-{_UUID})(?::.*)?")
_JOB: Final = re.compile(rf"arq:job:(\{{s(\d+)\}})(.*)(\2-{_UUID}):[^:]+:\d+")


def kind_of(key: str) -> str:
    """Return the kind of a key, as `FATES` names it."""
    if key.startswith("arq:"):
        return ":".join(key.split(":")[:2])
    named = _NAMED.fullmatch(key)
    name = named[2] if named else key
    kind = name.partition(":")[0]
    if kind == "queue" and (role := name.rpartition(":")[2]) in {"wake", "tick", "promise", "running"}:
        return f"queue:{role}"
    return "draft" if kind in {"log", "blobs"} and name.count(":") == 2 else kind


async def leaked_keys(client: aioredis.Redis, prefix: str) -> list[str]:
    """Return the keys of a prefix that would live for ever, or longer than they should."""
    keys = await keys_of(client, prefix)
    async with client.pipeline(transaction=False) as asking:
        for key in keys:
            asking.pttl(key)
        lasting = [key for key, ttl in zip(keys, await asking.execute(), strict=True) if ttl == -1]
        for key in lasting:
            asking.hmget(_session_key(key), ["status", "turn", "job", "wake", "retention"])
        states = await asking.execute()
    return sorted(key for key, state in zip(lasting, states, strict=True) if not _may_last(key, state))


async def keys_of(client: aioredis.Redis, prefix: str) -> list[str]:
    """Return every key of a prefix; arq's too, which begin otherwise."""
    named = [key.decode() async for key in client.scan_iter(match=f"*{prefix}*", count=1000)]
    return [key for key in named if key.startswith((prefix, "arq:"))]


def _session_key(key: str) -> str:
    """The session that a key belongs to; a key that is none's has a name that no key has."""
    if job := _JOB.fullmatch(key):
        return f"{job[3]}{job[1]}:session:{job[4]}"
    owned = _OWNED.fullmatch(key)
    return f"{owned[1]}session:{owned[3]}" if owned else "-"


def _may_last(key: str, state: Sequence[bytes | None]) -> bool:
    """Whether a key may be there without a TTL, its session being in this state."""
    fate = FATES.get(kind_of(key))
    if fate in (None, TTL, PERMANENT):
        return fate == PERMANENT
    status, turn, job, wake, retention = (value and value.decode() for value in state)
    if status is None:
        return False
    if fate == KEPT:
        return status != "terminated" or retention == ""
    if key.startswith("arq:"):
        return job in {"queued", "running"} and key.endswith(f":{turn}:{wake}")
    return turn != ""


async def drop_keys(client: aioredis.Redis, prefix: str) -> None:
    """Remove every key of a prefix."""
    if keys := await keys_of(client, prefix):
        await client.unlink(*keys)


def lasting_keys(url: str) -> set[str]:
    """Return every key of a server that has no TTL, with its database before it."""
    found = set()
    with redis.Redis.from_url(url) as client:
        for database in client.info("keyspace"):
            client.select(int(database.removeprefix("db")))
            lasting = [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]
            found |= {f"{database} {key.decode()}" for key in lasting}
    return found


async def expect_no_tasks() -> None:
    """Fail when tasks are pending that the test has not ended."""

    def pending() -> list[str]:
        current = asyncio.current_task()
        return [repr(task) for task in asyncio.all_tasks() if task is not current and not task.done()]

    await eventually(pending, "every task that the test started has ended", until=lambda left: not left, within=1.0)
