"""Listings: sessions of a deployment, and what is known of one."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from api_shim.arguments import check_limit
from api_shim.local import Host, current_host, place_of
from broker.broker import Broker
from broker.dead_letters import DeadLetter, list_letters
from broker.log import read_events
from broker.protocol.entries import HistoryEntry
from broker.protocol.events import EntryCompleted
from broker.protocol.values import clean_text, loads
from broker.protocol.wire import Position, parse_stream_id
from broker.transitions import no_session, session_key

_PAGE = 100


@dataclass(frozen=True, kw_only=True)
class SessionInfo:
    """What a listing tells of a session. `preview` is the start of its first message; `termination` how it ended, or None."""

    __match_args__ = (
        "id", "agent_name", "title", "status", "archived", "parent_id", "root_id", "preview", "termination",
        "created_at", "updated_at",
    )  # fmt: skip
    id: str
    agent_name: str
    title: str | None
    status: str
    archived: bool
    parent_id: str | None
    root_id: str
    preview: str | None
    termination: str | None
    created_at: datetime
    updated_at: datetime


def _time(ms: bytes) -> datetime:
    return datetime.fromtimestamp(int(ms) / 1000, UTC)


def _unanswered(session_id: str) -> str:
    return f"Session {session_id}: the broker did not answer"


async def _info(broker: Broker, session_id: str) -> SessionInfo | None:
    (flat,) = await broker.read(("HGETALL", session_key(broker, session_id)), said=_unanswered(session_id))
    held: dict[str, bytes] = {key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}
    if "status" not in held:
        return None
    status = held["status"].decode()
    parent = held.get("parent", b"").decode()
    return SessionInfo(
        id=session_id,
        agent_name=held["agent"].decode(),
        title=loads(held["title"]),
        status=status,
        archived=held["archived"] == b"true",
        parent_id=parent or None,
        root_id=held.get("root", b"").decode() or session_id,
        preview=loads(held["preview"]) if held.get("preview") else None,
        termination=held.get("termination", b"ended").decode() if status == "terminated" else None,
        created_at=_time(held["created"]),
        updated_at=_time(held["updated"]),
    )


async def read_info(broker: Broker, session_id: str) -> SessionInfo:
    """Return what is known of a session. Raises `SessionNotFoundError`."""
    info = await _info(broker, session_id)
    if info is None:
        raise no_session(session_id)
    return info


async def read_turn_ids(broker: Broker, session_id: str) -> list[str]:
    """Return the ids of a session's turns, oldest first. Raises `SessionNotFoundError`."""
    await read_info(broker, session_id)
    (flat,) = await broker.read(("HGETALL", broker.keys.of("turns", session_id)), said=_unanswered(session_id))
    pairs = zip(flat[::2], flat[1::2], strict=True)
    first = {turn.decode(): parse_stream_id(places.decode().split(" ")[0]) for turn, places in pairs}
    return sorted(first, key=lambda turn: first[turn])


async def read_history(
    broker: Broker, session_id: str, after: Position | None, limit: int | None
) -> AsyncGenerator[HistoryEntry, None]:
    """Yield a session's complete entries after a position, at most `limit`."""
    left = limit
    async for event in read_events(broker, session_id, after):
        if left is not None and left <= 0:
            return
        if isinstance(event, EntryCompleted):
            yield event.entry
            left = None if left is None else left - 1


async def children_of(broker: Broker, session_id: str) -> list[str]:
    """Return the ids of a session's direct subagents' sessions, newest first. Raises `SessionNotFoundError`."""
    await read_info(broker, session_id)
    listed = ("ZREVRANGE", broker.keys.of("children", session_id), 0, -1)
    (found,) = await broker.read(listed, said=_unanswered(session_id))
    return [child.decode() for child in found]


async def list_dead_letters(*, host: Host = None, limit: int | None = None) -> AsyncIterator[DeadLetter]:
    """Yield the turns in the dead letters, those that died last first. `host` None: where this process runs.

    `turn.retry()` gives one another chance.
    """
    check_limit(limit)
    place = place_of(host or current_host())
    await place.ready()
    left = limit
    async with contextlib.aclosing(list_letters(place.broker)) as letters:
        async for letter in letters:
            if left is not None and left <= 0:
                return
            left = None if left is None else left - 1
            yield letter


async def _of_shard(broker: Broker, key: str) -> AsyncGenerator[tuple[float, str], None]:
    """Session ids of one shard's listing, newest first. Pages are by score, so that new sessions shift nothing."""
    before, seen = "+inf", set[str]()
    while True:
        # `seen`: those of the last score, which the next page begins with; there may be more of them than one page holds.
        found = ("ZREVRANGEBYSCORE", key, before, "-inf", "WITHSCORES", "LIMIT", 0, len(seen) + _PAGE)
        (page,) = await broker.read(found, said="Listing sessions: the broker did not answer")
        scored = zip(page[::2], page[1::2], strict=True)
        fresh = [(float(score), sid.decode()) for sid, score in scored if sid.decode() not in seen]
        if not fresh:
            return
        for score, sid in fresh:
            yield -score, sid
        last = format(fresh[-1][0], ".0f")
        seen = {sid for score, sid in fresh if score == fresh[-1][0]} | (seen if last == before else set())
        before = last


async def list_sessions(
    *,
    host: Host = None,
    scope: Literal["roots", "children", "tree"] = "roots",
    root: str | None = None,
    parent: str | None = None,
    status: str | None = None,
    agent_name: str | None = None,
    archived: bool = False,
    limit: int | None = None,
) -> AsyncIterator[SessionInfo]:
    """Yield sessions, newest first, read page by page as they are asked for. `host` None: where this process runs.

    Scope `"roots"` leaves subagents' sessions out; `"children"` gives those of `parent`, `"tree"` `root` and all below it,
    which are read together.
    """
    check_limit(limit)
    if scope not in ("roots", "children", "tree"):
        raise ValueError(f"scope must be 'roots', 'children' or 'tree', not {scope!r}")
    if status not in (None, "running", "waiting", "terminated"):
        raise ValueError(f"status must be 'running', 'waiting', 'terminated' or None, not {status!r}")
    agent_name = None if agent_name is None else clean_text(agent_name)
    if scope == "children" and parent is None:
        raise ValueError("scope='children' needs parent=, the session whose subagents are listed")
    if scope == "tree" and root is None:
        raise ValueError("scope='tree' needs root=, the session whose tree is listed")
    place = place_of(host or current_host())
    await place.ready()
    left = limit
    async for info in _found(place.broker, scope, root=root, parent=parent, agent_name=agent_name):
        if left is not None and left <= 0:
            return
        if info.archived is not archived or (status is not None and info.status != status):
            continue
        if agent_name is not None and info.agent_name != agent_name:
            continue
        if left is not None:
            left -= 1
        yield info


async def _found(
    broker: Broker, scope: str, *, root: str | None, parent: str | None, agent_name: str | None
) -> AsyncGenerator[SessionInfo, None]:
    if scope == "roots":
        suffix = f":{agent_name}" if agent_name is not None else ""
        shards = [_of_shard(broker, f"{broker.keys.base(n)}sessions{suffix}") for n in range(broker.settings.shards)]
        async for _, session_id in _merged(shards):
            if (info := await _info(broker, session_id)) is not None and info.parent_id is None:
                yield info
        return
    if scope == "children":
        for child in await children_of(broker, parent or ""):
            if (info := await _info(broker, child)) is not None:
                yield info
        return
    for info in sorted(await _tree(broker, root or ""), key=lambda each: each.created_at, reverse=True):
        yield info


async def _tree(broker: Broker, root: str) -> list[SessionInfo]:
    """A session and all below it, a parent after its children: which of one level is newer, the listing of children tells."""
    above = await _info(broker, root)
    below = [info for child in await children_of(broker, root) for info in await _tree(broker, child)]
    return below if above is None else [*below, above]


async def _merged(
    listings: list[AsyncGenerator[tuple[float, str], None]],
) -> AsyncGenerator[tuple[float, str], None]:
    """Merge listings that are each in order."""
    heads: list[tuple[float, str, int]] = []
    for at, listing in enumerate(listings):
        async for head in listing:
            heapq.heappush(heads, (*head, at))
            break
    while heads:
        score, session_id, at = heapq.heappop(heads)
        yield score, session_id
        async for head in listings[at]:
            heapq.heappush(heads, (*head, at))
            break
