"""A vendor's client for each event loop: opened on first use, closed when its loop ends or its model is dropped."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary, finalize

from broker.protocol.errors import SdkError

C = TypeVar("C")

CONNECT_S: Final = 10.0
"""Seconds within which a connection to a model's server must stand."""


def need_extra(extra: str, library: str) -> None:
    """Raise `SdkError` that says what to install when a vendor's library is not there."""
    if library not in sys.modules and find_spec(library) is None:
        raise SdkError(f"{extra} models need the {library} library: pip install 'turnstream[{extra}]'")


def checked_url(base_url: str | None) -> str | None:
    """Return a base_url without the slash at its end. Raises `ValueError` for one that is no http URL, without showing it."""
    if base_url is None:
        return None
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("base_url must be an http:// or https:// URL with a host")
    return base_url.rstrip("/")


def checked_timeout(timeout: Any) -> float | None:
    """Return a timeout. Raises `ValueError` for one that is no number of seconds above 0."""
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0):
        raise ValueError(f"timeout must be seconds above 0, or None, not {timeout!r}")
    checked: float | None = timeout
    return checked


def host_of(base_url: str) -> str:
    """Return the host and port of a URL: what may be shown of it."""
    parts = urlsplit(base_url)
    return f"{parts.hostname}{f':{parts.port}' if parts.port else ''}"


async def _kept(close: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await close()


def _let_go(_keeper: AsyncIterator[None]) -> None:
    """Nobody holds the keeper any more when this returns."""


class LoopClients(Generic[C]):
    """The clients of one model, by event loop. `make` returns a new client and what closes it.

    A client's keeper is an asynchronous generator that waits beside it: asyncio ends those of a loop with the loop, and those
    that nobody holds any more at once, so no task is needed that would outlive what it serves. The keeper is held by a finalizer
    and not here: it must not be garbage together with the connections that it closes.
    """

    def __init__(self, library: str, make: Callable[[], tuple[C, Callable[[], Awaitable[None]]]]) -> None:
        self._library = library
        self._make = make
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, C] = WeakKeyDictionary()

    async def get(self) -> C:
        """Return the running loop's client."""
        loop = asyncio.get_running_loop()
        if self._library not in sys.modules:
            await asyncio.to_thread(import_module, self._library)  # the better part of a second
        client = self._held.get(loop)
        if client is None:
            client, close = self._make()
            self._held[loop] = client
            keeper = _kept(close)
            finalize(self, _let_go, keeper).atexit = False
            await anext(keeper)
        return client
