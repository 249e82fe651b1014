from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import pairwise

import pytest
from eventually import eventually
from logs import collect, notice, open_session, place, start_run
from test_log import restore_without_later_events, take_back

from broker import followed as following
from broker import live, log, transitions
from broker.broker import Broker
from broker.contents import Blob
from broker.keys import new_id, new_session_id
from broker.live import Hub
from broker.protocol.errors import InvalidCursorError, ObservationLost, SessionNotFoundError
from broker.protocol.events import EntryAdded, Event, Notice, SessionUpdated, TextDelta, TurnEnded
from broker.protocol.wire import START, Position, entry_tail, parse_cursor, parse_stream_id, tail
from broker.scripting import Argument
from broker.settings import Settings


@pytest.fixture(name="hub")
async def hub_fixture(broker: Broker) -> AsyncIterator[Hub]:
    hub = Hub(broker)
    yield hub
    await hub.close()


class Watcher:
    """An observer that keeps what it sees."""

    def __init__(self, hub: Hub, session_id: str, after: Position | None = None, *, pause: float = 0) -> None:
        self.events: list[Event] = []
        self._source = hub.follow(session_id, after)
        self._pause = pause
        self.task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        async with aclosing(self._source) as events:
            async for event in events:
                self.events.append(event)
                if self._pause:
                    await asyncio.sleep(self._pause)

    async def saw(self, message: str) -> None:
        """Wait for a notice."""
        await eventually(lambda: message in notices(self.events), f"the observer sees the notice {message}")

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def waits(hub: Hub, session_id: str) -> None:
    """Wait until an observer has read the log and waits for news."""

    def waiting() -> bool:
        followed = hub._followed.get(session_id)
        return followed is not None and followed.ring.position is not None and bool(followed.waiting)

    await eventually(waiting, "the observer waits for news")


def notices(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice) and event.source == "test"]


async def publish_muted(broker: Broker, session_id: str, message: str, *, later: int = 0) -> None:
    """Store an event as `emit` does, `later` ms after the last one, and publish nothing: a message that was lost."""
    session, stream = broker.keys.of("session", session_id), broker.keys.of("log", session_id)
    n, ms = (int(value) for value in await broker.commands.command("HMGET", session, "n", "ms"))
    await broker.commands.command("XADD", stream, f"{n + 1}-{ms + later}", "e", b"{" + notice(message))
    await broker.commands.command("HSET", session, "n", n + 1, "ms", ms + later)


async def test_history_then_live_until_the_session_ends(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    watcher = Watcher(hub, session_id)
    await eventually(lambda: watcher.events, "the history arrives")
    await run.append(notice("live"))
    await run.finish()
    await transitions.cancel(broker, session_id)

    await asyncio.wait_for(watcher.task, 5)

    assert watcher.events == await collect(log.read_events(broker, session_id))
    last = watcher.events[-1]
    assert isinstance(last, SessionUpdated)
    assert last.status == "terminated"


async def test_until_ends_with_its_event(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    await run.finish()

    events = await collect(hub.follow(session_id, None, lambda event: isinstance(event, TurnEnded)))

    assert isinstance(events[-1], TurnEnded)


async def test_an_ended_session_ends_every_reader_also_at_its_end(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    await start_run(broker, session_id)
    await transitions.cancel(broker, session_id)

    everything = await asyncio.wait_for(collect(hub.follow(session_id)), 5)

    assert everything == await collect(log.read_events(broker, session_id))
    assert await asyncio.wait_for(collect(hub.follow(session_id, place(everything[-1]))), 5) == []


async def test_a_session_that_does_not_exist(hub: Hub) -> None:
    with pytest.raises(SessionNotFoundError):
        await collect(hub.follow(new_session_id(1)))
    with pytest.raises(SessionNotFoundError):
        await collect(hub.follow("no session id"))


async def test_a_cursor_ahead_of_the_log_is_invalid(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    await start_run(broker, session_id)

    with pytest.raises(InvalidCursorError):
        await collect(hub.follow(session_id, Position(1000, 1)))


async def test_deltas_are_live_only_and_follow_the_event_they_belong_to(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    watcher = Watcher(hub, session_id)
    await run.append(notice("ready"))
    await watcher.saw("ready")
    entry = new_id()
    message = {"type": "message", "id": entry, "role": "assistant", "content": [{"type": "text", "text": "a"}]}
    more = [tail({"type": "textDelta", "entryId": entry, "text": text}) for text in "bc"]
    opening: list[Argument] = ["e", entry_tail("entryAdded", message, delta=True), "w", entry, "message", "", "", "a"]
    await run.effects([*opening, "d", entry, "b", more[0], "d", entry, "c", more[1], "e", notice("done")])
    await watcher.saw("done")

    added, *deltas, done = watcher.events[-5:]
    assert isinstance(added, EntryAdded)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "abc"
    assert [place(event).k for event in watcher.events[-5:]] == [0, 0, 1, 2, 0]
    assert place(done).n == place(added).n + 1
    again = await log.read_page(broker, session_id, place(deltas[-1]))
    assert [record.events for record in again.records] == [(done,)]
    await watcher.stop()


async def test_observers_at_random_positions_see_the_log_from_there(broker: Broker, hub: Hub) -> None:
    """History and live join without a hole or a repetition, wherever and whenever an observer comes (F25)."""
    chance = random.Random(25)  # noqa: S311 - repeatable, no secret
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    watchers: list[tuple[Position, Watcher]] = []
    places = [START, parse_stream_id(await run.append(notice("0")))]
    for number in range(150):
        if chance.random() < 0.3:
            after = chance.choice(places)
            watchers.append((after, Watcher(hub, session_id, after, pause=chance.choice([0, 0, 0.0005]))))
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice([0, 0.001, 0.003]))
        last = await run.append(*(notice(f"{number}.{at}") for at in range(chance.choice([1, 1, 1, 5, 60]))))
        places.append(parse_stream_id(last))
    await run.finish()
    await transitions.cancel(broker, session_id)
    await asyncio.wait_for(asyncio.gather(*(watcher.task for _, watcher in watchers)), 20)

    everything = await collect(log.read_events(broker, session_id))
    for after, watcher in watchers:
        assert watcher.events == everything[after.n :]


async def test_events_are_decoded_once_for_all_observers(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    one, two = Watcher(hub, session_id), Watcher(hub, session_id)
    await run.append(notice("ready"))
    await one.saw("ready")
    await two.saw("ready")
    await run.append(notice("shared"))
    await one.saw("shared")
    await two.saw("shared")

    assert one.events[-1] is two.events[-1]
    await one.stop()
    await two.stop()


async def test_a_hole_is_filled_from_the_log(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    watcher = Watcher(hub, session_id)
    await run.append(notice("ready"))
    await watcher.saw("ready")
    await publish_muted(broker, session_id, "lost")
    await run.append(notice("next"))
    await watcher.saw("next")

    assert notices(watcher.events) == ["ready", "lost", "next"]
    await watcher.stop()


async def test_a_lost_last_message_is_found_after_a_silence(
    broker: Broker, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "QUIET_S", 0.2)
    monkeypatch.setattr(live, "_TICK_S", 0.05)
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    watcher = Watcher(hub, session_id)
    await run.append(notice("ready"))
    await watcher.saw("ready")
    await publish_muted(broker, session_id, "lost")

    await watcher.saw("lost")

    await watcher.stop()


async def test_a_body_kept_as_a_blob_arrives_live_and_no_delta_after_it_is_lost(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    watcher = Watcher(hub, session_id)
    await run.append(notice("ready"))
    await watcher.saw("ready")
    blob = Blob(new_id(), notice("z" * 70_000))
    delta = tail({"type": "textDelta", "entryId": new_id(), "text": "after"})
    reference = tail({"type": "notice", "blob": blob.id})
    await run.effects(["b", blob.id, blob.body, "e", reference, "d", new_id(), "x", delta])

    await eventually(lambda: isinstance(watcher.events[-1], TextDelta), "the delta after the blob arrives")

    assert notices(watcher.events) == ["ready", "z" * 70_000]
    await watcher.stop()


async def test_a_slow_observer_goes_back_to_the_log_and_loses_nothing(broker: Broker) -> None:
    hub = Hub(broker, ring_bytes=4_000)
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    slow, quick = Watcher(hub, session_id, pause=0.001), Watcher(hub, session_id)
    for number in range(40):
        await run.append(*(notice(f"{number}.{at}") for at in range(20)))
    await run.finish()
    await transitions.cancel(broker, session_id)
    await asyncio.wait_for(asyncio.gather(slow.task, quick.task), 20)

    everything = await collect(log.read_events(broker, session_id))
    assert slow.events == everything
    assert quick.events == everything
    await hub.close()


async def test_the_ring_keeps_only_what_somebody_has_not_read(
    broker: Broker, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_TICK_S", 0.02)
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    watcher = Watcher(hub, session_id)
    for number in range(50):
        await run.append(notice(str(number)))
    await watcher.saw("49")
    ring = hub._followed[session_id].ring

    await eventually(lambda: ring.end - ring.base, "the ring is empty again", until=lambda kept: kept == 0)

    await run.append(notice("more"))
    await watcher.saw("more")
    await watcher.stop()


async def test_rewritten_history_is_observation_lost(broker: Broker, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore under connected observers: the first event of the new history tells, and the cursor leads on."""
    monkeypatch.setattr(live, "_TICK_S", 0.05)
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    shared = parse_stream_id(await run.append(notice("shared")))
    watcher = Watcher(hub, session_id)
    await watcher.saw("shared")
    await restore_without_later_events(broker, session_id, shared)

    with pytest.raises(ObservationLost) as lost:
        await asyncio.wait_for(watcher.task, 5)

    assert lost.value.cursor is not None
    assert parse_cursor(session_id, lost.value.cursor) == shared
    await transitions.cancel(broker, session_id)
    again = await asyncio.wait_for(collect(hub.follow(session_id, shared)), 5)
    assert again == (await collect(log.read_events(broker, session_id)))[shared.n :]


async def test_an_observer_of_overwritten_history_is_told_at_once(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    shared = parse_stream_id(await run.append(notice("shared")))
    seen = await restore_without_later_events(broker, session_id, shared)

    with pytest.raises(ObservationLost):
        await asyncio.wait_for(collect(hub.follow(session_id, seen)), 5)


async def test_new_history_that_has_outgrown_the_old_is_told_by_its_next_event(broker: Broker, hub: Hub) -> None:
    """Restored behind an observer's back, and as long again since: the next event follows one that the observer never had."""
    session_id = await open_session(broker)
    run = await start_run(broker, session_id)
    shared = parse_stream_id(await run.append(notice("shared")))
    await run.append(notice("lost"))
    watcher = Watcher(hub, session_id)
    await watcher.saw("lost")
    await take_back(broker, session_id, shared)
    await publish_muted(broker, session_id, "instead", later=1000)
    hub._followed[session_id].heard += 60  # it is not the silence that tells

    await transitions.cancel(broker, session_id)

    with pytest.raises(ObservationLost) as lost:
        await asyncio.wait_for(watcher.task, 2)
    assert lost.value.cursor is not None
    assert parse_cursor(session_id, lost.value.cursor) == shared
    assert notices(watcher.events) == ["shared", "lost"]


async def test_a_killed_connection_loses_nothing(redis_broker: Broker) -> None:
    hub = Hub(redis_broker)
    session_id = await open_session(redis_broker)
    run = await start_run(redis_broker, session_id)
    watchers = [Watcher(hub, session_id) for _ in range(5)]
    for number in range(60):
        await run.append(notice(str(number)))
        if number % 15 == 5:
            await redis_broker.client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call] # redis-py has no types here
    await run.finish()
    await transitions.cancel(redis_broker, session_id)
    await asyncio.wait_for(asyncio.gather(*(watcher.task for watcher in watchers)), 20)

    everything = await collect(log.read_events(redis_broker, session_id))
    assert all(watcher.events == everything for watcher in watchers)
    await hub.close()


async def test_a_broker_that_stays_away_is_observation_lost_after_the_budget() -> None:
    away = Broker(Settings(redis_url="redis://127.0.0.1:1/0", reconnect_budget=0.3), None)
    hub = Hub(away)
    with pytest.raises(ObservationLost) as lost:
        await asyncio.wait_for(collect(hub.follow(new_session_id(1), Position(7, 70))), 5)

    assert lost.value.cursor is not None
    assert lost.value.cursor.endswith(":7-70")
    await hub.close()
    await away.close()


async def test_many_observers_take_three_connections(redis_broker: Broker) -> None:
    hub = Hub(redis_broker)
    sessions = [await open_session(redis_broker) for _ in range(20)]
    runs = [await start_run(redis_broker, session_id) for session_id in sessions]
    name = redis_broker.settings.prefix
    await redis_broker.client.client_list()  # the one that counts
    before = {client["id"] for client in await redis_broker.client.client_list()}
    watchers = [Watcher(hub, session_id) for session_id in sessions for _ in range(10)]
    for number, run in enumerate(runs):
        await run.append(notice(f"{name}{number}"))
    for number, watcher in enumerate(watchers):
        await watcher.saw(f"{name}{number // 10}")

    new = [client for client in await redis_broker.client.client_list() if client["id"] not in before]
    assert len(new) <= 2, new  # the subscription, the catch-up; the third was there, for commands
    assert sum(client["sub"] != "0" for client in new) == 1
    for watcher in watchers:
        await watcher.stop()
    await hub.close()


async def test_a_hundred_thousand_events_with_pauses_have_no_hole(redis_broker: Broker) -> None:
    """Writers pause around every waiting time there is here, and the observer misses nothing (F23)."""
    chance = random.Random(23)  # noqa: S311 - repeatable, no secret
    hub = Hub(redis_broker)
    session_id = await open_session(redis_broker)
    run = await start_run(redis_broker, session_id)
    count, positions = 100_000, list[int]()

    async def watch() -> None:
        async with aclosing(hub.follow(session_id, None, lambda event: place(event).n >= count)) as events:
            async for event in events:
                positions.append(place(event).n)

    watching = asyncio.create_task(watch())
    written = 10
    while written < count:
        size = min(chance.choice([1, 3, 50, 500]), count)
        written = parse_stream_id(await run.append(*[notice("n")] * size)).n
        if chance.random() < 0.02:
            await asyncio.sleep(chance.choice([0.001, 0.02, 0.1, live._TICK_S * chance.uniform(0.9, 1.1) / 4]))
    await asyncio.wait_for(watching, 20)

    assert positions[0] == 1
    assert all(later == earlier + 1 for earlier, later in pairwise(positions))
    await hub.close()


@pytest.mark.parametrize("left", [log.PAGE - 1, log.PAGE, log.PAGE + 1, 2 * log.PAGE])
async def test_an_ended_session_is_read_to_its_end_however_its_pages_fall(left: int, broker: Broker) -> None:
    """A full page may be the last one: from the start, and after a cursor that leaves just as many events."""
    session, hub = await open_session(broker), Hub(broker)
    for name in range(left + 2):
        await transitions.retitle(broker, session, title=f'"{name}"'.encode())
    await transitions.cancel(broker, session)
    events = [event async for event in log.read_events(broker, session)]
    assert len(events) == left + 3
    try:
        async with asyncio.timeout(10):
            after = parse_cursor(session, events[-left - 1].id)
            assert await collect(hub.follow(session, after)) == events[-left:]
            assert await collect(hub.follow(session, parse_cursor(session, events[2].id))) == events[3:]
    finally:
        await hub.close()
