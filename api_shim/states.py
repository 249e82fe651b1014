"""A turn's record as it is read: how it stands now, or how it ended."""

from __future__ import annotations

from typing import Any

from api_shim.local import Place
from broker import transitions
from broker.blobs import read_records
from broker.protocol.callbacks import OpenCallback, callback_from_wire
from broker.protocol.errors import ObservationLost, SessionNotFoundError, TurnNotFoundError
from broker.protocol.records import Blocked, EndedState, Running, TurnState, state_from_wire
from broker.protocol.values import loads
from broker.protocol.wire import START, Position, format_cursor, parse_stream_id
from broker.transitions import Asked, EndedRecord, NoRecord, OpenRecord, Raw


class TurnRead:
    """One read of a turn: its state, the positions of its callbacks, and where its events lie."""

    def __init__(
        self,
        state: TurnState[Any],
        record: OpenRecord | EndedRecord,
        opened: dict[str, Position],
        last: Position | None = None,
    ) -> None:
        self.state = state
        self.opened = opened
        self.last = last or parse_stream_id(record.last)
        self.first = parse_stream_id(record.first)
        self.previous_end = None if record.previous_end == "-" else parse_stream_id(record.previous_end)
        self.end = parse_stream_id(record.end.id) if isinstance(record, EndedRecord) else None


async def read_turn(place: Place, session_id: str, turn_id: str, *, sent: bool) -> TurnRead:
    """Read a turn. Raises `TurnNotFoundError`, `SessionNotFoundError`; for a turn that a send returned, `ObservationLost`."""
    try:
        record = await transitions.record(place.broker, session_id, turn_id)
    except SessionNotFoundError as missing:
        if sent:
            raise lost_turn(session_id, turn_id) from missing
        raise
    if isinstance(record, NoRecord):
        if sent:
            raise lost_turn(session_id, turn_id, parse_stream_id(record.last))
        raise TurnNotFoundError(f"Session {session_id} has no turn {turn_id}.")
    if isinstance(record, EndedRecord):
        return TurnRead(ended_state(session_id, turn_id, record), record, {})
    return await _open_read(place, session_id, turn_id, record)


def lost_turn(session_id: str, turn_id: str, last: Position = START) -> ObservationLost:
    """What is raised of a turn that was there, once the broker holds it no longer; `last` is where its session's log ends."""
    return ObservationLost(
        f"Session {session_id}: turn {turn_id} was accepted and the broker holds it no longer: it lost writes. "
        f"Send the message again.",
        format_cursor(session_id, last),
    )


def ended_state(session_id: str, turn_id: str, record: EndedRecord) -> EndedState:
    """Return the record of an ended turn; its cursor is the SessionUpdated of the same append."""
    end = parse_stream_id(record.end.id)
    raw = loads(record.end.body)["state"] if record.end.body else {"type": "lost"}
    cursor = format_cursor(session_id, Position(end.n + 1, end.ms))
    return state_from_wire(raw, session_id=session_id, turn_id=turn_id, cursor=cursor)


async def _open_read(place: Place, session_id: str, turn_id: str, record: OpenRecord) -> TurnRead:
    last = parse_stream_id(record.last)
    text = loads(record.text)
    callbacks = []
    opened: dict[str, Position] = {}
    for asked in record.callbacks:
        place_here = parse_stream_id(asked.place)
        callback = await _open_callback(place, session_id, asked)
        callbacks.append(callback)
        opened[callback.id] = place_here
        last = max(last, place_here)  # a subagent's callback has a place after the last event of this session
    cursor = format_cursor(session_id, last)
    state: TurnState[Any]
    if callbacks:
        callbacks.sort(key=lambda callback: opened[callback.id])
        state = Blocked(session_id=session_id, turn_id=turn_id, cursor=cursor, text=text, callbacks=tuple(callbacks))
    else:
        state = Running(session_id=session_id, turn_id=turn_id, cursor=cursor, text=text)
    return TurnRead(state, record, opened, last)


async def _open_callback(place: Place, session_id: str, asked: Asked) -> OpenCallback:
    if asked.body:
        raws = [Raw(asked.place, asked.body)]
        for _, raw in await read_records(place.broker, asked.session_id, raws):
            if "callback" in raw:
                return callback_from_wire(raw["callback"], asked.session_id, raw.get("turnId"))
    raise ObservationLost(
        f"Session {session_id}: an open callback of session {asked.session_id} could not be read; the turn goes on."
    )
