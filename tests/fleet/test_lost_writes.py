"""A broker that comes back with less than it had acknowledged: after a failover, or with an older dump."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from eventually import eventually
from load import RETURN_S, Observed, clerk_of, expect_alive, ground, running
from proxy import Proxy
from real_server import serving

import api_shim as agents
from api_shim.local import place_of
from broker.history_check import check_history
from broker.stored_session import read_stored


@dataclass(frozen=True)
class Losing:
    """A broker behind a proxy: what is written after `keep_no_more` is gone after `come_back`."""

    proxy: Proxy
    keep_no_more: Callable[[], None]
    come_back: Callable[[], None]


@contextmanager
def failover(folder: Path) -> Iterator[tuple[int, Callable[[], None], Callable[[], int]]]:
    """A primary and a replica, which are parted, and the replica promoted."""
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    with (
        serving(folder / "a", "--repl-diskless-sync-delay", "0") as old,
        serving(folder / "b", "--replicaof", "127.0.0.1", str(old.port)) as new,
        redis.Redis(port=old.port) as primary,
        redis.Redis(port=new.port) as replica,
    ):

        def caught_up() -> None:
            primary.incr("probe")
            assert primary.wait(1, 10_000) == 1

        caught_up()  # a first time: that takes long, and nothing is to wait for it when tools run

        def part() -> None:
            caught_up()
            replica.replicaof("NO", "ONE")

        def promoted() -> int:
            old.process.kill()
            return new.port

        yield old.port, part, promoted


@contextmanager
def older_dump(folder: Path) -> Iterator[tuple[int, Callable[[], None], Callable[[], int]]]:
    """A server that dies, and starts again from a dump of some time ago."""
    with ExitStack() as servers, serving(folder) as old, redis.Redis(port=old.port) as admin:

        def restored() -> int:
            old.process.kill()
            old.process.wait()
            return servers.enter_context(serving(folder)).port

        yield old.port, admin.save, restored


@asynccontextmanager
async def losing(way: Callable[[Path], object], folder: Path) -> AsyncIterator[Losing]:
    with way(folder) as (port, keep_no_more, come_back):  # type: ignore[attr-defined] # one of the two above
        async with Proxy(port) as proxy:

            def back() -> None:
                proxy.target = come_back()
                proxy.cut()

            yield Losing(proxy, keep_no_more, back)


def at_tool(event: agents.Event) -> bool:
    return isinstance(event, agents.EntryAdded) and isinstance(event.entry, agents.ToolResultEntry)


@pytest.mark.parametrize("way", [failover, older_dump])
async def test_what_was_lost_is_said_and_what_was_kept_goes_on(
    way: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        losing(way, tmp_path) as broker,
        ground(broker.proxy.url, monkeypatch) as (fleet, _),
        running(fleet) as worker,
    ):
        clerk = clerk_of(broker.proxy.url)

        async def observed() -> Observed:
            session = await clerk.start_session()
            await session.rename("before")
            return Observed(session)

        kept, quiet, outgrown, sent, asked, at_work = [await observed() for _ in range(6)]
        parked = await asked.session.send_message("ask someone")
        blocked = await parked.result()
        assert isinstance(blocked, agents.Blocked)
        tool = await at_work.session.send_message("tool 2")
        await eventually(lambda: any(map(at_tool, at_work.seen)), "the tool runs")
        tool_ends = asyncio.create_task(tool.result())

        broker.keep_no_more()

        for each in (quiet, outgrown):
            await each.session.rename("lost")
            await each.session.rename("lost too")
        lost_turn = await sent.session.send_message("tool 60")
        lost_ends = asyncio.create_task(lost_turn.result())
        await eventually(lambda: any(map(at_tool, sent.seen)), "its tool runs")
        lost_session = await clerk.start_session()
        lost_first = await lost_session.send_message("hello")
        await parked.answer(blocked.callbacks[0].id, agents.AllowApproval())
        assert isinstance(await parked.result(after=blocked), agents.Completed)
        await at_work.session.send_message("a lost word")  # joins, and its worker has read it
        await asyncio.sleep(0.2)

        broker.come_back()

        for title in range(5):
            await outgrown.session.rename(f"instead {title}")
        async with asyncio.timeout(RETURN_S):
            # Who observes is told at once, and where to go on.
            for each in (quiet, outgrown, sent, asked, at_work):
                await each.task
                assert each.lost is not None
            # Who was told that something was accepted is told that it is gone.
            for reading in (lost_ends, lost_turn.get(), lost_first.get(), lost_first.result()):
                with pytest.raises(agents.ObservationLost, match="accepted"):
                    await reading
            # What was kept goes on: also what had gone further.
            assert isinstance(await kept.session.run("hello"), agents.Completed)
            again = await parked.get()
            assert isinstance(again, agents.Blocked)
            assert again.callbacks == blocked.callbacks
            await parked.answer(again.callbacks[0].id, agents.AllowApproval())
            assert isinstance(await parked.result(after=again), agents.Completed)
        assert isinstance(await asyncio.wait_for(tool_ends, 2 + RETURN_S), agents.Completed)
        expect_alive(worker)
        await eventually(
            lambda: [json.loads(line) for line in worker.log.lines if '"broker_lost_writes"' in line],
            "the worker says whose writes were lost",
            until=lambda said: at_work.session.id in {each.get("session") for each in said},
        )

        # Observers that go on after their cursors see the rest, whole; of the lost turn nobody has written anything.
        for each in (quiet, outgrown, sent, asked, at_work):
            assert each.lost is not None
            rest = Observed(each.session, each.lost.cursor)
            await rest.expect_whole(place_of(fleet.url).broker)
            assert not [event for event in rest.seen if event.turn_id == lost_turn.id]
        await kept.expect_whole(place_of(fleet.url).broker)
        assert kept.lost is None
        stored = await read_stored(place_of(fleet.url).broker, sent.session.id)
        assert check_history(stored.records) == []
