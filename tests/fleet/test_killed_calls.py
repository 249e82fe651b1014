"""A worker process that is killed at any point of a tool call leaves no call without its result (F38)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import pytest
from call_agents import Caller, caller
from eventually import eventually
from fleet import HERE, Fleet

import api_shim as agents
from api_shim.local import place_of
from broker.broker import Broker
from broker.protocol.content import content_text
from broker.settings import Settings
from workers.models import AssistantMessage, ToolMessage
from workers.worker import TurnWorker

LEASE_S: Final = 2.0
KINDS: Final = ("run", "again", "asked", "client", "spawn", "run again asked client spawn")
WRITES: Final = 9
UNKNOWN_EFFECT: Final = re.compile(r"what it did is not known")
NOT_RUN: Final = re.compile(r"was not run: the turn was interrupted before it started")
DONE: Final = {"run": "worked", "again": "worked", "asked": "paid", "client": "blue", "spawn": "helped"}


def expect_one_result_each(request: agents.ModelRequest) -> dict[str, str]:
    """Each call is followed by its one result, in order; give what each says."""
    said: dict[str, str] = {}
    waiting: list[str] = []
    for message in request.messages:
        if isinstance(message, ToolMessage):
            assert waiting.pop(0) == message.call_id
            said[message.call_id] = content_text(message.content)
        else:
            assert not waiting
            waiting = [call.id for call in message.calls] if isinstance(message, AssistantMessage) else []
    assert not waiting
    return said


@contextmanager
def doomed(fleet: Fleet, doom: dict[str, tuple[int, bool]]) -> Iterator[tuple[subprocess.Popen[str], set[str]]]:
    """Run the worker that stops turns where `doom` says; give it, and the sessions whose turns stand there."""
    env = {**fleet.env, "TURNSTREAM_LEASE": str(LEASE_S), "TURNSTREAM_TEST_DOOM": json.dumps(doom)}
    command = [sys.executable, str(HERE / "doomed.py")]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    standing: set[str] = set()

    def hear() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for words in map(str.split, lines):
                if words[:1] == ["standing"]:
                    standing.add(words[1])

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    try:
        yield process, standing
    finally:
        process.kill()
        process.wait(10)
        thread.join(10)


@asynccontextmanager
async def working(fleet: Fleet, model: Caller) -> AsyncIterator[None]:
    """Run a worker in this process, so that what its model is asked can be seen."""
    broker = Broker(Settings(redis_url=fleet.url, lease=LEASE_S))
    worker = TurnWorker(broker, [caller(model).definition], slots=500)
    main = asyncio.create_task(worker.main())
    try:
        yield
    finally:
        await worker.drain(0)
        await asyncio.gather(main, return_exceptions=True)
        await broker.close()


async def test_a_worker_killed_at_every_write_of_every_kind_of_call(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process stands with many turns, each at another write; it is killed; then another worker has them.

    Half of the turns are interrupted while no worker holds them. Every session then takes a new message.
    """
    monkeypatch.setenv("TURNSTREAM_REDIS_URL", fleet.url)  # where the tools count their effects
    agent = agents.Agent.load_from(agent_name="caller", url=fleet.url)
    handlers: dict[str, Any] = {
        "on_approval": lambda _ctx, _request: agents.AllowApproval(),
        "on_client_tool": lambda _call: "blue",
    }
    doom: dict[str, tuple[int, bool]] = {}
    kinds: dict[str, str] = {}
    sessions: list[agents.Session] = []
    for made in (kind for kind in KINDS for _ in range(WRITES * 4)):
        session = await agent.start_session(**handlers)
        at = len(sessions) % (WRITES * 4)
        doom[session.id], kinds[session.id] = (at // 4 + 1, at % 2 == 1), made
        sessions.append(session)
    interrupted = {session.id for at, session in enumerate(sessions) if at % 4 > 1}

    with doomed(fleet, doom) as (process, standing):
        turns = {each.id: asyncio.create_task(each.run(f"{each.id} {kinds[each.id]}")) for each in sessions}

        def settled() -> int:
            return len(standing | {session_id for session_id, turn in turns.items() if turn.done()})

        await eventually(settled, "each stands or has ended", until=lambda n: n == len(sessions), within=60)
        process.send_signal(signal.SIGKILL)
    assert len(standing) > len(sessions) // 2
    cut: set[str] = set()
    for session in sessions:
        if session.id in interrupted & standing:
            (turn,) = await session.turns()
            if await turn.interrupt() == turn:  # else it stood after the write that ended it
                cut.add(session.id)

    model = Caller()
    async with working(fleet, model):
        states = zip(turns, await asyncio.wait_for(asyncio.gather(*turns.values()), 60), strict=True)
        assert {of for of, state in states if isinstance(state, agents.Interrupted)} == cut
        asked = len(model.requests)
        again = await asyncio.gather(*(session.run(f"{session.id} and now?") for session in sessions))
    assert all(isinstance(task.result(), agents.Interrupted | agents.Completed) for task in turns.values())
    assert all(isinstance(state, agents.Completed) for state in again)

    client, seen = place_of(fleet.url).broker.client, 0
    for request in model.requests[asked:]:
        said = expect_one_result_each(request)
        session_id = content_text(request.messages[-1].content).partition(" ")[0]  # type: ignore[union-attr] # a person's
        for kind, text in said.items():
            ran = int(await client.get(f"{fleet.prefix}effect:{session_id}.{kind}") or 0)
            assert ran <= 1 or kind == "again"
            assert not (ran and NOT_RUN.search(text)), (kind, doom[session_id])
            assert text == DONE[kind] or NOT_RUN.search(text) or UNKNOWN_EFFECT.search(text), (kind, text)
            seen += bool(UNKNOWN_EFFECT.search(text))
    assert seen
    for request in model.requests:
        expect_one_result_each(request)
