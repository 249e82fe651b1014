"""The queue: jobs by due time, claimed ones by lease deadline. What arq stores for a job is known here and in its Lua twin.

A job id is `{s<n>}<prefix><session>:<turn>:<wake>`; an id is enqueued and claimed once in its life. Enqueueing is part of the
transitions (`scripts/include/enqueue.lua`), never arq's `enqueue_job`: when the connection drops at EXEC, that reports
"duplicate" for a job that is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from broker.broker import Broker
from broker.keys import new_id
from broker.pipeline import Refused

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_JOB_ID: Final = re.compile(rf"\{{s(\d+)\}}.*?(\1-{_UUID}):({_UUID}):(\d+)")
"""The tag's shard begins the session's id: that tells where a prefix ends, whatever it ends with."""


TOKEN_MS: Final = 60_000
"""How long wake tokens live, as `scripts/include/enqueue.lua` has it too."""


class BadJobError(ValueError):
    """A job id or body that this deployment did not write."""


@dataclass(frozen=True)
class Job:
    """A claimed job: its id, the function arq knows, and the turn's wake that it stands for."""

    id: str
    function: str
    session_id: str
    turn_id: str
    wake: int


def read_job(job_id: str, body: bytes) -> Job:
    """Return the job of an id and its stored body. Raises `BadJobError` naming the id."""
    match = _JOB_ID.fullmatch(job_id)
    try:
        function, arguments = (loaded := orjson.loads(body))["f"], loaded["a"][:2]
    except (ValueError, KeyError, TypeError) as bad:
        raise BadJobError(f"job {job_id}: its body is not one of ours") from bad
    if match is None or arguments != [match[2], match[3]]:
        raise BadJobError(f"job {job_id}: its id and its body name different turns")
    return Job(job_id, function, match[2], match[3], int(match[4]))


def named_job(job_id: str) -> Job:
    """Return the job that an id names, as its body has it when it is ours. Raises `BadJobError` naming the id."""
    match = _JOB_ID.fullmatch(job_id)
    if match is None:
        raise BadJobError(f"job {job_id}: this is no job id of ours")
    return Job(job_id, "run_turn", match[2], match[3], int(match[4]))


def dumps(value: Any) -> bytes:
    """Arq's job serializer: JSON, never pickle. What JSON cannot hold becomes its `repr`."""
    return orjson.dumps(value, default=repr)


def loads(body: bytes) -> Any:
    """Arq's job deserializer."""
    return orjson.loads(body)


@dataclass(frozen=True)
class Claimed:
    """What a claim gave: raw jobs (id, body), and seconds until the next one or the next lapse is due (None: none is)."""

    jobs: list[tuple[str, bytes]]
    wait: float | None


async def claim(
    broker: Broker, queue: str, *, worker: str, slots: int, lease: float, budget: float, nonce: str | None = None
) -> Claimed:
    """Claim up to `slots` due jobs under a lease (seconds), and put lapsed ones back.

    With the `nonce` of a claim that was not answered, within a lease, it gives what that one did.
    """
    reply = await broker.run(
        "claim", queue, budget=budget, worker=worker, nonce=nonce or new_id(), slots=slots, lease=int(lease * 1000)
    )
    wait, flat = int(reply[0]), iter(reply[1:])
    return Claimed(
        [(job.decode(), body) for job, body in zip(flat, flat, strict=True)], None if wait < 0 else wait / 1000
    )


async def renew(
    broker: Broker, queue: str, jobs: Sequence[str], *, worker: str, agent: str, slots: int, version: str, budget: float
) -> dict[str, str]:
    """Renew the leases of `jobs`, register the worker; return the jobs it holds no longer, each with why: lost or ended.

    With 0 slots it takes nothing more, and is not registered.
    """
    reply = await broker.run(
        "renew",
        queue,
        jobs,
        budget=budget,
        worker=worker,
        agent=agent,
        lease=int(broker.settings.lease * 1000),
        slots=slots,
        version=version,
    )
    words = iter(word.decode() for word in reply)
    return dict(zip(words, words, strict=True))


async def leave(broker: Broker, queue: str, *, worker: str, agent: str, budget: float) -> None:
    """Take the worker out of the listing of those that serve `agent`."""
    await broker.run("leave", queue, budget=budget, worker=worker, agent=agent)


async def hand_on(broker: Broker, wake: str, job_id: str) -> None:
    """Give a wake token back for another worker to take, to live as long as a new one.

    A token is only a hint: where a full broker refuses it, workers find the job when they look at the queue.
    """
    with contextlib.suppress(Refused):
        await asyncio.gather(
            broker.commands.command("LPUSH", wake, job_id), broker.commands.command("PEXPIRE", wake, TOKEN_MS)
        )


async def sweep(broker: Broker, shard: int) -> int:
    """Put turns back that are active and neither queued, running nor parked; return how many. Safe to run twice."""
    page, offset, back = 100, 0, 0
    key = broker.keys.base(shard) + "active"
    while True:
        seen, forgotten, put_back = (int(word) for word in await broker.run("sweep", key, offset=offset, page=page))
        back += put_back
        offset += page - forgotten
        if seen < page:
            return back
