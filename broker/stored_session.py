"""Sessions as they are stored, read whole: their logs with all that is private, and their own fields beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from broker.blobs import read_records
from broker.broker import Broker
from broker.history_check import Finding, LogRecord, check_history
from broker.transitions import Raw, no_session, session_key

_PAGE = 500


@dataclass(frozen=True, kw_only=True)
class StoredSession:
    """A session's log up to `last`, and the turn that was active then. `spawned_by` is a subagent's place in its parent's log."""

    session_id: str
    records: tuple[LogRecord, ...]
    last: str
    active: str | None
    children: tuple[str, ...]
    spawned_by: str | None = None

    @property
    def turns(self) -> tuple[str, ...]:
        """The turns that have started, in order."""
        return tuple(each.body.get("turnId", "") for each in self.records if each.body.get("type") == "turnStarted")


def _unread(session_id: str) -> str:
    return f"Session {session_id}: its log could not be read"


async def read_log(broker: Broker, session_id: str, first: str, last: str) -> list[LogRecord]:
    """Read a log from one id to another, both too. Raises `BrokerUnavailableError`."""
    log, records, complete = broker.keys.of("log", session_id), list[LogRecord](), False
    while not complete:
        (page,) = await broker.read(("XRANGE", log, first, last, "COUNT", _PAGE), said=_unread(session_id))
        runs = {at.decode(): b"".join(more[3:4]).decode() for at, more in page}
        for at, body in await _bodies(broker, session_id, [Raw(at.decode(), more[1]) for at, more in page]):
            records.append(LogRecord(at, body, runs[at]))
        complete = len(page) < _PAGE
        first = first if complete else f"({records[-1].id}"
    return records


async def _bodies(broker: Broker, session_id: str, page: Sequence[Raw]) -> list[tuple[str, dict[str, Any]]]:
    """Read records; of those that are none, {}: the checker says so."""
    try:
        return await read_records(broker, session_id, page)
    except (ValueError, AttributeError):  # no JSON, or no object
        if len(page) == 1:
            return [(page[0].id, {})]
        return [(await _bodies(broker, session_id, [raw]))[0] for raw in page]


async def read_stored(broker: Broker, session_id: str) -> StoredSession:
    """Read a session's log to where its fields say that it ends. Raises `SessionNotFoundError`, `BrokerUnavailableError`."""
    key = session_key(broker, session_id)
    # One after the other: what is appended meanwhile lies behind `last`, and is left for the next reader.
    fields, below = await broker.read(
        ("HMGET", key, "n", "ms", "turn", "spawn_entry"),
        ("ZREVRANGE", broker.keys.of("children", session_id), 0, -1),
        said=_unread(session_id),
    )
    n, ms, turn, entry = (None if field is None else field.decode() for field in fields)
    if n is None:
        raise no_session(session_id)
    return StoredSession(
        session_id=session_id,
        records=tuple(await read_log(broker, session_id, "-", f"{n}-{ms}")),
        last=f"{n}-{ms}",
        active=turn or None,
        children=tuple(child.decode() for child in reversed(below)),
        spawned_by=entry or None,
    )


async def read_tree(broker: Broker, session_id: str) -> list[StoredSession]:
    """Read a session and the subagents' below it, each before its own children. Raises as `read_stored`.

    Children are read before their parent: what they reported to it is then in its log.
    """
    session_key(broker, session_id)  # an id that no session can have is said
    listed = ("ZREVRANGE", broker.keys.of("children", session_id), 0, -1)
    (below,) = await broker.read(listed, said=f"Session {session_id}: its subagents could not be read")
    trees = [await read_tree(broker, child.decode()) for child in reversed(below)]
    return [await read_stored(broker, session_id), *(each for tree in trees for each in tree)]


def check_tree(tree: Sequence[StoredSession]) -> list[tuple[StoredSession, list[Finding]]]:
    """Check sessions that were read together, with what subagents owe their parents; return each with its findings."""
    reports = {
        each.session_id: each.spawned_by
        for each in tree
        if each.spawned_by is not None and each.turns and each.active is None
    }
    return [
        (
            each,
            check_history(
                each.records,
                active=each.active,
                last=each.last,
                reports=[reports[child] for child in each.children if child in reports],
            ),
        )
        for each in tree
    ]
