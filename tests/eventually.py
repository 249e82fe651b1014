"""Waiting for a state of affairs, instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast, overload

T = TypeVar("T")


@overload
async def eventually(
    check: Callable[[], Awaitable[T]],
    describe: str,
    *,
    until: Callable[[T], object] = bool,
    within: float = 5.0,
    every: float = 0.01,
) -> T: ...


@overload
async def eventually(
    check: Callable[[], T],
    describe: str,
    *,
    until: Callable[[T], object] = bool,
    within: float = 5.0,
    every: float = 0.01,
) -> T: ...


async def eventually(
    check: Callable[[], T | Awaitable[T]],
    describe: str,
    *,
    until: Callable[[T], object] = bool,
    within: float = 5.0,
    every: float = 0.01,
) -> T:
    """Poll `check` (sync or async) until `until` holds of what it returns, and return that.

    After `within` seconds the test fails with `describe` and the last evidence seen. An AssertionError of the check
    itself is evidence too.
    """
    clock = asyncio.get_running_loop().time
    limit = clock() + within
    while True:
        evidence: object
        try:
            seen = check()
            value = cast("T", await seen if inspect.isawaitable(seen) else seen)
            evidence = value
            if until(value):
                return value
        except AssertionError as failed:
            evidence = failed
        if clock() >= limit:
            raise AssertionError(f"not within {within:g} s: {describe}; last seen: {evidence!r}")
        await asyncio.sleep(every)
