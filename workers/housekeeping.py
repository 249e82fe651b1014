"""Housekeeping: every worker looks after the deadlines of every shard, and for turns that nobody holds."""

from __future__ import annotations

from typing import Final

from broker import queue
from broker.broker import Broker
from broker.deadlines import expire

LOOK_S: Final = 2.0
"""How late a deadline may be kept: one that was armed meanwhile, for sooner than the next look, waits for that."""

_BUDGET_S: Final = 1.0


async def keep_house(broker: Broker) -> float:
    """Let what is due happen, in every shard; return the seconds until there is more to do, `LOOK_S` at most.

    Raises `BrokerUnavailableError`.
    """
    wait = LOOK_S
    for shard in range(broker.settings.shards):
        while True:
            expired = await expire(broker, shard, budget=_BUDGET_S)
            if expired.sweep:
                await queue.sweep(broker, shard)
                if broker.embedded is not None:
                    broker.embedded.drop_expired()
            if expired.wait != 0:
                break
        wait = min(wait, LOOK_S if expired.wait is None else expired.wait)
    return wait
