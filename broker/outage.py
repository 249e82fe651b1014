"""Riding out a broker that is away: the one loop that tries again, with back-off, for as long as its caller allows."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from broker.pipeline import TRANSIENT
from broker.protocol.errors import BrokerUnavailableError

T = TypeVar("T")

BACKOFF_S: Final = (0.02, 1.0)
"""The first wait between tries, and the longest."""


async def ride_out(attempt: Callable[[], Awaitable[T]], allowed: float, said: str) -> T:
    """Return what `attempt` gives, made again while the broker is away, for `allowed` seconds; it must be safe to repeat.

    Raises `BrokerUnavailableError` after that; `said` begins its sentence.
    """
    until = asyncio.get_running_loop().time() + allowed
    wait, most = BACKOFF_S
    while True:
        try:
            return await attempt()
        except TRANSIENT as away:
            if asyncio.get_running_loop().time() + wait > until:
                raise BrokerUnavailableError(
                    f"{said} within {allowed:g} s ({type(away).__name__}); "
                    f"check that the broker runs and that TURNSTREAM_REDIS_URL, or --url, names it"
                ) from away
        # Half of the wait is random, so that a fleet does not come back in step.
        await asyncio.sleep(wait * (0.5 + random.random() / 2))  # noqa: S311 - jitter, not a secret
        wait = min(wait * 2, most)
