from __future__ import annotations

import pytest
from logs import collect, message_tail, notice, open_session, place, start_run

from broker import log, transitions
from broker.broker import Broker
from broker.contents import Blob, Message
from broker.keys import new_id, new_session_id
from broker.protocol.errors import (
    BrokerUnavailableError,
    InvalidCursorError,
    ObservationLost,
    SessionNotFoundError,
)
from broker.protocol.events import EntryAdded, EntryCompleted, Notice, TextDelta
from broker.protocol.values import loads
from broker.protocol.wire import START, Position, entry_tail, parse_cursor, parse_stream_id, tail
from broker.settings import Settings


async def test_the_log_is_dense_and_typed(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    await run.append(notice("one"), notice("two"))

    events = await collect(log.read_events(broker, session_id))

    assert [place(event).n for event in events] == list(range(1, len(events) + 1))
    assert [event.message for event in events if isinstance(event, Notice) and event.source == "test"] == ["one", "two"]


async def test_an_entry_that_lies_beside_is_found_across_a_page_border(broker: Broker) -> None:
    session_id = await open_session(broker)
    await start_run(broker, session_id, "the text")

    page = await log.read_page(broker, session_id, None, count=1)

    added, completed = (record.events[0] for record in page.records)
    assert isinstance(added, EntryAdded)
    assert isinstance(completed, EntryCompleted)
    assert added.entry == completed.entry
    assert not page.complete


async def test_pages_of_every_size_give_the_same_events(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    await run.append(*(notice(str(n)) for n in range(20)))
    everything = await collect(log.read_events(broker, session_id))

    for count in (1, 2, 3, 7, 100):
        seen, after = [], START
        while True:
            page = await log.read_page(broker, session_id, after, count)
            seen += [event for record in page.records for event in record.events]
            if page.complete:
                break
            after = page.records[-1].position
        assert seen == everything


async def test_a_message_being_written_is_two_events_with_one_id(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    entry = {"type": "message", "id": new_id(), "role": "assistant", "content": [{"type": "text", "text": "Hel"}]}
    await run.append(entry_tail("entryAdded", entry, delta=True))

    *_, added, delta = await collect(log.read_events(broker, session_id))

    assert isinstance(added, EntryAdded)
    assert isinstance(delta, TextDelta)
    assert (delta.id, delta.text) == (added.id, "Hel")


async def test_a_body_kept_as_a_blob_is_put_in(broker: Broker) -> None:
    session_id = await open_session(broker)
    text = "x" * 100_000
    blob = Blob(new_id(), message_tail(text))
    message = Message(tails=[(blob, tail({"type": "entryCompleted", "blob": blob.id}))], digest="-")
    await transitions.start(broker, session_id, message, key=None, join=False)

    added, completed = (await collect(log.read_events(broker, session_id)))[:2]

    assert isinstance(added, EntryAdded)
    assert isinstance(completed, EntryCompleted)
    assert getattr(added.entry, "text", None) == text
    assert added.entry == completed.entry
    raw = await log.read_raw(broker, session_id, "0-0", 1)
    assert [loads(record.body)["type"] for record in raw] == ["entryAdded", "entryCompleted"]
    assert loads(raw[1].body)["entry"]["content"][0]["text"] == text


async def test_a_page_is_bounded_in_bytes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PAGE_BYTES", 1000)
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    await run.append(*(notice("y" * 600) for _ in range(10)))

    page = await log.read_page(broker, session_id, None)

    assert not page.complete
    assert len(page.records) < 10
    events = await collect(log.read_events(broker, session_id))
    assert [place(event).n for event in events] == list(range(1, len(events) + 1))


async def test_a_session_that_does_not_exist(broker: Broker) -> None:
    with pytest.raises(SessionNotFoundError):
        await log.read_page(broker, new_session_id(1), None)
    with pytest.raises(SessionNotFoundError):
        await log.read_page(broker, "no session id", None)


async def test_a_cursor_at_the_end_reads_nothing(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    end = parse_stream_id(await run.append(notice("last")))

    page = await log.read_page(broker, session_id, end)

    assert (page.records, page.last, page.complete, page.terminated) == ([], end, True, False)


async def test_a_deltas_cursor_goes_on_after_the_event_it_followed(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    first = parse_stream_id(await run.append(notice("first")))
    await run.append(notice("second"))

    page = await log.read_page(broker, session_id, first._replace(k=3))

    assert [event.message for record in page.records for event in record.events if isinstance(event, Notice)] == [
        "second"
    ]


async def test_a_cursor_ahead_of_the_log_is_invalid(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    end = parse_stream_id(await run.append(notice("last")))

    with pytest.raises(InvalidCursorError, match="restored"):
        await log.read_page(broker, session_id, Position(end.n + 1, end.ms))


async def test_a_cursor_below_the_floor_is_observation_lost(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    await run.append(*(notice(str(n)) for n in range(10)))
    first = (await log.read_page(broker, session_id, None)).records[0].position
    await broker.commands.command("XTRIM", broker.keys.of("log", session_id), "MAXLEN", 4)

    with pytest.raises(ObservationLost) as lost:
        await log.read_page(broker, session_id, first)

    assert lost.value.cursor is not None
    page = await log.read_page(broker, session_id, parse_cursor(session_id, lost.value.cursor))
    assert len(page.records) == 4


async def test_overwritten_history_is_observation_lost_with_the_last_shared_event(broker: Broker) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    shared = parse_stream_id(await run.append(notice("shared")))
    seen = await restore_without_later_events(broker, session_id, shared)

    with pytest.raises(ObservationLost) as lost:
        await log.read_page(broker, session_id, seen)

    assert lost.value.cursor is not None
    assert parse_cursor(session_id, lost.value.cursor) == shared


async def restore_without_later_events(broker: Broker, session_id: str, shared: Position) -> Position:
    """Append three events, take them back as a restored dump would, append others; return the last lost position."""
    titles = iter(range(100))

    async def retitle() -> None:
        await transitions.retitle(broker, session_id, title=f'"{next(titles)}"'.encode())

    for _ in range(3):
        await retitle()
    lost = (await log.read_page(broker, session_id, shared)).records
    await take_back(broker, session_id, shared)
    await broker.commands.command("SET", broker.keys.base(0) + "clock", 1000)
    for _ in range(5):
        await retitle()
    return lost[-1].position


async def take_back(broker: Broker, session_id: str, shared: Position) -> None:
    """Let the log end at a position, as in a dump that is older than what came after it."""
    log_key, session = broker.keys.of("log", session_id), broker.keys.of("session", session_id)
    # A stream remembers its last id: only a new one takes lower ones, as after a restore.
    kept = await broker.commands.command("XRANGE", log_key, "-", shared.stream_id)
    await broker.commands.command("DEL", log_key)
    for stream_id, fields in kept:
        await broker.commands.command("XADD", log_key, stream_id, "e", fields[1])
    await broker.commands.command("HSET", session, "n", shared.n, "ms", shared.ms)


async def test_reading_waits_for_a_broker_that_is_away_within_its_budget() -> None:
    broker = Broker(Settings(redis_url="redis://127.0.0.1:1/0"), None)
    try:
        with pytest.raises(BrokerUnavailableError, match="TURNSTREAM_REDIS_URL"):
            await log.read_page(broker, new_session_id(1), None, budget=0.1)
    finally:
        await broker.close()


async def test_times_that_go_back_make_the_shared_event_unknown(embedded_broker: Broker) -> None:
    """The rule that finds the shared event leans on time; where it is seen to fail, reading begins at the start."""
    session_id = await open_session(embedded_broker)
    run = await start_run(embedded_broker, session_id)
    last = parse_stream_id(await run.append(notice("last")))

    assert await log.common_position(embedded_broker, session_id, last._replace(ms=last.ms + 5), last) == START
