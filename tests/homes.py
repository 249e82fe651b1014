"""Where a test's sessions live: each of the two brokers in turn, under a prefix of its own, left clean."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from leaks import drop_keys, leaked_keys

import api_shim as agents
from api_shim.local import Place, current_host, place_of
from broker.broker import Broker
from broker.settings import Settings
from broker.stored_session import check_tree, read_tree
from workers.worker import TurnWorker


@dataclass
class Home:
    """Where one test's sessions live: the embedded broker, or a real server with workers beside the test."""

    url: str | None
    workers: list[tuple[TurnWorker, asyncio.Task[None]]] = field(default_factory=list)
    made: int = 0
    spoilt: bool = False
    """The test changed a stored log itself: what it left is not held against the history checker."""

    async def agent(self, model: Any, **options: Any) -> agents.Agent:
        """Make an agent that is served here; on the real server by a worker of its own."""
        self.made += 1
        agent = agents.Agent(**{"model": model, "name": f"agent{self.made}", **options})
        if self.url is not None:
            await self.serve(agent)
        return agent

    async def serve(self, agent: agents.Agent) -> None:
        """Start a worker for an agent, as a worker process does."""
        worker = TurnWorker(Broker(Settings(redis_url=self.url)))
        self.workers.append((worker, asyncio.create_task(worker.main())))
        await worker.ready.wait()
        await worker.serve(agent.definition)

    async def stop_workers(self) -> None:
        """Drain the workers."""
        for worker, working in self.workers:
            await worker.drain(0)
            await asyncio.gather(working, return_exceptions=True)
            await worker.broker.close()
        self.workers.clear()

    @property
    def place(self) -> Place:
        """The place as this process uses it."""
        return place_of(current_host())

    @property
    def broker(self) -> Broker:
        """The broker, for what no client can do."""
        return self.place.broker


H = TypeVar("H", bound=Home)


async def expect_clean_histories(broker: Broker) -> None:
    """Every session of a deployment, and each subagent's, is as the history checker wants it."""
    for shard in range(broker.settings.shards):
        (found,) = await broker.read(("ZRANGE", f"{broker.keys.base(shard)}sessions", 0, -1))
        for session_id in found:
            with contextlib.suppress(agents.SessionNotFoundError):  # its retention is over
                checked = check_tree(await read_tree(broker, session_id.decode()))
                assert [finding for _, findings in checked for finding in findings] == []


async def _embedded(kind: type[H]) -> AsyncIterator[H]:
    home = kind(None)
    try:
        yield home
        if not home.spoilt:
            await expect_clean_histories(home.broker)
        assert await leaked_keys(home.broker.client, home.broker.settings.prefix) == []
    finally:
        await home.place.close()


async def _redis(kind: type[H], url: str) -> AsyncIterator[H]:
    agents.connect(url)
    home = kind(url)
    try:
        yield home
        await home.stop_workers()
        if not home.spoilt:
            await expect_clean_histories(home.broker)
        assert await leaked_keys(home.broker.client, home.broker.settings.prefix) == []
    finally:
        await home.stop_workers()
        await drop_keys(home.broker.client, home.broker.settings.prefix)
        await home.place.close()
        agents.connect(None)


def opened(kind: type[H], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[H]:
    """Give the home of a fixture whose parameter is "embedded" or "redis"."""
    monkeypatch.delenv("TURNSTREAM_REDIS_URL", raising=False)
    monkeypatch.setenv("TURNSTREAM_PREFIX", f"c{uuid.uuid4().hex[:8]}:")
    return _embedded(kind) if request.param == "embedded" else _redis(kind, request.getfixturevalue("real_server").url)
