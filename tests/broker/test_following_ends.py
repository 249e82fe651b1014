"""How following a session ends: it vanishes, nobody observes it any more, the process is done with all of them."""

from __future__ import annotations

import asyncio

import pytest
from eventually import eventually
from logs import notice, open_session, start_run
from test_live import (
    Watcher,
    hub_fixture,  # noqa: F401 - pytest finds the fixture `hub` here
    waits,
)

from broker import followed as following
from broker import live
from broker.broker import Broker
from broker.live import Hub
from broker.protocol.errors import ObservationLost, SessionNotFoundError
from broker.protocol.wire import parse_cursor


async def test_a_session_that_vanishes_is_lost(broker: Broker, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "QUIET_S", 0.1)
    monkeypatch.setattr(live, "_TICK_S", 0.05)
    session_id = await open_session(broker)
    watcher = Watcher(hub, session_id)
    await waits(hub, session_id)
    await broker.commands.command("DEL", broker.keys.of("session", session_id))

    with pytest.raises(ObservationLost, match="holds it no longer") as lost:
        await asyncio.wait_for(watcher.task, 5)

    assert lost.value.cursor is not None
    with pytest.raises(SessionNotFoundError):
        await anext(hub.follow(session_id, parse_cursor(session_id, lost.value.cursor)))


async def test_a_session_that_goes_after_its_last_observer_is_no_loss(
    broker: Broker, hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "QUIET_S", 0.1)
    monkeypatch.setattr(live, "_TICK_S", 0.05)
    session_id = await open_session(broker)
    watcher = Watcher(hub, session_id)
    await waits(hub, session_id)
    await watcher.stop()
    await broker.commands.command("DEL", broker.keys.of("session", session_id))

    await eventually(lambda: hub._followed, "the hub forgets it", until=lambda followed: not followed)

    assert caplog.records == []


async def test_unsubscribing_lingers_and_then_everything_is_closed(
    broker: Broker, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LINGER_S", 0.3)
    monkeypatch.setattr(live, "_TICK_S", 0.05)
    session_id = await open_session(broker)
    channel = broker.keys.live(session_id)

    async def subscribers() -> int:
        return int((await broker.client.pubsub_numsub(channel))[0][1])

    watcher = Watcher(hub, session_id)
    await eventually(subscribers, "the channel is subscribed")
    await watcher.stop()
    await asyncio.sleep(0.1)
    assert await subscribers() == 1

    await eventually(subscribers, "nobody subscribes any more", until=lambda count: count == 0)
    await eventually(lambda: hub._tasks, "the hub rests", until=lambda tasks: not tasks)

    run = await start_run(broker, session_id)
    again = Watcher(hub, session_id)
    await run.append(notice("again"))
    await again.saw("again")
    await again.stop()


async def test_closing_the_hub_cancels_who_waits(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    watcher = Watcher(hub, session_id)
    await waits(hub, session_id)

    await hub.close()

    await asyncio.wait([watcher.task], timeout=5)
    assert watcher.task.cancelled()


async def test_a_closed_generator_leaves_no_observer(broker: Broker, hub: Hub) -> None:
    session_id = await open_session(broker)
    await start_run(broker, session_id)
    events = hub.follow(session_id)
    async for _ in events:
        break
    assert len(hub._followed[session_id].observers) == 1

    await events.aclose()

    assert hub._followed[session_id].observers == set()
