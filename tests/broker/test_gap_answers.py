"""What a write is told by a broker that has lost writes: the log does not hold what the run has seen, or numbers it otherwise."""

from __future__ import annotations

import pytest
from holders import ENDED, fields, last_id, notice, running

from broker.broker import Broker


async def test_a_number_that_skips_is_a_gap(broker: Broker) -> None:
    """The write between was acknowledged once, and the broker lost it."""
    holder = await running(broker)
    before = await last_id(broker, holder.session_id)

    assert await holder.write("append", "e", notice("x"), op=2) == ["gap"]
    assert await holder.write("park", op=5) == ["gap"]
    assert await last_id(broker, holder.session_id) == before


@pytest.mark.parametrize("verb", ["append", "park", "finish"])
async def test_what_was_seen_and_is_not_in_the_log_is_a_gap(broker: Broker, verb: str) -> None:
    holder = await running(broker)
    n, _, ms = holder.seen.partition("-")
    extra = {"ended": ENDED} if verb == "finish" else {}
    for lost in (f"{int(n) + 1}-{ms}", f"{n}-{int(ms) + 1}", f"{n}-{int(ms) - 1}"):
        holder.seen = lost
        assert await holder.write(verb, op=1, **extra) == ["gap"]
    assert await fields(broker, holder.session_id, "op", "job") == ["0", "running"]


@pytest.mark.parametrize("verb", ["append", "park", "finish"])
@pytest.mark.parametrize("op", [1, 2])
async def test_a_number_of_another_history_is_no_repeat(broker: Broker, verb: str, op: int) -> None:
    """A failover there and back: other writes have these numbers here, and the log does not hold what the run has seen."""
    holder = await running(broker)
    await holder.append("e", notice("one"))
    await holder.append("e", notice("two"))
    n, _, ms = holder.seen.partition("-")
    holder.seen = f"{n}-{int(ms) + 1}"
    extra = {"ended": ENDED} if verb == "finish" else {}

    assert await holder.write(verb, op=op, **extra) == ["gap"]


async def test_an_end_whatever_came_is_no_repeat_of_another_write(broker: Broker) -> None:
    """It says nothing of what it has seen: only an end is the same write."""
    holder = await running(broker)
    await holder.append("e", notice("one"))
    await holder.append("e", notice("two"))
    holder.seen = ""

    for op in (1, 2):
        assert await holder.write("finish", op=op, ended=ENDED) == ["gap"]
    first = await holder.write("finish", op=3, ended=ENDED)
    assert first[0] == "finished"
    assert await holder.write("finish", op=3, ended=ENDED) == first
