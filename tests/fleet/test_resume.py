"""An observer may stop after any event, and go on in a new process."""

from __future__ import annotations

import asyncio

from fleet import Fleet, end, line_of

import api_shim as agents


async def test_an_observer_that_stops_after_each_event_and_resumes_in_a_new_process_sees_each_once(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    """Each process observes one event and ends; none of them loads a worker's code."""
    with fleet.worker():
        session = await clerk.start_session()
        state = await session.run("hello")
        assert isinstance(state, agents.Completed)
        await session.cancel()
    log = [event.id async for event in session.iter_events() if not isinstance(event, agents.TextDelta)]

    seen: list[str] = []
    while len(seen) < len(log):
        observer = fleet.client("observe", session.id, seen[-1] if seen else "", "1")
        event_id, _kind = await asyncio.to_thread(line_of, observer)
        assert await asyncio.to_thread(line_of, observer) == []
        end(observer)
        seen.append(event_id)

    assert seen == log


async def test_an_observer_of_an_ended_session_in_a_new_process_gets_all_of_it_and_ends(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        await session.run("hello")
        await session.cancel()
    log = [[event.id, type(event).__name__] async for event in session.iter_events()]

    observer = fleet.client("observe", session.id, "", "0")
    out, _ = await asyncio.to_thread(observer.communicate, timeout=20)

    import json

    assert [json.loads(line) for line in out.splitlines()] == [*log, []]
