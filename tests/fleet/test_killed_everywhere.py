"""The whole agent goes through kill -9 of its worker at each place, and completes; nothing is lost, and nothing paid twice.

Each turn has a worker of its own that is killed; one other worker takes over what the killed ones leave behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import holders
import pytest
from eventually import eventually
from fleet import HERE, Fleet
from ledger_agents import CALLS, whole
from whole_agent import answer_to

import api_shim as agents
from broker import fault_points
from broker.broker import Broker
from broker.keys import new_id
from broker.settings import Settings
from broker.stored_session import check_tree, read_tree
from workers.worker import TurnWorker

LEASE_S: Final = 2.0
AT_ONCE: Final = 60
PASSED: Final = {
    "begin": 6,
    "append": 24,
    "park": 4,
    "spawn": 1,
    "finish": 2,
    "model.streaming": 11,
    "model.replied": 7,
    "tool.started": 4,
    "tool.ran": 4,
    "source.called": 1,
    "hook.ran": CALLS,
}
"""How often a turn and its subagent's pass the points that are part of it."""

BESIDE: Final = {"claim": 4, "renew": 3, "expire": 2, "sweep": 1, "release": 1, "leave": 1}
"""The verbs that a worker calls beside its turns, and the call in which it is killed, while a tool runs."""


@dataclass
class Doomed:
    """A worker that is killed, the turn that it serves, and what happened to both."""

    at: str
    dice: random.Random | None = None
    name: str = field(default_factory=lambda: f"whole-{new_id()[:8]}")
    pid: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    died: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0
    missed: bool = False

    @property
    def verb(self) -> str:
        """The verb, or the place, of its fault point."""
        return self.at.partition(":")[0].removesuffix(".before").removesuffix(".after")

    @property
    def sure(self) -> bool:
        """Whether its point is passed in any case: text goes together, and a turn with a quick answer does not park."""
        return self.at.endswith(":1") or self.verb not in ("append", "park", "begin")

    @property
    def stands(self) -> bool:
        """Whether its tools wait for its death."""
        return self.verb in BESIDE

    async def kill(self, signal_: int = signal.SIGKILL) -> None:
        """Send its process a signal, if it still lives."""
        with suppress(ProcessLookupError):
            os.kill(await self.pid, signal_)


class Graveyard:
    """Runs doomed workers, and serves the agent of each one that has died."""

    def __init__(self, fleet: Fleet, folder: Path, worker: TurnWorker) -> None:
        self.broker = worker.broker
        self.folder = folder
        self._worker = worker
        self._doomed: dict[str, Doomed] = {}
        self._forks = subprocess.Popen(
            [sys.executable, str(HERE / "doomed_forks.py")],
            env={**fleet.env, "TURNSTREAM_LEASE": f"{LEASE_S:g}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    async def hear(self) -> None:
        """Take over from the dead, until the program ends."""
        loop, pipe = asyncio.get_running_loop(), self._forks.stdout
        assert pipe is not None
        with pipe:
            while line := await loop.run_in_executor(None, pipe.readline):
                word, name, number = line.decode().split()
                doomed = self._doomed[name]
                if word == "forked":
                    doomed.pid.set_result(int(number))
                    continue
                doomed.status = int(number)
                doomed.died.set()
                await self._worker.serve(whole(name, self.folder).definition)

    def bury(self, doomed: Doomed) -> None:
        """Start a worker that is to die."""
        self._doomed[doomed.name] = doomed
        told = {
            "name": doomed.name,
            "folder": str(self.folder),
            "fault": "" if doomed.dice else doomed.at,
            "stands": doomed.stands,
        }
        assert self._forks.stdin is not None
        self._forks.stdin.write(json.dumps(told).encode() + b"\n")
        self._forks.stdin.flush()

    def end(self) -> None:
        """End every worker."""
        assert self._forks.stdin is not None
        self._forks.stdin.close()
        self._forks.wait(10)


@asynccontextmanager
async def graveyard(fleet: Fleet, folder: Path) -> AsyncIterator[Graveyard]:
    """Run the worker that takes over."""
    broker = Broker(Settings(redis_url=fleet.url, lease=LEASE_S))
    worker = TurnWorker(broker, slots=500)
    main = asyncio.create_task(worker.main())
    await worker.ready.wait()
    yard = Graveyard(fleet, folder, worker)
    hearing = asyncio.create_task(yard.hear())
    try:
        yield yard
    finally:
        yard.end()
        await hearing
        await worker.drain(0)
        await main
        await broker.close()


async def go_through(yard: Graveyard, doomed: Doomed) -> str:
    """Have one turn done whose worker dies; return the id of its session."""
    session = await agents.Agent.load_from(agent_name=doomed.name).start_session()
    yard.bury(doomed)
    turn = await session.start_turn("Do all of it.")
    assert isinstance(turn, agents.Turn)
    beside = asyncio.create_task(see_to_its_death(yard, doomed, session))
    try:
        state = await turn.result(timeout=60)
        assert isinstance(state, agents.Blocked)
        joined = await session.send_message("And be careful.")
        assert isinstance(joined, agents.Turn)
        assert joined.id == turn.id
        while isinstance(state, agents.Blocked):
            for callback in state.callbacks:
                await turn.answer(callback.id, answer_to(callback))
            state = await turn.result(after=state, timeout=60)
        done, _ = await asyncio.wait([beside], timeout=1.0 if not doomed.sure else 30.0)
        if not done and not doomed.sure:
            doomed.missed = True
            await doomed.kill()
        await asyncio.wait_for(beside, 5)
    except TimeoutError:
        raise AssertionError(f"{doomed.at}: the turn did not end, or its worker did not die") from None
    finally:
        beside.cancel()
    assert os.WIFSIGNALED(doomed.status), f"{doomed.at} was not reached: its worker ended by itself"
    assert isinstance(state, agents.Completed), (doomed.at, state)
    assert state.text == "All is done.", doomed.at
    return session.id


async def see_to_its_death(yard: Graveyard, doomed: Doomed, session: agents.Session) -> None:
    """Bring about what its fault point waits for, or kill it at a random moment; return when it is dead."""
    if doomed.dice is not None:
        seen, last = 0, doomed.dice.randrange(90)
        async for event in session.iter_events():
            seen += 1
            if seen > last or isinstance(event, agents.TurnEnded):
                break
        await asyncio.sleep(doomed.dice.uniform(0, 0.02))
        await doomed.kill()
    elif doomed.verb in ("release", "leave"):
        ledger = yard.folder / doomed.name
        await eventually(lambda: ledger.exists() and "pay" in ledger.read_text(), "its tool stands", within=30)
        await doomed.kill(signal.SIGTERM)
    elif doomed.verb == "sweep":
        while not doomed.died.is_set():
            await yard.broker.commands.command("DEL", yard.broker.keys.base(0) + "swept")
            await asyncio.sleep(0.02)
    await doomed.died.wait()


async def expect_whole_story(yard: Graveyard, doomed: Doomed, session_id: str) -> None:
    """What the logs and the ledger say of a turn that has completed."""
    for of, findings in check_tree(await read_tree(yard.broker, session_id)):
        assert findings == [], (doomed.at, of.session_id)
    (child,) = await agents.session(session_id).subagents()
    root, clerk = [await holders.records(yard.broker, each) for each in (session_id, child.id)]
    for log in (root, clerk):
        holders.expect_whole(log)
        assert [record["type"] for record in log].count("turnEnded") == 1, doomed.at
    entries = [[record["entry"] for record in log if record["type"] == "entryCompleted"] for log in (root, clerk)]
    messages = [e for log in entries for e in log if e["type"] == "message" and e.get("role", "user") == "user"]
    said = [e["content"][0]["text"] for e in messages]
    assert said == ["Do all of it.", "And be careful.", "Pay 40."], doomed.at
    states = [[e["details"]["state"] for e in log if e["type"] == "checkpoint"] for log in entries]
    assert [state[-1] for state in states] == [{"calls": CALLS}, {"calls": 1}], doomed.at

    did = (yard.folder / doomed.name).read_text().split("\n")[:-1]
    results: dict[str, list[tuple[str, bool]]] = {}
    for entry in (e for log in entries for e in log if e["type"] == "toolResult"):
        results.setdefault(entry["name"], []).append((entry["content"][0]["text"], entry["isError"]))
    assert results["client.look_up"] == [("found", False)], doomed.at
    assert "look_up" in did
    assert results["client.read_clipboard"] == [("a number", False)], doomed.at
    for amount, (text, failed) in zip((50, 40), results["client.pay"], strict=True):
        paid = did.count(f"pay {amount}")
        assert paid <= 1, doomed.at
        assert (text, paid) == (f"paid {amount}", 1) if not failed else "worker was lost" in text, (doomed.at, text)


async def all_go_through(fleet: Fleet, folder: Path, all_doomed: Iterable[Doomed]) -> None:
    """Have turns done side by side."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(yard: Graveyard, doomed: Doomed) -> None:
        async with room:
            session_id = await go_through(yard, doomed)
        await expect_whole_story(yard, doomed, session_id)

    async with graveyard(fleet, folder) as yard, asyncio.TaskGroup() as group:
        for doomed in all_doomed:
            group.create_task(one(yard, doomed))


def passings() -> list[str]:
    """Each passing of each fault point, as `TURNSTREAM_FAULT` names it."""
    found = []
    for point in fault_points.POINTS:
        verb = point.removesuffix(".before").removesuffix(".after")
        found += [f"{point}:{n}" for n in ([BESIDE[verb]] if verb in BESIDE else range(1, PASSED[verb] + 1))]
    return found


async def test_a_worker_killed_at_each_passing_of_each_named_point(fleet: Fleet, tmp_path: Path) -> None:
    doomed = [Doomed(point) for point in passings()]
    assert {each.at.partition(":")[0] for each in doomed} == set(fault_points.POINTS)
    await all_go_through(fleet, tmp_path, doomed)
    missed = [each.at for each in doomed if each.missed]
    assert len(missed) < len(doomed) / 5, missed
    print("not passed:", *missed)


@pytest.mark.parametrize("turns", [20, pytest.param(500, marks=pytest.mark.soak)])
async def test_workers_killed_at_random_moments(fleet: Fleet, tmp_path: Path, turns: int) -> None:
    seed = int(os.environ.get("TURNSTREAM_TEST_SEED") or new_id()[:8], 16)
    print(f"TURNSTREAM_TEST_SEED={seed:08x}")
    doomed = [Doomed(f"moment {n}", random.Random(f"{seed} {n}")) for n in range(turns)]  # noqa: S311 - moments, no secrets
    await all_go_through(fleet, tmp_path, doomed)
