"""A stored record, and the events it becomes.

```
stream  ts:{s0}:log:<session>          entry id   N-<ms>    N: position 1, 2, 3, …   ms: server time, never going back
field   e   {"turnId":"…",             absent when the event names no turn
             "type":"entryAdded",      then the type's own fields, camelCase:
             "entry":{…},                entryAdded, entryCompleted {entry}    turnStarted {}    turnUpdated {status}
                                         turnEnded {state}    callbackOpened {callback}    callbackResolved {callbackId}
                                         sessionUpdated {status, title, archived}
                                         notice {message, level, source, details}
             "private":{…}}            for the engine alone: decisions, answers, usage
field   r   0a1b2c:7                   the run that wrote it, for the history checker: its fence's first 6 characters, and
                                       its number; empty, or absent, for what no run wrote into its own session

an entry added complete, stored once   N    {"type":"entryAdded","beside":true}     its body is in the next record
                                       N+1  {"type":"entryCompleted","entry":{…}}
a message being written, first text    N    {"type":"entryAdded","delta":true,"entry":{…}}      two events with one id
a body over 64 KiB                     N    {"type":"…","blob":"<id>"}              the rest lies in blobs:<session>
a delta, published only                N-<ms>.<k>  {"type":"textDelta","entryId":"…","text":"…"}
a subagent's callback, so too           N-<ms>.<k>  {"type":"nudge"}     no event: whoever waits here looks

public cursor   <session>:<N>-<ms>     or, of a delta,  <session>:<N>-<ms>.<k>
```

Python builds a **tail**: a record without `turnId` and without its opening brace. Scripts put what comes before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from broker.protocol.callbacks import callback_from_wire
from broker.protocol.entries import HistoryEntry, entry_from_wire
from broker.protocol.errors import InvalidCursorError
from broker.protocol.events import (
    CallbackOpened,
    CallbackResolved,
    EntryAdded,
    EntryCompleted,
    Event,
    Notice,
    SessionUpdated,
    TextDelta,
    TurnEnded,
    TurnStarted,
    TurnUpdated,
    UnknownEvent,
)
from broker.protocol.records import state_from_wire
from broker.protocol.values import JsonValue, UnknownValue, dumps, loads

INLINE_LIMIT: Final = 64 * 1024
"""Bytes of a body that stays in the stream; a larger one is a blob."""

_CURSOR: Final = re.compile(r"(0|[1-9][0-9]{0,14})-(0|[1-9][0-9]{0,14})(?:\.([1-9][0-9]{0,11}))?")


class Position(NamedTuple):
    """A place in a session's log: after event `n`, stored at `ms`; `k` counts what was published since."""

    n: int
    ms: int
    k: int = 0

    @property
    def stream_id(self) -> str:
        """The stored event's id in the stream."""
        return f"{self.n}-{self.ms}"


START: Final = Position(0, 0)


def parse_stream_id(stream_id: str) -> Position:
    """Return the position of an id in the stream, or of one with a count."""
    n, _, rest = stream_id.partition("-")
    ms, _, k = rest.partition(".")
    return Position(int(n), int(ms), int(k or 0))


def format_cursor(session_id: str, position: Position) -> str:
    """Return the public cursor of a position."""
    count = f".{position.k}" if position.k else ""
    return f"{session_id}:{position.n}-{position.ms}{count}"


def parse_cursor(session_id: str, cursor: str) -> Position:
    """Return the position of a cursor. Raises `InvalidCursorError` for one that is malformed or of another session."""
    of, _, place = cursor.rpartition(":")
    match = _CURSOR.fullmatch(place)
    if match is None or not of:
        raise InvalidCursorError(f"{cursor!r} is no cursor of session {session_id}: pass an event's id or a record.")
    if of != session_id:
        raise InvalidCursorError(f"{cursor!r} is a cursor of another session than {session_id}.")
    return Position(int(match[1]), int(match[2]), int(match[3] or 0))


def tail(record: dict[str, JsonValue]) -> bytes:
    """Return the tail of a record. Raises `ValueError` naming the place of what JSON cannot hold."""
    return dumps(record)[1:]


def entry_tail(kind: str, entry: dict[str, JsonValue], **more: JsonValue) -> bytes:
    """Return the tail of `entryAdded` or `entryCompleted`."""
    return tail({"type": kind, **more, "entry": entry})


def resolved_tail(callback_id: str, outcome: str, answer: dict[str, JsonValue] | None = None) -> bytes:
    """Return the tail of `callbackResolved`, with what was answered among its private fields."""
    private: dict[str, JsonValue] = {"outcome": outcome}
    if answer is not None:
        private["answer"] = answer
    return tail({"type": "callbackResolved", "callbackId": callback_id, "private": private})


def merge_blob(record: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """Return a record whose body was kept as a blob, whole again."""
    whole: dict[str, Any] = loads(b"{" + blob)
    if (turn := record.get("turnId")) is not None:
        whole["turnId"] = turn
    if "private" in record:
        whole["private"] = record["private"]
    return whole


def is_beside(record: Mapping[str, Any]) -> bool:
    """Whether the record's entry is in the next record."""
    return record.get("beside") is True


def _known(value: Any, known: tuple[str, ...]) -> Any:
    return value if value in known else UnknownValue(str(value))


_Decoder = Callable[[dict[str, Any], dict[str, Any]], tuple[Event, ...]]


def _turn_started(_raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    return (TurnStarted(**common),)


def _turn_updated(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    common["turn_id"] = raw["turnId"]  # always names its turn, else it is not this event
    return (TurnUpdated(**common, status=_known(raw["status"], ("running", "blocked", "terminated"))),)


def _turn_ended(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    # The SessionUpdated of the same append comes next, and has the same time.
    of, _, place = common["id"].rpartition(":")
    end = parse_stream_id(place)
    cursor = format_cursor(of, Position(end.n + 1, end.ms))
    state = state_from_wire(raw["state"], session_id=common["session_id"], turn_id=common["turn_id"], cursor=cursor)
    return (TurnEnded(**common, state=state),)


def _callback_opened(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    callback = callback_from_wire(raw["callback"], common["session_id"], common["turn_id"])
    return (CallbackOpened(**common, callback=callback),)


def _callback_resolved(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    return (CallbackResolved(**common, callback_id=raw["callbackId"]),)


def _session_updated(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    common["turn_id"] = None
    status = _known(raw["status"], ("running", "waiting", "terminated"))
    return (SessionUpdated(**common, status=status, title=raw.get("title"), archived=bool(raw.get("archived"))),)


def _notice(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    level = _known(raw["level"], ("info", "warning", "error"))
    notice = Notice(**common, message=raw["message"], level=level, source=raw.get("source"), details=raw.get("details"))
    return (notice,)


def _entry(raw: dict[str, Any], common: dict[str, Any]) -> HistoryEntry:
    return entry_from_wire(raw["entry"], common["turn_id"])


def _entry_added(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    entry = _entry(raw, common)
    added = EntryAdded(**common, entry=entry)
    if raw.get("delta"):
        return (added, TextDelta(**common, entry_id=entry.id, text=getattr(entry, "text", "")))
    return (added,)


def _entry_completed(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    return (EntryCompleted(**common, entry=_entry(raw, common)),)


def _nudge(_raw: dict[str, Any], _common: dict[str, Any]) -> tuple[Event, ...]:
    return ()


def _text_delta(raw: dict[str, Any], common: dict[str, Any]) -> tuple[Event, ...]:
    return (TextDelta(**common, entry_id=raw["entryId"], text=raw["text"]),)


_DECODERS: Final[dict[str, _Decoder]] = {
    "turnStarted": _turn_started,
    "turnUpdated": _turn_updated,
    "turnEnded": _turn_ended,
    "callbackOpened": _callback_opened,
    "callbackResolved": _callback_resolved,
    "sessionUpdated": _session_updated,
    "notice": _notice,
    "entryAdded": _entry_added,
    "entryCompleted": _entry_completed,
    "textDelta": _text_delta,
    "nudge": _nudge,
}


def decode(session_id: str, position: Position, record: dict[str, Any]) -> tuple[Event, ...]:
    """Return the events of a record: one, two, or none for a nudge. Never raises.

    A type or shape that this version does not know becomes `UnknownEvent`. An entry that lies in the next record must
    have been put in (`record["entry"]`) before.
    """
    cursor = format_cursor(session_id, position)
    common = {"id": cursor, "session_id": session_id, "turn_id": record.get("turnId")}
    kind = str(record.get("type", ""))
    decoder = _DECODERS.get(kind)
    if decoder is not None:
        try:
            return decoder(record, dict(common))
        except (KeyError, TypeError, AttributeError):
            pass  # a known type in a shape of another version is raw data too
    raw = {key: value for key, value in record.items() if key != "private"}
    return (UnknownEvent(id=cursor, session_id=session_id, turn_id=None, type=kind, raw=raw),)
