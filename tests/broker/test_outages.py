"""Observers through outages of a real server: they notice nothing within the budget."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from logs import collect, notice, open_session, start_run
from real_server import RealServer, serving
from test_live import Watcher

from broker import feed, log, transitions
from broker.broker import Broker
from broker.live import Hub
from broker.protocol.errors import ObservationLost
from broker.server import free_port
from broker.settings import Settings


@asynccontextmanager
async def opened(server: RealServer, *, budget: float = 60.0) -> AsyncIterator[tuple[Broker, Hub]]:
    settings = Settings(redis_url=server.url, socket_timeout=0.3, connect_timeout=0.3, reconnect_budget=budget)
    broker = Broker(settings)
    hub = Hub(broker)
    yield broker, hub
    await hub.close()
    await broker.close()


async def test_a_frozen_server_is_noticed_by_a_ping_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "PING_S", 0.1)
    monkeypatch.setattr(feed, "_TICK_S", 0.05)
    with serving(tmp_path) as server:
        async with opened(server) as (broker, hub):
            session_id = await open_session(broker)
            run = await start_run(broker, session_id)
            watcher = Watcher(hub, session_id)
            await run.append(notice("before"))
            await watcher.saw("before")

            server.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(1.0)
            server.process.send_signal(signal.SIGCONT)

            await run.append(notice("after"))
            await watcher.saw("after")
            await transitions.cancel(broker, session_id)
            await asyncio.wait_for(watcher.task, 5)
            assert watcher.events == await collect(log.read_events(broker, session_id))


async def test_a_restarted_server_loses_nothing(tmp_path: Path) -> None:
    port = free_port()
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with serving(tmp_path, *kept, port=port) as server:
        async with opened(server) as (broker, hub):
            session_id = await open_session(broker)
            run = await start_run(broker, session_id)
            watcher = Watcher(hub, session_id)
            await run.append(notice("before"))
            await watcher.saw("before")
            server.process.kill()
            server.process.wait()
            await asyncio.sleep(0.2)

            with serving(tmp_path, *kept, port=port):
                await run.append(notice("after"))
                await watcher.saw("after")
                await transitions.cancel(broker, session_id)
                await asyncio.wait_for(watcher.task, 5)
                assert watcher.events == await collect(log.read_events(broker, session_id))


async def test_a_server_that_stays_away_is_observation_lost_with_the_last_position(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        async with opened(server, budget=0.5) as (broker, hub):
            session_id = await open_session(broker)
            run = await start_run(broker, session_id)
            last = await run.append(notice("last"))
            watcher = Watcher(hub, session_id)
            await watcher.saw("last")
            server.process.kill()

            with pytest.raises(ObservationLost) as lost:
                await asyncio.wait_for(watcher.task, 10)

            assert lost.value.cursor == f"{session_id}:{last}"
