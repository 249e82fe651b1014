"""A deployment with limits, and time that passes in it, for tests of deadlines."""

from __future__ import annotations

from typing import Final

import pytest
from holders import Holder, ask, called, command, expect_whole, move_clock, records, running

from broker.broker import Broker
from broker.deadlines import Expired, expire
from broker.settings import DAY_S

HOUR: Final = 3600.0
WEEK: Final = 7 * DAY_S


@pytest.fixture(name="limits")
def limits_fixture(broker: Broker) -> Broker:
    """A deployment with a limit for everything."""
    given = {"callback_timeout": HOUR, "idle_limit": DAY_S, "session_lifetime": WEEK, "no_progress": 1000.0}
    broker.settings = broker.settings.model_copy(update=given)
    return broker


async def look(broker: Broker, at: float) -> Expired:
    """Let what is due happen, so many seconds after now."""
    await move_clock(broker, int(at * 1000))
    while (seen := await expire(broker, 0)).wait == 0:
        pass
    return seen


async def armed(broker: Broker) -> list[str]:
    """The deadlines that stand, by kind."""
    found = await command(broker, "ZRANGE", f"{broker.keys.base(0)}deadlines", 0, -1)
    return sorted(member.decode().partition(" ")[0] for member in found)


async def asking(broker: Broker, *callbacks: str, parked: bool = True) -> Holder:
    """A turn that waits for answers."""
    holder = await running(broker)
    for callback in callbacks:
        await holder.append(*called(callback), *ask(callback))
    if parked:
        assert await holder.park() == ["parked"]
    return holder


async def end_state(broker: Broker, session_id: str) -> dict[str, object]:
    """The state of the last turn's end, in a log that is whole."""
    found = await records(broker, session_id)
    expect_whole(found)
    return dict(next(record["state"] for record in reversed(found) if record["type"] == "turnEnded"))
