"""A turn that is quiet for several leases, with a long tool or a long thought, is nobody's to cut (F31, the worker's side)."""

from __future__ import annotations

import asyncio
import json

from fleet import Fleet, end

import api_shim as agents
from api_shim.local import place_of

LEASE_S = 2.0
QUIET_S = 5.0


async def test_it_is_run_once_to_its_end_and_its_viewers_miss_nothing(fleet: Fleet, clerk: agents.Agent) -> None:
    """Also beside a tool that keeps the interpreter busy. Another worker stands by, and would take what is due."""
    sent = [f"{kind} {QUIET_S}" for kind in ("tool", "thread", "think", "busy", "busy")]
    with fleet.worker("--lease", str(LEASE_S)) as worker, fleet.worker("--lease", str(LEASE_S)) as other:
        sessions = [await clerk.start_session() for _ in sent]
        viewers = [fleet.client("observe", session.id, "", "0") for session in sessions]
        turns = [await session.send_message(said) for session, said in zip(sessions, sent, strict=True)]
        seen = asyncio.gather(*(_all(session) for session in sessions))

        states = await asyncio.gather(*(turn.result(timeout=60) for turn in turns))

        assert all(isinstance(state, agents.Completed) for state in states)
        for session in sessions:
            await session.cancel()
        logs = await seen
        for viewer, log in zip(viewers, logs, strict=True):
            out, _ = await asyncio.to_thread(viewer.communicate, timeout=20)
            *events, loaded = [json.loads(line) for line in out.splitlines()]
            assert loaded == []
            stored = [event.id for event in log if not isinstance(event, agents.TextDelta)]
            assert [event_id for event_id, kind in events if kind != "TextDelta"] == stored
            assert [int(event_id.rpartition(":")[2].split("-")[0]) for event_id in stored] == [
                *range(1, len(stored) + 1)
            ]
            assert [event for event in log if isinstance(event, agents.Notice)] == []
        begun = [json.loads(line) for each in (worker, other) for line in each.log.lines if "turn_begun" in line]
        assert sorted(line["turn"] for line in begun) == sorted(turn.id for turn in turns)
        assert {line["attempt"] for line in begun} == {1}
        effects = place_of(fleet.url).broker.client
        assert await effects.get(f"{fleet.prefix}effect:begun") == b"1"
        assert not await effects.get(f"{fleet.prefix}effect:stopped")
        end(*viewers)


async def _all(session: agents.Session) -> list[agents.Event]:
    return [event async for event in session.iter_events()]


async def test_a_worker_says_which_tools_may_be_longer_than_a_turn_may_be_silent(fleet: Fleet) -> None:
    """The turn would fail with `no_progress` before such a tool's own time is over."""
    fleet.env["TURNSTREAM_NO_PROGRESS"] = "60"
    fleet.env["TURNSTREAM_TOOL_TIMEOUT"] = "61"
    with fleet.worker() as worker:
        line = json.loads(worker.log.until("tool_outlives_progress"))
        assert line["tools"] == ["client.pay", "client.wait_long", "client.block", "client.compute"]
        assert (line["level"], line["agent"], line["no_progress"]) == ("warning", "clerk", 60)
