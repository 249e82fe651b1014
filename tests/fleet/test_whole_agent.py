"""An agent with everything parks three times, and goes on each time on another worker; its log is that of one process."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from eventually import eventually
from fleet import Fleet, WorkerProcess
from whole_agent import agent, answer_to

import api_shim as agents
from api_shim.event_json import event_to_json
from api_shim.local import place_of
from broker.log import read_events

IDS = re.compile(r"(\d+-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIMES = re.compile(r"\d+-\d{13}|\d{4}-\d\d-\d\dT[\d:.+Z]+")


@contextmanager
def asleep(worker: WorkerProcess) -> Iterator[None]:
    """Freeze a worker, so that another one takes what comes."""
    os.kill(worker.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker.process.pid, signal.SIGCONT)


async def told(session: agents.Session) -> list[dict[str, Any]]:
    """A session's log, without what differs from run to run: ids are numbered as they appear, times are left out."""
    place = await session._place()
    said = json.dumps([event_to_json(event) async for event in read_events(place.broker, session.id)])
    known: dict[str, str] = {}
    said = IDS.sub(lambda found: known.setdefault(found[0], f"id{len(known)}"), said)
    found: list[dict[str, Any]] = json.loads(TIMES.sub("time", said))
    return found


async def has_begun(worker: WorkerProcess, turn: agents.Turn) -> int:
    """What `begun` says, for waiting."""
    return begun(worker, turn)


def begun(worker: WorkerProcess, turn: agents.Turn) -> int:
    """How often a worker has begun a turn."""
    return sum("turn_begun" in line and turn.id in line for line in worker.log.lines)


async def parked(session: agents.Session) -> None:
    """Wait until nobody holds a turn of the session or of its subagents: a question is there a moment before its turn parks."""
    broker = (await session._place()).broker

    async def jobs() -> set[bytes]:
        ids = [session.id, *(child.id for child in await session.subagents())]
        return {await broker.reads.command("HGET", broker.keys.of("session", each), "job") for each in ids}

    await eventually(jobs, "nobody holds a turn", until=lambda found: found == {b"parked"})


async def in_one_process(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, Any]]]:
    monkeypatch.delenv("TURNSTREAM_REDIS_URL", raising=False)
    agents.connect(None)
    session = await agent.start_session()
    state = await session.run("Do all of it.")
    questions = 0
    while isinstance(state, agents.Blocked):
        questions += 1
        turn = session.turn(state.turn_id)
        await turn.answer(state.callbacks[0].id, answer_to(state.callbacks[0]))
        state = await turn.result(after=state)
    assert isinstance(state, agents.Completed)
    assert questions == 3
    logs = [await told(each) for each in (session, *await session.subagents())]
    await place_of(None).close()
    return logs


async def test_each_resume_is_on_the_other_worker_and_the_log_is_that_of_one_process(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = await in_one_process(monkeypatch)
    agents.connect(fleet.url)
    fleet.env["TURNSTREAM_LEASE"] = "2"
    with fleet.worker(serves="whole_agent:agent") as one, fleet.worker(serves="whole_agent:agent") as two:
        session = await agents.Agent.load_from(agent_name="whole").start_session()
        ran, other = one, two
        with asleep(other):
            turn = await session.start_turn("Do all of it.")
            assert isinstance(turn, agents.Turn)
            state = await turn.result(timeout=60)
        for _ in range(3):
            assert isinstance(state, agents.Blocked), state
            await parked(session)
            before = begun(other, turn)
            with asleep(ran):
                await turn.answer(state.callbacks[0].id, answer_to(state.callbacks[0]))
                state = await turn.result(after=state, timeout=60)
            await eventually(partial(has_begun, other, turn), "its log", until=before.__lt__)
            assert begun(other, turn) == before + 1
            ran, other = other, ran
    assert isinstance(state, agents.Completed)
    logs = [await told(each) for each in (session, *await session.subagents())]
    assert len(logs) == 2
    for log, expected in zip(logs, alone, strict=True):
        assert [event["type"] for event in log] == [event["type"] for event in expected]
        for event, same in zip(log, expected, strict=True):
            assert event == same
