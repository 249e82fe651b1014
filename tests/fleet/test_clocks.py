"""Machines whose clocks differ, and one that jumps: only the broker's clock counts (F44)."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Final

import pytest
import redis
from eventually import eventually
from fleet import Fleet
from load import Observed, clerk_of, ground, running
from real_server import serving

import api_shim as agents
from api_shim.local import place_of

SKEWED: Final = str(Path(__file__).parent / "skewed")
MINUTES_5: Final = 300


def with_clock(fleet: Fleet, skew: int, back: float | None = None) -> Fleet:
    """The same deployment on a machine whose clock is off by `skew` seconds, and jumps after `back` seconds."""
    clock = {"PYTHONPATH": SKEWED, "SKEW": str(skew)} | ({} if back is None else {"BACK": str(back)})
    return Fleet(fleet.url, fleet.prefix, TURNSTREAM_LEASE="2", TURNSTREAM_CALLBACK_TIMEOUT="2", **clock)


async def test_leases_deadlines_and_delays_are_the_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is five minutes ahead, one as far behind, one jumps back by ten; this client is ahead, too."""
    with serving(tmp_path) as server, redis.Redis(port=server.port, decode_responses=True) as admin:
        async with (
            ground(server.url, monkeypatch) as (fleet, _),
            running(with_clock(fleet, MINUTES_5)) as ahead,
            running(with_clock(fleet, -MINUTES_5)) as behind,
            running(with_clock(fleet, MINUTES_5, back=3)) as jumps,
        ):
            real = time.time
            monkeypatch.setattr(time, "time", lambda: real() + MINUTES_5)
            clerk = clerk_of(server.url)

            # Leases: turns that take longer than one stay with whoever holds them.
            long = [Observed(await clerk.start_session()) for _ in range(6)]
            turns = [await each.session.send_message("tool 3.5") for each in long]
            # Deadlines: nobody answers, and the callback expires when it should.
            asked = await clerk.start_session()
            begun = asyncio.get_running_loop().time()
            blocked = await (expires := await asked.send_message("ask someone")).result()
            assert isinstance(blocked, agents.Blocked)
            assert isinstance(await expires.result(after=blocked, timeout=20), agents.Completed)
            assert 2 <= asyncio.get_running_loop().time() - begun < 2 + 2 + 3  # housekeeping looks each two seconds

            for each, turn in zip(long, turns, strict=True):
                assert isinstance(await turn.result(timeout=20), agents.Completed)
                await each.expect_whole(place_of(server.url).broker, [turn])
                assert not [event for event in each.seen if isinstance(event, agents.Notice)]

            # The difference is measured, said once, and found by operators; all three are in the listing.
            def skews() -> dict[str, float]:
                workers = admin.zrange("trouble:{s0}:workers:clerk", 0, -1)
                return {of: int(admin.hget(f"trouble:{{s0}}:worker:{of}", "skew") or 0) / 1000 for of in workers}

            names = [json.loads(worker.log.until("worker_started"))["worker"] for worker in (ahead, behind, jumps)]
            expected = dict(zip(names, (-MINUTES_5, MINUTES_5, MINUTES_5), strict=True))
            await eventually(
                skews,
                "each one's clock is measured",
                until=lambda told: (
                    told.keys() == expected.keys() and all(abs(told[of] - expected[of]) < 1 for of in told)
                ),
            )
            for worker in (ahead, behind, jumps):
                assert len([line for line in worker.log.lines if "clock_skewed" in line]) == 1
