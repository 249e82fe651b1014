"""A worker's connections to tool sources: shared by the runs that use the same server with the same credentials.

A run takes a connection and gives it back when it parks or ends; one that nobody has is closed after a minute.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from workers.sources import Endpoint, SourceError
from workers.threads import Raised, in_thread

if TYPE_CHECKING:
    from workers.source_connection import Connection

IDLE_S: Final = 60.0
"""Seconds for which a connection that nobody uses stays open."""

_END_S: Final = 10.0


class SourcePool:
    """Connections by what they are made to."""

    def __init__(self, idle: float = IDLE_S) -> None:
        self._idle = idle
        self._by_endpoint: dict[Endpoint, Connection] = {}
        self._users: dict[Connection, int] = {}
        self._timers: dict[Connection, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loading = asyncio.Lock()

    async def take(self, endpoint: Endpoint) -> Connection:
        """Return an open connection, which is the caller's until `give_back`. Raises `SourceError`."""
        client = await self._loaded()
        if self._closed:
            raise SourceError("the worker is stopping")
        connection = self._by_endpoint.get(endpoint)
        if connection is None or connection.ended or connection.broken:
            connection = self._by_endpoint[endpoint] = client(endpoint)
            self._tasks.add(connection.task)
            connection.task.add_done_callback(self._tasks.discard)
        self._users[connection] = self._users.get(connection, 0) + 1
        if (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()
        try:
            await connection.opened()
        except BaseException:
            self.give_back(endpoint, connection)
            raise
        return connection

    async def _loaded(self) -> type[Connection]:
        """Load the client library, when it is first needed, in a thread: it takes a second, and other turns go on."""
        name = "workers.source_connection"
        async with self._loading:
            if name not in sys.modules and isinstance(
                ended := await in_thread(partial(import_module, name), name), Raised
            ):
                raise ended.error
        from workers.source_connection import Connection

        return Connection

    def keep(self, connection: Connection) -> None:
        """Use a connection once more that somebody has: it is not closed before that too is given back."""
        self._users[connection] += 1

    def give_back(self, endpoint: Endpoint, connection: Connection) -> None:
        """Use a connection no more."""
        self._users[connection] -= 1
        if self._users[connection]:
            return
        del self._users[connection]
        if connection.ended or connection.broken or self._closed:
            self._drop(endpoint, connection)
        else:
            loop = asyncio.get_running_loop()
            self._timers[connection] = loop.call_later(self._idle, self._drop, endpoint, connection)

    def _drop(self, endpoint: Endpoint, connection: Connection) -> None:
        self._timers.pop(connection, None)
        if self._by_endpoint.get(endpoint) is connection:
            del self._by_endpoint[endpoint]
        connection.close()

    async def close(self) -> None:
        """Close every connection; returns when their processes and sockets are gone."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for connection in self._by_endpoint.values():
            connection.close()
        self._by_endpoint.clear()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_END_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
