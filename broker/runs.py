"""The verbs of a run: what a worker does with a turn it has claimed. Each carries the run's fence, or is refused.

A write is numbered (`op`), so that a repeat after a lost reply gets the first one's answer; and says what it has seen, so that a
broker that lost writes is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from broker.broker import Broker
from broker.contents import Message
from broker.keys import new_id
from broker.protocol.wire import INLINE_LIMIT, tail
from broker.scripting import Argument
from broker.transitions import PROTOCOL, Raw, ms_of, pairs_of, session_key, words_of


@dataclass(frozen=True)
class SpawnCall:
    """The call in a parent's log that started a subagent: the entry of its result, and its tool_call_id."""

    entry: str
    call: str


@dataclass(frozen=True)
class Begun:
    """A run begins: which attempt it is, where the log ends, and the log's tail after `after`.

    That is what the worker had folded, or 0-0 when the log does not hold it any more. `agent` is the root's; `path` names the
    subagents below it, down to the one whose session this is; `spawned` is the spawn call in the parent that it answers.
    """

    attempt: int
    last: str
    inputs: bytes
    customization: bytes
    after: str
    agent: str
    path: tuple[str, ...]
    spawned: SpawnCall | None
    tail: list[Raw]


async def begin(
    broker: Broker,
    session_id: str,
    *,
    job: str,
    turn: str,
    wake: int,
    fence: str,
    worker: str,
    after: str,
    page: int,
    lease: float | None = None,
) -> Begun | Literal["dropped", "taken", "newer", "later", "dead"]:
    """Take a claimed job up: count the attempt, write the fence, read the log's first `page` records after `after`.

    With a `lease` (seconds) the job is claimed in the same call; `taken` when it is not in its queue any more.
    """
    reply = await broker.run(
        "begin",
        session_key(broker, session_id),
        sid=session_id,
        job=job,
        turn=turn,
        wake=wake,
        fence=fence,
        worker=worker,
        protocol=PROTOCOL,
        max_attempts=broker.settings.max_attempts,
        after=after,
        page=page,
        lease="" if lease is None else int(lease * 1000),
        progress=ms_of(broker.settings.no_progress),
    )
    match reply[0]:
        case b"begun":
            after, agent, path, entry, call = words_of(reply[5:10])
            spawned = SpawnCall(entry, call) if entry else None
            names = tuple(path.split("/")) if path else ()
            attempt, last = int(reply[1]), reply[2].decode()
            return Begun(attempt, last, reply[3], reply[4], after, agent, names, spawned, pairs_of(reply[10:]))
        case b"taken":
            return "taken"
        case b"newer":
            return "newer"
        case b"later":
            return "later"
        case b"dead":
            return "dead"
        case _:
            return "dropped"


class Superseded(Exception):  # noqa: N818 - a state of affairs, not a fault: the run stops quietly
    """The run's fence no longer stands: another run holds the turn, or it has ended. Nothing was written."""


class Gap(Exception):  # noqa: N818 - the broker lost writes: drop the fold and reload
    """The log no longer holds what this run has seen."""


@dataclass(frozen=True)
class Write:
    """One write of a run: its fence, its number, the last stored id it has folded; past `until` (monotonic) it is not sent."""

    session_id: str
    fence: str
    op: int
    seen: str
    until: float | None = None


def _fenced(reply: list[Any]) -> list[str]:
    words = words_of(reply)
    if words[0] in ("superseded", "late"):
        raise Superseded
    if words[0] == "gap":
        raise Gap
    return words


async def append(broker: Broker, write: Write, effects: Sequence[Argument], *, budget: float) -> tuple[int, str]:
    """Apply effects (`scripts/include/effects.lua`); return the position of the first event and the last stored id."""
    words = _fenced(
        await broker.run(
            "append",
            session_key(broker, write.session_id),
            effects,
            write.until,
            budget=budget,
            sid=write.session_id,
            fence=write.fence,
            op=write.op,
            seen=write.seen,
            expires=ms_of(broker.settings.callback_timeout),
        )
    )
    return int(words[1]), words[2]


async def park(broker: Broker, write: Write, *, budget: float) -> bool:
    """Park the turn; False when there is news after `write.seen`. Raises `Superseded`, `Gap`."""
    words = _fenced(
        await broker.run(
            "park",
            session_key(broker, write.session_id),
            (),
            write.until,
            budget=budget,
            sid=write.session_id,
            fence=write.fence,
            op=write.op,
            seen=write.seen,
        )
    )
    return words[0] == "parked"


@dataclass(frozen=True, kw_only=True)
class Child:
    """A subagent to start: its name and path, its task, and what its parent's log gets when its turn is cut."""

    session_id: str
    turn_id: str
    agent: str
    path: Sequence[str]
    customization: bytes
    call: SpawnCall
    cut: bytes
    task: Message


async def spawn(
    broker: Broker, write: Write, child: Child, effects: Sequence[Argument], *, limit: int, budget: float
) -> tuple[int, str] | None:
    """Start a subagent's session and turn, with effects on the parent; return as `append`. None: `limit` children run already.

    Raises as `append`, and `SessionBusyError` when the broker has no memory for new work.
    """
    words = _fenced(
        await broker.run(
            "spawn",
            session_key(broker, write.session_id),
            [*effects, *child.task.values()],
            write.until,
            budget=budget,
            sid=write.session_id,
            fence=write.fence,
            op=write.op,
            seen=write.seen,
            child=child.session_id,
            turn=child.turn_id,
            agent=child.agent,
            path="/".join(child.path),
            customization=child.customization,
            entry=child.call.entry,
            call=child.call.call,
            cut=child.cut,
            limit=limit,
            preview=child.task.preview,
            effects=len(effects),
        )
    )
    return (int(words[1]), words[2]) if words[0] == "ok" else None


async def finish(
    broker: Broker,
    write: Write,
    ended: bytes,
    effects: Sequence[Argument] = (),
    *,
    report: bytes = b"",
    budget: float,
) -> bool:
    """End the turn with its TurnEnded tail; False when there is news after `write.seen` ('' = ends all the same).

    `report` is, of a subagent, the completed tail of its spawn call's result.
    """
    blob, body = "", b""
    if len(report) > INLINE_LIMIT:
        blob, body = new_id(), report
        report = tail({"type": "entryCompleted", "blob": blob})
    words = _fenced(
        await broker.run(
            "finish",
            session_key(broker, write.session_id),
            effects,
            write.until,
            budget=budget,
            sid=write.session_id,
            fence=write.fence,
            op=write.op,
            seen=write.seen,
            ended=ended,
            report=report,
            blob=blob,
            body=body,
        )
    )
    return words[0] == "finished"


async def release(broker: Broker, session_id: str, fence: str, *, budget: float) -> bool:
    """Hand a turn back to its queue; False, and nothing happens, when the fence no longer stands."""
    reply = await broker.run("release", session_key(broker, session_id), budget=budget, sid=session_id, fence=fence)
    return bool(reply[0] == b"released")
