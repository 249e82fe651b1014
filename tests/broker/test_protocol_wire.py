"""A stored record becomes events: the round trip of each class, what a later version wrote, and cursors."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol import events
from broker.protocol.callbacks import ClientToolCall, OpenClientToolCall, client_call_to_wire
from broker.protocol.content import TextContentBlock
from broker.protocol.entries import (
    ContextMessage,
    HistoryEntry,
    MessageEntry,
    ToolCallEntry,
    ToolResultEntry,
    UnknownEntry,
    entry_from_wire,
    entry_to_wire,
)
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
from broker.protocol.records import Completed, TokenUsage, completed_to_wire
from broker.protocol.values import UnknownValue, clean_json, clean_text, loads
from broker.protocol.wire import (
    START,
    Position,
    decode,
    entry_tail,
    format_cursor,
    is_beside,
    merge_blob,
    parse_cursor,
    parse_stream_id,
    resolved_tail,
    tail,
)

SESSION = "0-3f9c2e71-8c1e-4b7a-9f5e-0a4c8f1d2b3c"
TURN = "7d3c7d42-35b7-4a2b-b0a5-3f8f5a0f4b11"
AT = Position(7, 1_764_480_000_000)
CURSOR = f"{SESSION}:7-1764480000000"
IDS: dict[str, Any] = {"id": CURSOR, "session_id": SESSION, "turn_id": TURN}

any_text = st.text(st.characters(codec=None, exclude_categories=()))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)


def stored(tail_bytes: bytes, turn_id: str | None = TURN) -> dict[str, Any]:
    """Return the record that a script makes of a tail."""
    head = b"{" if turn_id is None else b'{"turnId":"' + turn_id.encode() + b'",'
    record: dict[str, Any] = loads(head + tail_bytes)
    return record


def read(record: dict[str, Any], turn_id: str | None = TURN, at: Position = AT) -> tuple[Event, ...]:
    return decode(SESSION, at, stored(tail(record), turn_id))


TEXT = (TextContentBlock(text="hello"),)
ENTRIES: list[HistoryEntry] = [
    MessageEntry(id="e", turn_id=TURN, role="user", content=TEXT),
    MessageEntry(id="e", turn_id=TURN, role="system", content=()),
    ContextMessage(id="e", turn_id=TURN, content=TEXT, kind="capability_source", source="mcp:notes"),
    ContextMessage(id="e", turn_id=TURN, content=TEXT, kind="input", source=None),
    ToolCallEntry(id="e", turn_id=TURN, tool_call_id="1", name="client.a", arguments=None),
    ToolResultEntry(
        id="e",
        turn_id=TURN,
        tool_call_id="1",
        name=None,
        content=TEXT,
        structured_content=[1],
        is_error=True,
        meta={"a": 1},
    ),
    UnknownEntry(id="e", turn_id=TURN, type="reasoning", raw={"type": "reasoning", "id": "e", "text": "hm"}),
    UnknownEntry(
        id="e",
        turn_id=TURN,
        type="message",
        raw={"type": "message", "id": "e", "role": "user", "content": [], "sender": "parent"},
    ),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_entries_survive_the_round_trip(entry: HistoryEntry) -> None:
    wire = entry_to_wire(entry)

    assert decode(SESSION, AT, stored(entry_tail("entryCompleted", wire))) == (EntryCompleted(**IDS, entry=entry),)
    assert decode(SESSION, AT, stored(entry_tail("entryAdded", wire))) == (EntryAdded(**IDS, entry=entry),)
    assert "turnId" not in wire


CALL = ClientToolCall(tool_call_id="1", name="client.pick", arguments={"a": 1})
OPENED = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("record", "event"),
    [
        ({"type": "turnStarted"}, TurnStarted(**IDS)),
        ({"type": "turnUpdated", "status": "blocked"}, TurnUpdated(**IDS, status="blocked")),
        ({"type": "turnUpdated", "status": "paused"}, TurnUpdated(**IDS, status=UnknownValue("paused"))),
        (
            {"type": "callbackOpened", "callback": client_call_to_wire("c", CALL, OPENED)},
            CallbackOpened(
                **IDS,
                callback=OpenClientToolCall(
                    id="c",
                    session_id=SESSION,
                    turn_id=TURN,
                    title="Run client.pick at the client",
                    opened_at=OPENED,
                    call=CALL,
                ),
            ),
        ),
        ({"type": "callbackResolved", "callbackId": "c"}, CallbackResolved(**IDS, callback_id="c")),
        (
            {"type": "sessionUpdated", "status": "waiting", "title": None, "archived": False},
            SessionUpdated(**(IDS | {"turn_id": None}), status="waiting", title=None, archived=False),
        ),
        (
            {"type": "sessionUpdated", "status": "asleep", "title": "t", "archived": True},
            SessionUpdated(**(IDS | {"turn_id": None}), status=UnknownValue("asleep"), title="t", archived=True),
        ),
        (
            {"type": "notice", "message": "m", "level": "error", "source": "s", "details": {"a": 1}},
            Notice(**IDS, message="m", level="error", source="s", details={"a": 1}),
        ),
        (
            {"type": "notice", "message": "m", "level": "loud"},
            Notice(**IDS, message="m", level=UnknownValue("loud"), source=None),
        ),
        ({"type": "textDelta", "entryId": "e", "text": "x"}, TextDelta(**IDS, entry_id="e", text="x")),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else "",
)
def test_each_type_becomes_its_event(record: dict[str, Any], event: Event) -> None:
    assert read(record) == (event,)
    assert read({**record, "later": 1}) == (event,)


def test_every_event_class_is_decoded_by_some_test() -> None:
    made = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}

    assert {kind.__name__ for kind in made} <= {*globals()}


def test_a_turn_s_end_has_the_cursor_of_the_session_updated_beside_it() -> None:
    state = completed_to_wire("done", (), None, TokenUsage())
    cursor = f"{SESSION}:8-1764480000000"

    (ended,) = read({"type": "turnEnded", "state": state})

    assert ended == TurnEnded(
        **IDS, state=Completed(session_id=SESSION, turn_id=TURN, cursor=cursor, text="done", output="done")
    )


def test_a_message_being_written_is_two_events_with_one_id() -> None:
    entry = MessageEntry(id="e", turn_id=TURN, role="assistant", content=TEXT)

    assert read({"type": "entryAdded", "delta": True, "entry": entry_to_wire(entry)}) == (
        EntryAdded(**IDS, entry=entry),
        TextDelta(**IDS, entry_id="e", text="hello"),
    )


def test_an_entry_added_complete_is_stored_once() -> None:
    record = stored(tail({"type": "entryAdded", "beside": True}))
    entry = ENTRIES[0]

    assert is_beside(record)
    assert decode(SESSION, AT, record | {"entry": entry_to_wire(entry)}) == (EntryAdded(**IDS, entry=entry),)
    assert not is_beside(stored(entry_tail("entryCompleted", entry_to_wire(entry))))


def test_a_blob_makes_its_record_whole_and_leaves_what_is_private() -> None:
    entry = ENTRIES[0]
    reference = stored(tail({"type": "entryCompleted", "blob": "b", "private": {"reply": {"read": 1}}}))

    whole = merge_blob(reference, entry_tail("entryCompleted", entry_to_wire(entry)))

    assert decode(SESSION, AT, whole) == (EntryCompleted(**IDS, entry=entry),)
    assert whole["private"] == {"reply": {"read": 1}}


def test_what_is_private_is_in_no_event() -> None:
    secret = {"answer": {"type": "allow", "scope": "session"}}
    resolved = decode(SESSION, AT, stored(resolved_tail("c", "answered", secret["answer"])))
    (unknown,) = read({"type": "later", "private": secret, "shown": 1})

    assert resolved == (CallbackResolved(**IDS, callback_id="c"),)
    assert unknown == UnknownEvent(
        **(IDS | {"turn_id": None}), type="later", raw={"turnId": TURN, "type": "later", "shown": 1}
    )


@pytest.mark.parametrize(
    "record",
    [
        {"type": "later"},
        {"type": ["turnStarted"]},
        {"kind": "later"},
        {"type": "turnUpdated"},
        {"type": "turnEnded", "state": 5},
        {"type": "callbackOpened", "callback": "c"},
        {"type": "callbackResolved"},
        {"type": "sessionUpdated"},
        {"type": "notice", "level": "info"},
        {"type": "entryAdded"},
        {"type": "entryAdded", "beside": True},
        {"type": "entryCompleted", "entry": []},
        {"type": "entryCompleted", "blob": "gone"},
        {"type": "textDelta", "text": "x"},
    ],
    ids=str,
)
def test_a_shape_that_is_not_known_becomes_an_unknown_event(record: dict[str, Any]) -> None:
    (event,) = read(record)

    assert event == UnknownEvent(
        **(IDS | {"turn_id": None}), type=str(record.get("type", "")), raw={**record, "turnId": TURN}
    )


def test_turn_updated_always_names_its_turn() -> None:
    (event,) = read({"type": "turnUpdated", "status": "running"}, turn_id=None)

    assert isinstance(event, UnknownEvent)


KEYS = st.sampled_from(
    [
        "type",
        "id",
        "turnId",
        "entry",
        "role",
        "content",
        "text",
        "state",
        "cause",
        "error",
        "callback",
        "status",
        "meta",
    ]
)
TYPES = st.sampled_from(
    ["message", "toolCall", "toolResult", "text", "image", "completed", "failed", "approval", "signIn", "clientTool"]
)
shapes = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | TYPES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(
    st.sampled_from(["turnStarted", "turnUpdated", "turnEnded", "callbackOpened", "callbackResolved", "notice"])
    | st.sampled_from(["sessionUpdated", "entryAdded", "entryCompleted", "textDelta", "later"]),
    st.dictionaries(KEYS | st.sampled_from(["delta", "callbackId", "level", "message"]), shapes, max_size=6),
)
def test_decoding_never_raises_and_always_gives_an_event(kind: str, record: dict[str, Any]) -> None:
    made = decode(SESSION, AT, record | {"type": kind})

    assert 1 <= len(made) <= 2
    assert all(event.id == CURSOR for event in made)
    assert len(repr(made)) < 10_000


@given(any_text, json_values, any_text)
def test_any_text_and_any_json_survive_the_record(text: str, value: Any, key: str) -> None:
    content = (TextContentBlock(text=text, meta={key: value}),)
    entry = ToolResultEntry(
        id="e",
        turn_id=TURN,
        tool_call_id=text,
        name=text,
        content=content,
        structured_content=value,
        is_error=False,
        meta={key: value},
    )
    body = entry_tail("entryCompleted", entry_to_wire(entry))
    (event,) = decode(SESSION, AT, stored(body))

    cleaned, meta = clean_text(text), clean_json({key: value})
    assert isinstance(event, EntryCompleted)
    assert event.entry == dataclasses.replace(
        entry,
        tool_call_id=cleaned,
        name=cleaned,
        content=(TextContentBlock(text=cleaned, meta=meta),),
        structured_content=clean_json(value),
        meta=meta,
    )
    assert b"\n" not in body


def test_an_entry_s_role_may_have_any_shape() -> None:
    raw: dict[str, Any] = {"type": "message", "id": "e", "role": ["user"], "content": []}

    assert entry_from_wire(raw, None) == UnknownEntry(id="e", turn_id=None, type="message", raw=raw)


# Cursors.


@given(st.integers(0, 10**14), st.integers(0, 10**14), st.integers(0, 10**11), st.sampled_from([SESSION, "12-" + TURN]))
def test_cursors_survive_the_round_trip(n: int, ms: int, k: int, session_id: str) -> None:
    position = Position(n, ms, k)

    assert parse_cursor(session_id, format_cursor(session_id, position)) == position
    assert parse_stream_id(position.stream_id) == Position(n, ms)


def test_a_cursor_reads_as_the_design_says() -> None:
    assert format_cursor(SESSION, AT) == CURSOR
    assert format_cursor(SESSION, AT._replace(k=3)) == f"{CURSOR}.3"
    assert parse_cursor(SESSION, f"{SESSION}:0-0") == START
    assert Position(2, 9) < Position(10, 1) < Position(10, 1, 1)


@pytest.mark.parametrize(
    "place",
    [
        "",
        "7",
        "7-",
        "-7",
        "7-1.",
        "7-1.0",
        "7-1.x",
        "07-1",
        "7-01",
        "+7-1",
        " 7-1",
        "7-1\n",
        "7-1.2.3",
        "1\u0661-1",
        "x",
        "9999999999999999-1",
        "7-1:8-1",
    ],
)
def test_a_malformed_cursor_is_refused(place: str) -> None:
    with pytest.raises(InvalidCursorError):
        parse_cursor(SESSION, f"{SESSION}:{place}")


@pytest.mark.parametrize("cursor", ["", "7-1764480000000", ":7-1", SESSION, f"1-{TURN}:7-1", f"x{CURSOR}"])
def test_a_cursor_of_another_session_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidCursorError, match=SESSION):
        parse_cursor(SESSION, cursor)
