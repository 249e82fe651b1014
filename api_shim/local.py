"""Where sessions live: a broker that is named, or the embedded one of this process.

There is one place for each event loop and host, made on first use and closed when its loop ends. Without a broker's URL the place
is embedded, and has a worker beside it; the worker's code is loaded then, and not before.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from broker.broker import Broker
from broker.embedded import EmbeddedServer
from broker.live import Hub
from broker.settings import Settings

if TYPE_CHECKING:
    from workers.agent import AgentDefinition
    from workers.worker import TurnWorker

Host = str | None
"""A broker's URL; None is the embedded broker of the running event loop."""

_connected: Host = None


def connect(url: str | None) -> None:
    """Let this process use the broker at `url` from now on (None: what the environment says, else the embedded one)."""
    global _connected  # noqa: PLW0603 - one process has one default place
    _connected = url


def current_host() -> Host:
    """Return the host that a new handle belongs to: what `connect` named, else `TURNSTREAM_REDIS_URL`, else embedded."""
    return _connected or os.environ.get("TURNSTREAM_REDIS_URL") or None


class Place:
    """A broker as this event loop uses it: connections, what is observed, and, when embedded, the worker."""

    def __init__(self, host: Host) -> None:
        self.host = host
        settings = Settings() if host is None else Settings(redis_url=host)
        self.broker = Broker(settings, EmbeddedServer() if host is None else None)
        self.hub = Hub(self.broker)
        self.client_answers: dict[str, asyncio.Task[Any]] = {}
        self._worker: TurnWorker | None = None
        self._starting: asyncio.Task[TurnWorker] | None = None
        self._checked: asyncio.Task[None] | None = None
        # asyncio.run cancels what is left when its main task is done: that is when this place closes.
        self._keeper = asyncio.create_task(self._close_with_loop(), name="turnstream place")

    async def ready(self) -> None:
        """Check the broker once. Raises `BrokerUnavailableError` with one sentence that says what to change."""
        if self._checked is None or (self._checked.done() and (self._checked.cancelled() or self._checked.exception())):
            self._checked = asyncio.create_task(self.broker.check(writes=False))
        await asyncio.shield(self._checked)

    async def serve(self, definition: AgentDefinition) -> None:
        """When embedded, have this process's worker serve an agent; on a named broker, worker processes do."""
        if self.host is not None:
            return
        if self._starting is None:
            self._starting = asyncio.create_task(self._start_worker())
        await (await asyncio.shield(self._starting)).serve(definition)

    async def _start_worker(self) -> TurnWorker:
        from workers.logging import quiet_by_default
        from workers.worker import TurnWorker

        quiet_by_default()
        worker = self._worker = TurnWorker(self.broker)
        self._working = asyncio.create_task(worker.main(), name="turnstream worker")
        await worker.ready.wait()
        return worker

    async def _close_with_loop(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if self._worker is not None:
                await self._worker.drain(0)
                await asyncio.gather(self._working, return_exceptions=True)
            await self.hub.close()
            await self.broker.close()

    async def close(self) -> None:
        """Close now. A later use in this loop makes a new place."""
        places = _places.get(asyncio.get_running_loop(), {})
        if places.get(self.host) is self:
            del places[self.host]
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)


_places: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Host, Place]] = WeakKeyDictionary()


def place_of(host: Host) -> Place:
    """Return the running loop's place for a host."""
    places = _places.setdefault(asyncio.get_running_loop(), {})
    place = places.get(host)
    if place is None:
        for ended in [loop for loop in _places if loop.is_closed()]:
            del _places[ended]  # a place holds its loop, so the loops that have ended do not go by themselves
        place = places[host] = Place(host)
    return place


def place_key(host: Host) -> Hashable:
    """Return what makes two handles of a host equal, also where no loop runs and nothing was started yet."""
    if host is not None:
        return host
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return id(loop)
