"""What one observer saw of a session, held against its stored log: nothing missed, doubled, invented or turned round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from broker.history_check import Finding, LogRecord, joined
from broker.protocol.entries import MessageEntry
from broker.protocol.events import EntryAdded, EntryCompleted, Event, SessionUpdated, TextDelta
from broker.protocol.wire import START, Position, decode, parse_cursor, parse_stream_id


def check_seen(
    seen: Sequence[Event],
    records: Sequence[LogRecord],
    *,
    after: Position | None = None,
    ended: bool = False,
    live: bool = False,
) -> list[Finding]:
    """Check what an observer saw, in its order, against the log as it was read afterwards.

    `after` is where it began (None: wherever its first event is), `ended`: it saw the session's end, so nothing may be missing up
    to there; a title that is changed later is for nobody who was there. Text that is shown while it is written is stored too:
    `live` says that the observer was there all the time and kept up, so that no delta was dropped.
    """
    if not seen:
        return []
    session_id = seen[0].session_id
    stored = {
        parse_stream_id(each.id): decode(session_id, parse_stream_id(each.id), dict(each.body))
        for each in joined(records)
    }
    places = [parse_cursor(event.session_id, event.id) for event in seen]
    findings = [*_order(seen, places), *_missed(places, stored, after, ended=ended), *_invented(seen, places, stored)]
    if live:
        findings += _texts(seen)
    return findings


def _order(seen: Sequence[Event], places: Sequence[Position]) -> Iterator[Finding]:
    for (before, event), (place, there) in zip(pairwise(seen), pairwise(places), strict=True):
        first_text = isinstance(before, EntryAdded) and isinstance(event, TextDelta)  # of one record, with one id
        if there == place and not first_text:
            yield Finding("seen_twice", event.id, f"The observer saw this {type(event).__name__} twice.")
        elif there < place:
            yield Finding("seen_order", event.id, f"The observer saw this {type(event).__name__} after {before.id}.")


def _missed(
    places: Sequence[Position], stored: dict[Position, tuple[Event, ...]], after: Position | None, *, ended: bool
) -> Iterator[Finding]:
    found = {place._replace(k=0) for place in places if not place.k}
    first = min(places)._replace(k=0) if after is None else after._replace(k=0)
    last = max(_end_of(stored), *places) if ended else max(places)
    for place, events in stored.items():
        if first < place <= last and place not in found:
            for event in events[:1]:
                yield Finding("seen_missed", event.id, f"The observer missed this {type(event).__name__}.")


def _end_of(stored: dict[Position, tuple[Event, ...]]) -> Position:
    """The place of the session's end; of its last event, if that is not there."""
    ends = (
        place
        for place, events in stored.items()
        if any(isinstance(event, SessionUpdated) and event.status == "terminated" for event in events)
    )
    return min(ends, default=max(stored, default=START))


def _invented(
    seen: Sequence[Event], places: Sequence[Position], stored: dict[Position, tuple[Event, ...]]
) -> Iterator[Finding]:
    added = {event.entry.id for events in stored.values() for event in events if isinstance(event, EntryAdded)}
    for event, place in zip(seen, places, strict=True):
        there, name = stored.get(place._replace(k=0)), type(event).__name__
        if there is None or (isinstance(event, TextDelta) and event.entry_id not in added):
            yield Finding("seen_unstored", event.id, f"The observer saw this {name}, and the log has nothing there.")
        elif not place.k and event not in there:
            other = type(there[0]).__name__ if there else "nothing"
            yield Finding(
                "seen_other", event.id, f"The observer saw this {name}, and the log has another event there: {other}."
            )


def _texts(seen: Sequence[Event]) -> Iterator[Finding]:
    """The text that a message was completed with is what was shown of it, from its start or from the start of a later try."""
    shown: dict[str, list[str]] = {}
    for event in seen:
        if isinstance(event, EntryAdded):
            shown[event.entry.id] = []
        elif isinstance(event, TextDelta):
            if event.entry_id in shown:
                shown[event.entry_id].append(event.text)
        elif isinstance(event, EntryCompleted) and isinstance(event.entry, MessageEntry):
            pieces, whole = shown.pop(event.entry.id, None), event.entry.text
            if pieces and whole not in {"".join(pieces[at:]) for at in range(len(pieces) + 1)}:
                yield Finding(
                    "seen_text", event.id, f"The observer saw other text of entry {event.entry.id} than is stored."
                )
