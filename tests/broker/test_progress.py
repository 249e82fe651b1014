"""A turn whose worker lives and writes nothing fails; one that nobody runs, or whose fleet was away, does not."""

from __future__ import annotations

import pytest
from holders import claim, command, fields, hold, kinds, move_clock, notice, queued, records, running, start, writing
from limits import (
    HOUR,
    armed,
    asking,
    end_state,
    limits_fixture,  # noqa: F401 - pytest finds the fixture `limits` here
    look,
)

from broker import runs
from broker.broker import Broker


async def test_a_turn_whose_worker_writes_nothing_fails(limits: Broker) -> None:
    holder = await running(limits)
    await holder.append(*writing("message", "m", "half"))
    await look(limits, 999)
    assert await fields(limits, holder.session_id, "job") == ["running"]

    await look(limits, 1001)

    state = await end_state(limits, holder.session_id)
    assert (state["type"], state["text"]) == ("failed", "half")
    error = state["error"]
    assert isinstance(error, dict)
    assert error["code"] == "no_progress"
    assert "1000 s" in error["message"]
    assert await holder.append("e", notice("late")) == ["superseded"]
    assert await queued(limits) == ([], [])
    assert await fields(limits, holder.session_id, "status") == ["waiting"]
    assert await start(limits, holder.session_id) != holder.turn


async def test_a_long_turn_that_makes_progress_goes_on(limits: Broker) -> None:
    """It streams for an hour: deltas, and not one event that is stored."""
    holder = await running(limits)
    await holder.append(*writing("message", "m", "one"))
    for at in range(0, 3600, 450):
        await look(limits, at)
        assert (await holder.append("d", "m", "more", b'"type":"textDelta","entryId":"m","text":"more"}'))[0] == "ok"

    assert await fields(limits, holder.session_id, "job") == ["running"]


async def test_the_time_begins_anew_with_each_write(limits: Broker) -> None:
    holder = await running(limits)
    await move_clock(limits, 500_000)
    await holder.append("e", notice("on"))

    await look(limits, 1001)
    assert await fields(limits, holder.session_id, "job") == ["running"]
    await look(limits, 1501)
    assert (await end_state(limits, holder.session_id))["type"] == "failed"


async def test_a_parked_turn_needs_no_progress(limits: Broker) -> None:
    limits.settings = limits.settings.model_copy(update={"callback_timeout": None})
    holder = await asking(limits, "c1")
    assert "turn" not in await armed(limits)

    await look(limits, HOUR)

    assert await fields(limits, holder.session_id, "job") == ["parked"]


@pytest.mark.parametrize("how", ["release", "lapse"])
async def test_a_queued_turn_needs_no_progress(limits: Broker, how: str) -> None:
    holder = await running(limits)
    if how == "release":
        await runs.release(limits, holder.session_id, holder.fence, budget=5)
    else:
        await command(limits, "ZADD", f"{limits.keys.queue(0, 'agent')}:running", 1, holder.job.id)
        await claim(limits, slots=0)

    await look(limits, 1001)

    assert await fields(limits, holder.session_id, "job") == ["queued"]


async def test_a_fleet_that_was_away_fails_no_turn(limits: Broker) -> None:
    """Its worker is lost, and nobody looked for an hour: first it is seen whether its lease lapses, then the turn runs again."""
    holder = await running(limits)
    await look(limits, HOUR)
    assert await fields(limits, holder.session_id, "job") == ["running"]

    for seconds in range(0, 30, 4):
        await look(limits, HOUR + seconds)
        await claim(limits, worker="w2", slots=0)

    assert await fields(limits, holder.session_id, "job", "attempts") == ["queued", "1"]
    assert "turnEnded" not in kinds(await records(limits, holder.session_id))


async def test_a_holder_that_outlives_an_outage_must_write_all_the_same(limits: Broker) -> None:
    holder, stuck = await running(limits), await running(limits)
    await look(limits, HOUR)
    await holder.append("e", notice("back"))

    await look(limits, HOUR + 31)

    assert await fields(limits, holder.session_id, "job") == ["running"]
    assert (await end_state(limits, stuck.session_id))["type"] == "failed"


async def test_each_run_has_the_whole_time(limits: Broker) -> None:
    holder = await running(limits)
    await move_clock(limits, 900_000)
    await runs.release(limits, holder.session_id, holder.fence, budget=5)
    again = await hold(limits)

    await look(limits, 1001)
    assert (await again.append("e", notice("on")))[0] == "ok"
