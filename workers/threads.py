"""Synchronous tools run in threads: one thread each, which nothing waits for at the end of the process.

`asyncio.to_thread` has a pool of a few threads. Tools that hang fill it, then no tool runs any more, and the process cannot
exit, because asyncio joins the pool. And a function that raises StopIteration there is never heard of again.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Returned:
    """What a function returned."""

    value: Any


@dataclass(frozen=True)
class Raised:
    """What a function raised. A value, since a StopIteration cannot pass through a future or out of a coroutine."""

    error: BaseException


async def in_thread(function: Callable[[], Any], name: str) -> Returned | Raised:
    """Run a function in a thread of its own that sees the caller's context variables.

    Cancelling leaves the thread behind: a thread cannot be ended from outside.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Returned | Raised] = loop.create_future()
    context = contextvars.copy_context()

    def settle(ended: Returned | Raised) -> None:
        if not outcome.done():
            outcome.set_result(ended)

    def run() -> None:
        ended: Returned | Raised
        try:
            ended = Returned(context.run(function))
        except BaseException as error:  # noqa: BLE001 - also sys.exit() is what the tool did, and ends only the tool
            ended = Raised(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, ended)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome
