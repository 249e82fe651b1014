"""How long a model may say nothing: a stream that is slow but alive is never cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TypeVar

from workers.models import Model, ModelDelta, ModelError

T = TypeVar("T")


def silence_limit(model: Model, default: float) -> float | None:
    """Return after how many seconds of silence a call is cut: never here, for a model with a `timeout` of its own to mind."""
    return default if getattr(model, "timeout", None) is None else None


async def until_silent(stream: AsyncIterator[ModelDelta], limit: float | None) -> AsyncGenerator[ModelDelta, None]:
    """Yield a model's deltas, for as long as they come; `limit` seconds without one are a `ModelError`, which may be retried.

    None is no limit. The stream is closed when this is. What ends it from within is a `ModelError` too: only a cancelled run
    is handed back.
    """
    silence = None if limit is None else _Silence(limit)
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        while True:
            upcoming = anext(stream, None)
            try:
                delta = await (upcoming if silence is None else silence.broken_by(upcoming))
            except asyncio.CancelledError:
                if task is None or task.cancelling() > cancels:
                    raise
                raise ModelError("what the model waited for was cancelled", code="internal_error") from None
            if delta is None:
                return
            yield delta
    finally:
        if silence is not None:
            silence.close()
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


class _Silence:
    """Bounds each of many waits by one timer; `asyncio.timeout` makes one for each, which costs more than most deltas do."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Task[object] | None = None
        self._since = 0.0
        self._over = False
        self._timer = self._loop.call_later(limit, self._look)

    def _look(self) -> None:
        left = self._limit if self._waiting is None else self._since + self._limit - self._loop.time()
        if self._waiting is None or left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self._over = True
        self._waiting.cancel()

    async def broken_by(self, upcoming: Awaitable[T]) -> T:
        """Wait for something. Raises `ModelError` when it takes longer than the limit."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a model is read in a task")
        cancels = task.cancelling()
        self._since, self._waiting = self._loop.time(), task
        try:
            delta = await upcoming
        except (Exception, SystemExit, asyncio.CancelledError):
            if not self._over or task.uncancel() > cancels:
                raise  # its own, or the run was cancelled
            said = f"the model sent nothing for {self._limit:g} s"
            raise ModelError(said, code="model_timeout", retryable=True) from None
        finally:
            self._waiting = None
        if self._over:  # the model swallowed that: it may be silent as long again
            task.uncancel()
            self._over = False
            self._timer = self._loop.call_later(self._limit, self._look)
        return delta

    def close(self) -> None:
        """Wait for nothing more."""
        self._timer.cancel()
