"""Reading a session's log: in pages bounded by count and bytes, from a checked cursor, over the catch-up connection.

Event N is stored under `N-<ms>`, so one read tells whether a cursor still holds: the log either goes on from that very
id, or ends before it (ahead), begins after it (below the floor), or has N with another time (overwritten after a
restore). A broker that is away loses nothing: reads are repeated with back-off until a budget is used up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from broker.broker import Broker
from broker.protocol.errors import (
    InvalidCursorError,
    ObservationLost,
)
from broker.protocol.events import Event
from broker.protocol.values import dumps, loads
from broker.protocol.wire import START, Position, decode, format_cursor, is_beside, merge_blob, parse_stream_id
from broker.scripting import Argument
from broker.transitions import Raw, no_session, session_key

PAGE: Final = 150
"""Records read at once: few enough not to hold the event loop, enough to make the round trip cheap."""

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of records and blobs after which a page ends early."""

_EVERY: Final = 9_999_999_999_999


class Stored(NamedTuple):
    """What one record, stored or only published, became: its place, its events (one or two), its size in bytes."""

    position: Position
    events: tuple[Event, ...]
    size: int


@dataclass(frozen=True)
class Page:
    """A page of the log; `last` is the session's last position when it was read, `complete`: the page got there."""

    records: list[Stored]
    last: Position
    terminated: bool
    complete: bool


async def _ask(broker: Broker, session_id: str, *commands: tuple[Argument, ...], budget: float | None) -> list[Any]:
    """Send read commands in one round trip; while the broker is away, again, for `budget` seconds."""
    allowed = broker.settings.reconnect_budget if budget is None else budget
    return await broker.read(*commands, budget=allowed, said=f"Session {session_id}: its log could not be read")


def _raws(reply: Any) -> list[Raw]:
    return [Raw(place.decode(), fields[1]) for place, fields in reply]


def decode_records(session_id: str, records: Sequence[tuple[Position, dict[str, Any], int]]) -> list[Stored]:
    """Return the events of records that follow one another; an entry that lies beside is taken from the next one."""
    stored = []
    for at, (position, record, size) in enumerate(records):
        if is_beside(record) and at + 1 < len(records):
            record["entry"] = records[at + 1][1].get("entry")
        stored.append(Stored(position, decode(session_id, position, record), size))
    return stored


async def _whole(
    broker: Broker, session_id: str, raws: Sequence[Raw], budget: float | None
) -> list[tuple[Position, dict[str, Any], int]]:
    """Parse records and put blobs in; stops after `PAGE_BYTES`, but never between an entry and what lies beside it."""
    records: list[tuple[Position, dict[str, Any], int]] = []
    total, beside = 0, False
    for raw in raws:
        if total > PAGE_BYTES and not beside:
            break
        record: dict[str, Any] = loads(raw.body)
        size = len(raw.body)
        if (name := record.get("blob")) is not None:
            (blob,) = await _ask(broker, session_id, ("HGET", broker.keys.of("blobs", session_id), name), budget=budget)
            if blob is not None:  # one that is gone leaves its record as it is: an unknown event
                record = merge_blob(record, blob)
                size += len(blob)
        beside = is_beside(record)
        total += size
        records.append((parse_stream_id(raw.id), record, size))
    return records


async def _with_neighbour(broker: Broker, session_id: str, raws: list[Raw], budget: float | None) -> list[Raw]:
    """Add the record beside the last one when that needs it: both were one append."""
    if raws and is_beside(loads(raws[-1].body)):
        key = broker.keys.of("log", session_id)
        (reply,) = await _ask(broker, session_id, ("XRANGE", key, f"({raws[-1].id}", "+", "COUNT", 1), budget=budget)
        raws.extend(_raws(reply))
    return raws


async def read_page(
    broker: Broker, session_id: str, after: Position | None, count: int = PAGE, *, budget: float | None = None
) -> Page:
    """Read up to `count` records after a position (None or 0-0: from the start; a delta's: after its event).

    Raises `SessionNotFoundError`; `InvalidCursorError` for a position ahead of the log; `ObservationLost`, with the
    cursor to go on from, for one that is below its floor or overwritten; `BrokerUnavailableError` when the broker
    stayed away for `budget` seconds (default: the setting `reconnect_budget`).
    """
    key, log = session_key(broker, session_id), broker.keys.of("log", session_id)
    place = after or START
    known = place.n > 0
    first, more = (place.stream_id, 1) if known else ("-", 0)
    # The session first: what is appended between the two makes the page longer than `last`, never shorter.
    session, reply = await _ask(
        broker,
        session_id,
        ("HMGET", key, "n", "ms", "status"),
        ("XRANGE", log, first, "+", "COUNT", count + more),
        budget=budget,
    )
    if session[0] is None:
        raise no_session(session_id)
    last = Position(int(session[0]), int(session[1]))
    raws = _raws(reply)
    if known:
        if not raws or raws[0].id != place.stream_id:
            raise await _explain(broker, session_id, place, last, budget)
        raws = raws[1:]
    full = len(raws) >= count
    raws = await _with_neighbour(broker, session_id, raws, budget)
    records = await _whole(broker, session_id, raws, budget)
    complete = not full and len(records) == len(raws)
    return Page(decode_records(session_id, records), last, session[2] == b"terminated", complete)


async def _stored_at(broker: Broker, session_id: str, n: int, budget: float | None) -> Position | None:
    log = broker.keys.of("log", session_id)
    (reply,) = await _ask(broker, session_id, ("XRANGE", log, f"{n}-0", f"{n}-{_EVERY}", "COUNT", 1), budget=budget)
    return parse_stream_id(reply[0][0].decode()) if reply else None


async def _explain(
    broker: Broker, session_id: str, place: Position, last: Position, budget: float | None
) -> InvalidCursorError | ObservationLost:
    """Say why the log does not hold a position."""
    cursor = format_cursor(session_id, place)
    if place.n > last.n:
        return InvalidCursorError(
            f"{cursor} is ahead of the session's log, which ends at {last.stream_id}. A broker restored from an older "
            f"copy looks the same: read the session again from {format_cursor(session_id, last)}."
        )
    if await _stored_at(broker, session_id, place.n, budget) is None:
        log = broker.keys.of("log", session_id)
        (left,) = await _ask(broker, session_id, ("XRANGE", log, "-", "+", "COUNT", 1), budget=budget)
        first = f"begins with {left[0][0].decode()}" if left else "is empty"
        return ObservationLost(
            f"Session {session_id}: the log no longer holds event {place.stream_id}, it {first}; go on with what is left of it.",
            format_cursor(session_id, START),
        )
    common = await common_position(broker, session_id, place, last, budget=budget)
    return ObservationLost(
        f"Session {session_id}: event {place.n} was overwritten, as after a restore or a failover that lost writes; "
        f"go on from {common.stream_id}, the last event that both histories share.",
        format_cursor(session_id, common),
    )


async def common_position(
    broker: Broker, session_id: str, place: Position, last: Position, *, budget: float | None = None
) -> Position:
    """Return the last stored event that the log still shares with a history that held `place`.

    Times never go back, and what replaced lost events was stored later than they were: so it is the last event before
    `place` whose time is not later than `place`'s. `START` when that rule is seen to fail, or the log shares nothing.
    """
    low, high, common = 1, last.n, START
    if place.n <= last.n:
        instead = await _stored_at(broker, session_id, place.n, budget)
        if instead is not None and instead.ms <= place.ms:
            return START  # the new server's clock is behind the old one's
        high = place.n - 1
    while low <= high:
        middle = (low + high) // 2
        found = await _stored_at(broker, session_id, middle, budget)
        if found is None:  # below the floor
            low = middle + 1
        elif found.ms <= place.ms:
            common, low = found, middle + 1
        else:
            high = middle - 1
    return common


async def read_events(broker: Broker, session_id: str, after: Position | None = None) -> AsyncIterator[Event]:
    """Yield the stored events after a position, up to the end that the log has by then. Raises as `read_page`."""
    while True:
        page = await read_page(broker, session_id, after)
        for record in page.records:
            after = record.position
            for event in record.events:
                yield event
        if page.complete:
            return


async def read_raw(
    broker: Broker, session_id: str, after_id: str, count: int = PAGE, *, budget: float | None = None
) -> list[Raw]:
    """Read up to `count` stored records (one more where an entry lies beside the last) after an id, blobs put in.

    The id is not checked: whoever folds a log is told of lost writes by its fence. Raises `BrokerUnavailableError`.
    """
    log = broker.keys.of("log", session_id)
    (reply,) = await _ask(broker, session_id, ("XRANGE", log, f"({after_id}", "+", "COUNT", count), budget=budget)
    raws = []
    for raw in await _with_neighbour(broker, session_id, _raws(reply), budget):
        whole = raw
        if b'"blob":' in raw.body:
            (_, record, _) = (await _whole(broker, session_id, [raw], budget))[0]
            whole = Raw(raw.id, dumps(record))
        raws.append(whole)
    return raws
