"""Deadlines: what happens to callbacks, turns and sessions when nobody does anything. A zset of each shard holds when to look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.broker import Broker

_PAGE: Final = 50
_LATE_S: Final = 10.0


@dataclass(frozen=True)
class Expired:
    """What was due in a shard has happened. `wait`: seconds until the next deadline, 0 when more is due, None when there is none.

    `sweep`: it is this caller's to sweep the shard (`broker.queue.sweep`); so it is told to one, once a minute.
    """

    wait: float | None
    sweep: bool


async def expire(broker: Broker, shard: int, *, budget: float | None = None) -> Expired:
    """Let what is due in a shard happen: callbacks expire, sessions and turns end, what is no more leaves the listings.

    Safe to run twice and by many at once. Raises `BrokerUnavailableError` after `budget` seconds.
    """
    late = max(_LATE_S, broker.settings.lease)
    key = broker.keys.base(shard) + "deadlines"
    wait, sweep = await broker.run("expire", key, budget=budget, page=_PAGE, late=int(late * 1000))
    return Expired(None if int(wait) < 0 else int(wait) / 1000, bool(int(sweep)))
