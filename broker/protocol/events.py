"""Events of a session. `id` is the position in its log; `turn_id` the turn it happened in, or None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from broker.protocol.callbacks import OpenCallback
from broker.protocol.entries import HistoryEntry
from broker.protocol.records import Completed, Failed, Interrupted, UnknownOutcome
from broker.protocol.values import Brief, JsonValue, UnknownValue, show_defaults


@dataclass(frozen=True, kw_only=True)
class Event(Brief):
    """One event of a session."""

    __match_args__ = ()
    id: str
    session_id: str
    turn_id: str | None


@dataclass(frozen=True, kw_only=True)
class TurnStarted(Event):
    """A turn started."""

    __match_args__ = ()


@dataclass(frozen=True, kw_only=True)
class TurnUpdated(Event):
    """A turn's status changed: blocked on a callback, running again, terminated.

    With an unknown status (`UnknownValue`) the turn still runs.
    """

    __match_args__ = ("status",)
    turn_id: str
    status: Literal["running", "blocked", "terminated"] | UnknownValue


@dataclass(frozen=True, kw_only=True)
class TurnEnded(Event):
    """A turn ended; sent once. To read on, pass this event's id as `after`, not `state.cursor`, which can be later."""

    __match_args__ = ("state",)
    state: Completed[Any] | Interrupted | Failed | UnknownOutcome


@dataclass(frozen=True, kw_only=True)
class CallbackOpened(Event):
    """The turn waits on a callback."""

    __match_args__ = ("callback",)
    callback: OpenCallback


@dataclass(frozen=True, kw_only=True)
class CallbackResolved(Event):
    """A callback was answered or closed."""

    __match_args__ = ("callback_id",)
    callback_id: str


@dataclass(frozen=True, kw_only=True)
class SessionUpdated(Event):
    """The session's status, title or archive mark changed; it belongs to no turn."""

    __match_args__ = ("status", "title", "archived")
    status: Literal["running", "waiting", "terminated"] | UnknownValue
    title: str | None
    archived: bool


@dataclass(frozen=True, kw_only=True)
class Notice(Event):
    """A notice for the developer, which the model does not get."""

    __match_args__ = ("message", "level", "source", "details")
    message: str
    level: Literal["info", "warning", "error"] | UnknownValue
    source: str | None
    details: JsonValue = None


@dataclass(frozen=True, kw_only=True)
class EntryAdded(Event):
    """An entry was added to the history; it may still be incomplete."""

    __match_args__ = ("entry",)
    entry: HistoryEntry


@dataclass(frozen=True, kw_only=True)
class EntryCompleted(Event):
    """An entry is complete: the whole entry, final. Comes once for each EntryAdded."""

    __match_args__ = ("entry",)
    entry: HistoryEntry


@dataclass(frozen=True, kw_only=True)
class TextDelta(Event):
    """Text that the model just wrote. Live only: a replay gives at most a message's first one."""

    __match_args__ = ("entry_id", "text")
    entry_id: str
    text: str


@show_defaults
@dataclass(frozen=True, kw_only=True)
class UnknownEvent(Event):
    """An event of a type added after this version: ignore it, or read `raw`. Its `turn_id` is always None."""

    __match_args__ = ("type", "raw")
    type: str
    raw: dict[str, JsonValue] = field(default_factory=dict)
