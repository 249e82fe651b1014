"""An interrupt ends a turn at once, whatever it is doing, from any process (F40)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable

import pytest
from eventually import eventually
from fleet import Fleet, end, line_of

import api_shim as agents
from api_shim.local import place_of
from broker import queue, runs


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


async def test_the_tool_that_runs_is_stopped_and_the_worker_goes_on(fleet: Fleet, clerk: agents.Agent) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        turn = await session.send_message("tool 60")
        effects, client = f"{fleet.prefix}effect:", place_of(fleet.url).broker.client
        await eventually(lambda: client.get(f"{effects}begun"), "the tool has begun")

        assert await turn.interrupt() == turn
        assert isinstance(await turn.result(timeout=1), agents.Interrupted)
        await eventually(lambda: client.get(f"{effects}stopped"), "the tool has stopped", within=1.0)
        second = await session.run("hello", timeout=10)

        assert isinstance(second, agents.Completed)
        await assert_ended_well(session, turn)


# In every state, with its worker alive, frozen or dead.


class AtWork:
    """A session with a turn in some state, and an observer that waits for that turn's end."""

    def __init__(self, session: agents.Session, turn: agents.Turn) -> None:
        self.session = session
        self.turn = turn
        self._events = session.iter_events()
        self._end: asyncio.Task[agents.TurnEnded] | None = None

    async def saw(self, sign: Callable[[agents.Event], bool]) -> None:
        """Observe until an event shows the state, and from then on for the end."""
        async for event in self._events:
            if sign(event):
                break
        self._end = asyncio.create_task(self._ended())

    async def _ended(self) -> agents.TurnEnded:
        async for event in self._events:
            if isinstance(event, agents.TurnEnded):
                return event
        raise AssertionError("the session has ended without an end of its turn")

    async def interrupted_within_a_second(self) -> None:
        """Interrupt the turn: the call and the observer take a second together, at most."""
        assert self._end is not None
        async with asyncio.timeout(1):
            assert await self.turn.interrupt() == self.turn
            ended = await self._end
        assert isinstance(ended.state, agents.Interrupted)
        assert ended.turn_id == self.turn.id


def started(event: agents.Event) -> bool:
    return isinstance(event, agents.TurnUpdated | agents.SessionUpdated)


def at_tool(event: agents.Event) -> bool:
    return isinstance(event, agents.EntryAdded) and isinstance(event.entry, agents.ToolResultEntry)


SIGNS: dict[str, Callable[[agents.Event], bool]] = {
    "stream 5000": lambda event: isinstance(event, agents.TextDelta),
    "tool 60": at_tool,
    "thread 3": at_tool,
    "ask someone": lambda event: isinstance(event, agents.CallbackOpened),
    "delegate tool 60": at_tool,
}
"""What brings a turn into each state that a worker has a part in, and shows that it is there."""


async def at_work(clerk: agents.Agent, message: str, sign: Callable[[agents.Event], bool]) -> AtWork:
    session = await clerk.start_session()
    work = AtWork(session, await session.send_message(message))
    await work.saw(sign)
    return work


async def job_of(fleet: Fleet, session: agents.Session) -> str:
    broker = place_of(fleet.url).broker
    (job,) = await broker.read(("HGET", broker.keys.of("session", session.id), "job"))
    return str(job.decode())


async def in_each_state(fleet: Fleet, clerk: agents.Agent) -> dict[str, AtWork]:
    works = dict(zip(SIGNS, await asyncio.gather(*(at_work(clerk, *each) for each in SIGNS.items())), strict=True))

    async def both_parked() -> bool:
        return {await job_of(fleet, works[of].session) for of in ("ask someone", "delegate tool 60")} == {"parked"}

    await eventually(both_parked, "what waits for an answer or a subagent is parked")
    return works


@pytest.mark.parametrize("worker_is", ["alive", "frozen", "dead"])
async def test_in_every_state_whatever_its_worker_is(worker_is: str, fleet: Fleet, clerk: agents.Agent) -> None:
    with fleet.worker() as worker:
        works = await in_each_state(fleet, clerk)
        match worker_is:
            case "frozen":
                worker.process.send_signal(signal.SIGSTOP)
            case "dead":
                worker.process.kill()
                worker.process.wait()
        if worker_is != "alive":  # else nothing stays in the queue
            works["queued"] = await at_work(clerk, "hello", started)
        child = (await works["delegate tool 60"].session.subagents())[0]

        for work in works.values():
            await work.interrupted_within_a_second()

        (task,) = await child.turns()
        assert isinstance(await task.get(), agents.Interrupted)
        worker.process.send_signal(signal.SIGCONT)  # what it was writing comes now, to no effect
        with contextlib.ExitStack() as others:
            if worker_is == "dead":
                others.enter_context(fleet.worker())
            again = await asyncio.gather(*(work.session.run("hello", timeout=10) for work in works.values()))
            assert {type(state) for state in again} == {agents.Completed}
            for work in works.values():
                await assert_ended_well(work.session, work.turn)


async def test_when_it_is_claimed_and_not_begun(fleet: Fleet, clerk: agents.Agent) -> None:
    """Whoever claimed it has done nothing yet, and finds nothing to do."""
    work = await at_work(clerk, "hello", started)
    broker = place_of(fleet.url).broker
    key = broker.keys.queue(0, "clerk")
    claimed = await queue.claim(broker, key, worker="w", slots=1, lease=15, budget=5)
    job = queue.read_job(*claimed.jobs[0])

    await work.interrupted_within_a_second()

    late = {
        "job": job.id,
        "turn": job.turn_id,
        "wake": job.wake,
        "fence": "w:1",
        "worker": "w",
        "after": "0-0",
        "page": 1,
    }
    assert await runs.begin(broker, job.session_id, **late) == "dropped"  # type: ignore[arg-type] # one mapping for all of them
    await assert_ended_well(work.session, work.turn)


async def test_when_it_is_handed_back(fleet: Fleet, clerk: agents.Agent) -> None:
    with fleet.worker() as worker:
        work = await at_work(clerk, "tool 60", at_tool)
        worker.process.terminate()
        await asyncio.to_thread(worker.process.wait, 10)
    assert await job_of(fleet, work.session) == "queued"

    await work.interrupted_within_a_second()

    with fleet.worker():
        assert isinstance(await work.session.run("hello", timeout=10), agents.Completed)
        await assert_ended_well(work.session, work.turn)


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
