"""A broker in trouble under load: no process dies, work goes on within five seconds of its return, and observers miss nothing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
import redis
from eventually import eventually
from load import RETURN_S, clerk_of, expect_alive, ground, running
from proxy import Proxy
from real_server import SLOWLY, RealServer, fill, serving, starting

import api_shim as agents
from broker.server import free_port
from workers.ready_file import why_not_ready

KEPT = ("--appendonly", "yes", "--appendfsync", "always")


async def frozen(server: RealServer) -> None:
    server.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2.2)
    server.process.send_signal(signal.SIGCONT)


async def read_only(server: RealServer) -> None:
    with redis.Redis(port=server.port) as admin:
        admin.replicaof("127.0.0.1", str(free_port()))
        await asyncio.sleep(2.2)
        admin.replicaof("NO", "ONE")


@pytest.mark.parametrize("trouble", [frozen, read_only])
async def test_a_server_that_does_not_answer_or_takes_no_writes(
    trouble: Callable[[RealServer], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than a lease."""
    with serving(tmp_path) as server:
        async with ground(server.url, monkeypatch) as (fleet, load), running(fleet) as worker:
            await load.begin()

            await trouble(server)

            await load.expect_to_go_on()
            await load.expect_everything()
            expect_alive(worker)


async def test_a_server_that_is_away_and_then_loads_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts meanwhile waits for it: supervisors would start one that ends ever later."""
    port, file = free_port(), tmp_path / "ready"
    with ExitStack() as servers, redis.Redis(port=port) as admin:
        server = servers.enter_context(serving(tmp_path, *KEPT, port=port))
        async with (
            ground(server.url, monkeypatch) as (fleet, load),
            running(fleet) as worker,
            AsyncExitStack() as others,
        ):
            fill(admin, 100)
            await load.begin()
            admin.bgrewriteaof()  # its snapshot is what loads slowly
            await eventually(
                lambda: admin.info("persistence")["aof_rewrite_in_progress"], "rewritten", until=lambda on: not on
            )
            server.process.kill()
            server.process.wait()

            late = asyncio.create_task(others.enter_async_context(running(fleet, "--ready-file", str(file))))
            await eventually(
                lambda: why_not_ready(file),
                "it waits",
                until=lambda why: "start it, or correct TURNSTREAM_REDIS_URL" in str(why),
            )
            servers.enter_context(starting(tmp_path, *KEPT, *SLOWLY, port=port))
            await eventually(lambda: answers(admin), "it loads", until=lambda said: said == "loading")
            await eventually(lambda: answers(admin), "it is there", until=lambda said: said == "pong")

            await load.expect_to_go_on()
            await load.expect_everything()
            for each in (worker, await late):
                expect_alive(each)
                assert len([line for line in each.log.lines if '"event": "broker_away"' in line]) == 1


def answers(admin: redis.Redis) -> str:
    try:
        admin.ping()
    except redis.BusyLoadingError:
        return "loading"
    except redis.ConnectionError:
        return "away"
    return "pong"


async def test_connections_that_are_half_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent over them is lost, and nothing says so: each is found out by a reply that does not come."""
    with serving(tmp_path) as server:
        async with (
            Proxy(server.port) as proxy,
            ground(proxy.url, monkeypatch, TURNSTREAM_SOCKET_TIMEOUT="2") as (fleet, load),
            running(fleet) as worker,
        ):
            await load.begin()

            proxy.swallow()

            await load.expect_to_go_on(within=2 + RETURN_S)
            await load.expect_everything()
            expect_alive(worker)


async def test_a_full_server_takes_nothing_new_and_lets_what_runs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path) as server, redis.Redis(port=server.port) as admin:
        file = tmp_path / "ready"
        async with (
            ground(server.url, monkeypatch) as (fleet, load),
            running(fleet, "--ready-file", str(file)) as worker,
        ):
            await load.begin()
            at_tool = await clerk_of(server.url).start_session()
            tool = await at_tool.send_message("tool 60")
            async for event in at_tool.iter_events():
                if isinstance(event, agents.EntryAdded) and isinstance(event.entry, agents.ToolResultEntry):
                    break

            admin.config_set("maxmemory", 1)

            for new in (load.idle.session.send_message("hello"), clerk_of(server.url).start_session()):
                with pytest.raises(agents.SessionBusyError, match="out of memory"):
                    await asyncio.wait_for(new, 1)
            assert await tool.interrupt() == tool
            assert isinstance(await tool.result(timeout=1), agents.Interrupted)
            await load.answer()
            await load.expect_everything()
            assert why_not_ready(file) is None, "it can be given what was accepted before"
            admin.config_set("maxmemory", 0)
            assert isinstance(await at_tool.run("hello", timeout=5), agents.Completed)
            expect_alive(worker)
