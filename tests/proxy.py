"""A small TCP proxy between processes and their broker, which cuts, holds and swallows at a test's word.

It lives on the test's loop. Each connection through it is a `Link`; what is asked of the `Proxy` is asked of all links that are
there, and `refusing` and `target` are for those to come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from types import TracebackType
from typing import Final, Literal, Self, cast

Way = Literal["requests", "replies"]
"""Requests go from a process to the broker, replies (and what is published) come back."""

WAYS: Final[tuple[Way, ...]] = ("requests", "replies")

_RESET: Final = struct.pack("ii", 1, 0)
"""A socket that lingers for no time is reset when it is closed."""


class _End(asyncio.Protocol):
    """One of a link's two sockets. What it reads goes out at the other one."""

    def __init__(self, link: Link, way: Way) -> None:
        self.link = link
        self.way = way
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None
        self.waiting = bytearray()
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.link.proxy.ends.add(self)
        self.link.opened(self)

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        self.pump()

    def pump(self) -> None:
        """Send on what waits, as far as the link lets it."""
        link, other = self.link, self.other
        if self.way in link.swallowed:
            link.lost += len(self.waiting)
            self.waiting.clear()
        if not self.waiting or self.way in link.held or other is None or other.transport is None:
            return
        passing = len(self.waiting) if link.spare is None else min(link.spare, len(self.waiting))
        other.transport.write(bytes(self.waiting[:passing]))
        del self.waiting[:passing]
        if link.spare is not None:
            link.spare -= passing
        if link.spare == 0 or (self.gone and not self.waiting):
            link.close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self.link.proxy.ended(self)
        if self.waiting and self.way in self.link.held:
            self.gone = True  # what it said last is on its way, and arrives late
        else:
            self.link.close()


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._client = _End(self, "requests")
        self._server = _End(self, "replies")
        self._client.other, self._server.other = self._server, self._client
        self._opening: asyncio.Task[None] | None = None
        self.held: set[Way] = set()
        self.swallowed: set[Way] = set()
        self.spare: int | None = None
        self.lost = 0

    def waiting(self, way: Way) -> bytearray:
        """What has come this way and was not passed on yet."""
        return (self._client if way == "requests" else self._server).waiting

    def opened(self, end: _End) -> None:
        """A socket of it is there: the client's first, then the broker's is opened."""
        if end is self._client:
            self.proxy.links.append(self)
            if self.proxy.refusing:
                self.cut()
            else:
                self._opening = asyncio.get_running_loop().create_task(self._open())
        else:
            self._client.pump()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._server, "127.0.0.1", self.proxy.target)
        except OSError:
            self.cut()

    def hold(self, *ways: Way) -> None:
        """Let nothing pass these ways (no way named: both); it waits here. Both ends take the connection for open."""
        self.held.update(ways or WAYS)

    def go_on(self) -> None:
        """Let pass what waits, and what comes."""
        self.held.clear()
        self.swallowed.clear()
        self._client.pump()
        self._server.pump()

    def swallow(self, *ways: Way) -> None:
        """Lose what comes these ways (no way named: both), without a word: a half-open connection."""
        self.swallowed.update(ways or WAYS)

    def cut(self, *, after: int = 0) -> None:
        """End the connection with a reset; with `after`, once so many bytes more have passed, in the midst of a command even."""
        if after:
            self.spare = after
            return
        for end in (self._client, self._server):
            end.waiting.clear()
        for end in (self._client, self._server):
            if end.transport is not None:
                with contextlib.suppress(OSError):  # one that has ended by itself
                    end.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.transport.abort()
        self.close()

    def close(self) -> None:
        """End the connection once what was passed on has been sent."""
        if self._opening is not None:
            self._opening.cancel()
        for end in (self._client, self._server):
            if end.transport is not None:
                end.transport.close()
        with contextlib.suppress(ValueError):
            self.proxy.links.remove(self)


class Proxy:
    """Stands before the broker at port `target` of this machine. An async context manager: it listens while it is entered."""

    def __init__(self, target: int, *, port: int = 0) -> None:
        self.target = target
        self.port = port
        self.refusing = False
        self.links: list[Link] = []
        self.ends: set[_End] = set()
        self._all_ended: asyncio.Event | None = None
        self._listening: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The URL of the broker behind it, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    def ended(self, end: _End) -> None:
        """A socket of it is closed."""
        self.ends.discard(end)
        if not self.ends and self._all_ended is not None:
            self._all_ended.set()

    def hold(self, *ways: Way) -> None:
        """Let nothing pass these ways (no way named: both); it waits here."""
        for link in self.links:
            link.hold(*ways)

    def go_on(self) -> None:
        """Let pass what waits, and what comes."""
        for link in list(self.links):
            link.go_on()

    def swallow(self, *ways: Way) -> None:
        """Lose what comes these ways, without a word. New connections are whole ones."""
        for link in self.links:
            link.swallow(*ways)

    def cut(self, *, after: int = 0) -> None:
        """Reset all connections, now or once each has passed so many bytes more."""
        for link in list(self.links):
            link.cut(after=after)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(lambda: Link(self)._client, "127.0.0.1", self.port)
        self.port = self._listening.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listening is not None
        self._listening.close()
        self.cut()
        for end in self.ends:
            if end.transport is not None:
                end.transport.abort()  # what is closing may still have something to say to one who does not read
        await self._listening.wait_closed()
        if self.ends:
            self._all_ended = asyncio.Event()
            await self._all_ended.wait()
