"""Observers through outages of a real server: they notice nothing within the budget."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis.exceptions as redis_errors
from eventually import eventually
from holders import command
from logs import collect, notice, open_session, start_run
from proxy import Proxy
from real_server import RealServer, serving
from test_live import Watcher

from broker import feed, followed, live, log, transitions
from broker.broker import Broker
from broker.live import Hub
from broker.pipeline import NotNowError, refusal
from broker.protocol.errors import ObservationLost
from broker.server import free_port
from broker.settings import Settings


@asynccontextmanager
async def opened(server: RealServer | Proxy, *, budget: float = 60.0) -> AsyncIterator[tuple[Broker, Hub]]:
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


async def replica(broker: Broker, *, on: bool) -> None:
    await command(broker, "REPLICAOF", *(("127.0.0.1", free_port()) if on else ("NO", "ONE")))


async def few_replicas(broker: Broker, *, on: bool) -> None:
    await command(broker, "CONFIG", "SET", "min-replicas-to-write", 3 if on else 0)


async def busy(broker: Broker, *, on: bool) -> None:
    """Let a script run for ever, until it is killed."""
    if on:
        await command(broker, "CONFIG", "SET", "lua-time-limit", 10)
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(broker.settings.redis_url or "").port)
        writer.write(b"EVAL 'while true do end' 0\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    else:
        await command(broker, "SCRIPT", "KILL")


async def refuses(broker: Broker) -> None:
    """Wait until the server takes no writes."""

    async def refused() -> bool:
        try:
            await broker.client.set("probe", "1", px=1)
        except redis_errors.ResponseError:
            return True
        return False

    await eventually(refused, "the server refuses writes")


@pytest.mark.parametrize("trouble", [replica, few_replicas, busy])
async def test_a_server_that_refuses_for_now_is_waited_for(
    tmp_path: Path, trouble: Callable[..., Awaitable[None]]
) -> None:
    """Not one of these refusals is the answer to a command: it is sent again until the server takes it."""
    with serving(tmp_path) as server:
        async with opened(server) as (broker, hub):
            session_id = await open_session(broker)
            run = await start_run(broker, session_id)
            watcher = Watcher(hub, session_id)
            await run.append(notice("before"))
            await watcher.saw("before")
            admin = Broker(broker.settings)
            await trouble(admin, on=True)
            await refuses(admin)

            writing = asyncio.create_task(run.append(notice("after")))
            sending = asyncio.create_task(transitions.retitle(broker, session_id, title=b'"new"'))
            done, _ = await asyncio.wait({writing, sending}, timeout=0.5)
            assert done == set()
            await trouble(admin, on=False)

            await asyncio.wait_for(asyncio.gather(writing, sending), 5)
            await watcher.saw("after")
            await transitions.cancel(broker, session_id)
            await asyncio.wait_for(watcher.task, 5)
            assert watcher.events == await collect(log.read_events(broker, session_id))
            await admin.close()


async def test_a_refusal_that_an_old_server_wraps_is_known() -> None:
    """Redis 6.2 says of what a script met: that it met it."""
    wrapped = "Error running script (call to f_1): @user_script:9: @user_script: 9: -READONLY You can't write against a"

    assert isinstance(refusal(redis_errors.ResponseError(wrapped)), NotNowError)
    assert not isinstance(refusal(redis_errors.ResponseError("wrong number of arguments")), NotNowError)


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


async def test_a_server_that_became_a_replica_of_nobody_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers whatever an observer asks, and hears of nothing any more: as after a failover that it was cut off from."""
    monkeypatch.setattr(followed, "QUIET_S", 0.1)
    monkeypatch.setattr(live, "_TICK_S", 0.05)
    with serving(tmp_path) as server:
        async with opened(server, budget=1.0) as (broker, hub):
            session_id = await open_session(broker)
            run = await start_run(broker, session_id)
            last = await run.append(notice("last"))
            watcher = Watcher(hub, session_id)
            await watcher.saw("last")

            await replica(broker, on=True)

            with pytest.raises(ObservationLost, match="does not reach its primary") as lost:
                await asyncio.wait_for(watcher.task, 5)
            assert lost.value.cursor == f"{session_id}:{last}"


async def test_connections_that_are_half_open_are_found_out_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one reply that does not come; neither a ping nor a silence would have told of the others yet."""
    monkeypatch.setattr(feed, "PING_S", 1000)
    monkeypatch.setattr(feed, "_TICK_S", 0.05)
    monkeypatch.setattr(feed, "_SUSPECTED_S", 0.3)
    monkeypatch.setattr(followed, "QUIET_S", 1000)
    with serving(tmp_path) as server:
        async with Proxy(server.port) as proxy, opened(proxy) as (broker, hub):
            session_id = await open_session(broker)
            run = await start_run(broker, session_id)
            watcher = Watcher(hub, session_id)
            await run.append(notice("before"))
            await watcher.saw("before")

            proxy.swallow()
            await run.append(notice("after"))

            await broker.read(("TIME",), budget=0)  # at the first try
            await watcher.saw("after")
            await watcher.stop()
