"""Many sessions, many processes, and every observer's list equal to the log."""

from __future__ import annotations

import asyncio

from fleet import Fleet, end, line_of, tell

import api_shim as agents

SESSIONS = 200


async def log_of(session: agents.Session) -> list[str]:
    """The ids of a session's stored events; the session has ended."""
    return [event.id async for event in session.iter_events() if not isinstance(event, agents.TextDelta)]


async def observed(session: agents.Session) -> list[str]:
    """The ids that an observer gets who joins now."""
    return await log_of(session)


async def three_turns(session: agents.Session, at: int) -> None:
    for turn in range(3):
        approval = (at + turn) % 2 == 0
        state = await session.run(f"ask {at}.{turn}" if approval else f"hello {turn}")
        while isinstance(state, agents.Blocked):  # the approver is another process
            state = await session.turn(state.turn_id).result(after=state)
        assert isinstance(state, agents.Completed), state
        assert state.text.startswith("Done: ask" if approval else "You said: hello")
    await session.cancel()


async def test_two_workers_run_200_sessions_of_three_turns_and_every_observer_sees_the_log(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    """Half of the turns wait for an approval that another process gives."""
    with fleet.worker(), fleet.worker():
        sessions = [await clerk.start_session() for _ in range(SESSIONS)]
        approver = fleet.client("approve", str(SESSIONS))
        assert line_of(approver) == "ready"
        for session in sessions:
            tell(approver, session.id)
        observers = [asyncio.create_task(observed(session)) for session in sessions]

        await asyncio.gather(*(three_turns(session, at) for at, session in enumerate(sessions)))

        lists = await asyncio.gather(*observers)
        logs = [await log_of(session) for session in sessions]
        assert lists == logs
        for log in logs:
            positions = [int(event.rpartition(":")[2].split("-")[0]) for event in log]
            assert positions == list(range(1, len(positions) + 1))
        assert await asyncio.to_thread(line_of, approver) == SESSIONS * 3 // 2
        end(approver)


async def test_200_observers_of_20_sessions_in_one_process_use_at_most_3_connections(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    with fleet.worker():
        sessions = [await clerk.start_session() for _ in range(20)]
        for session in sessions:
            await session.run("hello")
        from api_shim.local import place_of

        client = place_of(fleet.url).broker.client
        before = {entry["id"] for entry in await client.client_list()}
        observers = fleet.client("observe-many", "200", *(session.id for session in sessions))
        assert await asyncio.to_thread(line_of, observers) == "following"
        opened = [entry for entry in await client.client_list() if entry["id"] not in before]
        assert len(opened) <= 3, opened

        await asyncio.gather(*(session.run(f"hello again {at}") for at, session in enumerate(sessions)))
        for session in sessions:
            await session.cancel()

        seen = await asyncio.to_thread(line_of, observers)
        logs = [await log_of(session) for session in sessions]
        assert seen == [logs[at % 20] for at in range(200)]
        end(observers)


async def test_500_viewers_of_50_turns_leave_the_count_of_connections_as_it_is(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    with fleet.worker():
        sessions = [await clerk.start_session() for _ in range(50)]
        turns = [await session.send_message("stream 1500") for session in sessions]
        from api_shim.local import place_of

        client = place_of(fleet.url).broker.client
        before = len(await client.client_list())
        viewers = fleet.client("observe-many", "500", *(session.id for session in sessions))
        assert await asyncio.to_thread(line_of, viewers) == "following"
        standing = [await turn.get() for turn in turns]
        assert all(isinstance(state, agents.Running) for state in standing)  # they do view turns at work
        listed = await client.client_list()
        assert len(listed) - before <= 3
        # One blocking reader a process at most: the worker's bell. Viewers block on nothing.
        assert sum("b" in entry["flags"] for entry in listed) <= 1

        states = await asyncio.gather(*(turn.result() for turn in turns))
        assert all(isinstance(state, agents.Completed) for state in states)
        for session in sessions:
            await session.cancel()
        seen = await asyncio.to_thread(line_of, viewers)
        logs = [await log_of(session) for session in sessions]
        assert seen == [logs[at % 50] for at in range(500)]
        end(viewers)
