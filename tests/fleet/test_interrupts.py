"""An interrupt ends a turn at once, whatever it is doing, from any process (F40)."""

from __future__ import annotations

import asyncio
import time

import pytest
from eventually import eventually
from fleet import Fleet, end, line_of

import api_shim as agents
from api_shim.local import place_of


async def interrupted_by_another_process(fleet: Fleet, session: agents.Session, turn: agents.Turn) -> str:
    """Interrupt a turn from a process of its own; return what that process was told."""
    client = fleet.client("interrupt", session.id, turn.id)
    said = await asyncio.to_thread(line_of, client)
    end(client)
    return str(said)


async def assert_ended_well(session: agents.Session, turn: agents.Turn) -> None:
    """The turn is interrupted; each entry completed once; of the turn, nothing follows its end."""
    state = await turn.get()
    assert isinstance(state, agents.Interrupted)
    assert state.cause == "interrupted"
    await asyncio.sleep(0.1)  # whatever a worker might still write would come now
    await session.cancel()
    events = [event async for event in session.iter_events() if not isinstance(event, agents.TextDelta)]
    added = [event.entry.id for event in events if isinstance(event, agents.EntryAdded)]
    completed = [event.entry.id for event in events if isinstance(event, agents.EntryCompleted)]
    assert sorted(added) == sorted(completed)
    of_turn = [event for event in events if event.turn_id == turn.id]
    assert isinstance(of_turn[-1], agents.TurnEnded)
    calls = [
        e.entry.tool_call_id
        for e in events
        if isinstance(e, agents.EntryAdded) and isinstance(e.entry, agents.ToolCallEntry)
    ]
    results = [
        e.entry.tool_call_id
        for e in events
        if isinstance(e, agents.EntryCompleted) and isinstance(e.entry, agents.ToolResultEntry)
    ]
    assert calls == results


async def test_before_any_worker_has_claimed_it(fleet: Fleet, clerk: agents.Agent) -> None:
    session = await clerk.start_session()
    turn = await session.send_message("hello")

    assert await interrupted_by_another_process(fleet, session, turn) == "Turn"

    with fleet.worker():  # who comes later finds nothing to do
        await assert_ended_well(session, turn)


@pytest.mark.parametrize(
    ("message", "running"),
    [
        ("stream 5000", agents.TextDelta),
        ("tool 60", agents.EntryAdded),
        ("thread 3", agents.EntryAdded),
        ("ask someone", agents.TurnUpdated),
    ],
    ids=["the model writes", "a tool runs", "a tool runs in a thread", "parked"],
)
async def test_while_it_is_at_work(
    message: str, running: type[agents.Event], fleet: Fleet, clerk: agents.Agent
) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        turn = await session.send_message(message)
        async for event in session.iter_events():
            at_tool = isinstance(event, agents.EntryAdded) and isinstance(event.entry, agents.ToolResultEntry)
            if isinstance(event, running) and (at_tool or running is not agents.EntryAdded):
                break

        effects, tool = f"{fleet.prefix}effect:", message.startswith("tool")
        client = place_of(fleet.url).broker.client
        if tool:  # its entry comes before its first line
            await eventually(lambda: client.get(f"{effects}begun"), "the tool has begun")

        before = time.monotonic()
        assert await turn.interrupt() == turn
        assert isinstance(await turn.result(timeout=1), agents.Interrupted)
        assert time.monotonic() - before < 1
        if tool:
            await eventually(lambda: client.get(f"{effects}stopped"), "the tool has stopped", within=1.0)
        second = await session.run("hello", timeout=10)  # the session goes on, and so does the worker

        assert isinstance(second, agents.Completed)
        await assert_ended_well(session, turn)


async def test_after_its_end_it_is_a_conflict(fleet: Fleet, clerk: agents.Agent) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        state = await session.run("hello")
        assert isinstance(state, agents.Completed)

        turn = session.turn(state.turn_id)
        assert await turn.interrupt() == agents.TurnConflict(None)
        assert await interrupted_by_another_process(fleet, session, turn) == "TurnConflict"
        assert await turn.get() == state


async def test_close_to_its_end_it_is_one_or_the_other(fleet: Fleet, clerk: agents.Agent) -> None:
    """The turn completes or is interrupted, and whoever interrupted is told which."""
    with fleet.worker():
        for at in range(40):
            session = await clerk.start_session()
            turn = await session.send_message("hello")
            await asyncio.sleep(at * 0.0002)
            outcome = await turn.interrupt()
            state = await turn.result()
            assert isinstance(state, agents.Interrupted if outcome == turn else agents.Completed)
            ends = [event async for event in turn.iter_events() if isinstance(event, agents.TurnEnded)]
            assert [event.state for event in ends] == [state]


async def test_a_viewer_that_leaves_stops_nothing(fleet: Fleet, clerk: agents.Agent) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        viewer = fleet.client("observe", session.id, "", "7")
        await session.rename("watched")
        await asyncio.to_thread(line_of, viewer)  # it is there, so the turn cannot end before it has come
        turn = await session.send_message("stream 500")
        for _ in range(6):
            await asyncio.to_thread(line_of, viewer)
        end(viewer)
        waiting = asyncio.create_task(turn.result())
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError) as left:
            await waiting
        assert any(turn.id in note and "interrupt" in note for note in left.value.__notes__)

        assert isinstance(await turn.result(), agents.Completed)
