"""Leases that differ by worker: long and short ones look by their own, and nobody takes another for dead or alive by mistake."""

from __future__ import annotations

import pytest
from holders import move_clock, open_session, queued, start

from broker import queue
from broker.broker import Broker


async def look(broker: Broker, lease: float, at: float) -> list[queue.Job]:
    """A worker with this lease looks for jobs, so many seconds after the start."""
    await move_clock(broker, int(at * 1000))
    key = broker.keys.queue(0, "agent")
    claimed = await queue.claim(broker, key, worker=f"w{lease}", slots=1, lease=lease, budget=5)
    return [queue.read_job(*job) for job in claimed.jobs]


async def taken(broker: Broker, lease: float, at: float) -> str:
    """A turn that a worker with this lease has claimed; its job id."""
    await start(broker, await open_session(broker))
    (job,) = await look(broker, lease, at)
    return job.id


@pytest.mark.parametrize("away", [30.0, 3600.0, -3600.0])
async def test_a_short_lease_that_finds_the_broker_back_cuts_no_long_one(broker: Broker, away: float) -> None:
    held = await taken(broker, 60, 0)
    assert await look(broker, 2, 0.4) == []

    for half in range(80):  # 40 s, in which the holder has long renewed: it does at each quarter
        assert await look(broker, 2, 0.4 + away + half / 2) == []

    assert await queued(broker) == ([], [held])


async def test_a_long_lease_that_finds_the_broker_back_steals_no_short_one(broker: Broker) -> None:
    """Ten seconds are less than a third of its own lease, and many of the other."""
    await look(broker, 60, 0)
    held = await taken(broker, 2, 1)

    assert await look(broker, 60, 11) == []

    assert await queued(broker) == ([], [held])
    assert await look(broker, 60, 12.5) == []
    assert await queued(broker) == ([], [held])


async def test_a_worker_with_a_short_lease_that_died_is_found_out_by_a_long_one(broker: Broker) -> None:
    await look(broker, 60, 0)
    held = await taken(broker, 2, 1)
    looks = [await look(broker, 60, at) for at in (12, 14.1)]

    assert looks[0] == []
    assert [f"{job.turn_id}:{job.wake}" for job in looks[1]] == [f"{held.split(':')[-2]}:2"]


async def test_a_worker_with_a_long_lease_that_died_is_found_out_by_a_short_one_that_starts(broker: Broker) -> None:
    """A tick that is old for its own lease is young for those that were there."""
    held = await taken(broker, 60, 0)
    for at in (15, 30, 45, 58):
        assert await look(broker, 60, at) == []

    (job,) = await look(broker, 2, 60.5)

    assert f"{job.turn_id}:{job.wake}" == f"{held.split(':')[-2]}:2"


async def test_a_worker_with_a_short_lease_that_dies_again_and_again_keeps_no_dead_worker_s_job(broker: Broker) -> None:
    """Each of its lives leaves a promise that it breaks; that the broker was away is believed once in a lease of the others."""
    held = await taken(broker, 15, 0)
    jobs: list[queue.Job] = []
    for quarter in range(1, 12):
        jobs += await look(broker, 15, quarter * 3.75 - 0.5)
        jobs += await look(broker, 10, quarter * 3.75)  # its only look in this life

    assert [f"{job.turn_id}:{job.wake}" for job in jobs[:1]] == [f"{held.split(':')[-2]}:2"]
