"""Deploys: a worker that is told to stop finishes what it can, hands back the rest, and no turn pays for it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import holders
import pytest
from eventually import eventually
from fleet import HERE, Fleet, WorkerProcess
from load import Observed
from tool_servers import Case

import api_shim as agents
from api_shim.local import place_of

LEASE_S: Final = 2.0
LEASE: Final = ("--lease", str(LEASE_S))
AT_ONCE_S: Final = 1.0
"""Within which the rest is handed back, once the grace is over."""


async def at_work(session: agents.Session) -> None:
    """Wait until a tool of the session runs."""
    async for event in session.iter_events():
        if isinstance(event, agents.EntryAdded) and isinstance(event.entry, agents.ToolResultEntry):
            return


async def summary_of(worker: WorkerProcess) -> dict[str, Any]:
    """Wait for a worker's end, which is a good one; return its summary, its last line."""
    assert await asyncio.to_thread(worker.process.wait, 30) == 0
    worker.log.thread.join(timeout=5)
    last: dict[str, Any] = json.loads(worker.log.lines[-1])
    assert last["event"] == "worker_stopped"
    return last


def said_at(worker: WorkerProcess, word: str) -> list[datetime]:
    """When a worker said the lines that hold a word."""
    return [datetime.fromisoformat(json.loads(line)["timestamp"]) for line in worker.log.lines if word in line]


async def test_two_of_four_turns_end_within_the_grace_and_two_are_handed_back(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    """F08: no claims at once, two finish, two go on elsewhere within a second, exit status 0, a summary of all four."""
    grace = 4
    with fleet.worker(*LEASE, "--grace", str(grace)) as worker, fleet.worker(*LEASE) as other:
        other.process.send_signal(signal.SIGSTOP)  # until the first one has them all
        sessions = [await clerk.start_session() for _ in range(4)]
        seconds = (2.5, 2.5, 60, 60)
        turns = [await session.send_message(f"tool {s}") for session, s in zip(sessions, seconds, strict=True)]
        await asyncio.gather(*map(at_work, sessions))
        other.process.send_signal(signal.SIGCONT)
        worker.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(worker.log.until, "worker_draining")
        late = await (await clerk.start_session()).send_message("hello")
        assert isinstance(await late.result(timeout=10), agents.Completed)

        for turn in turns[2:]:
            await asyncio.to_thread(other.log.until, f'"turn": "{turn.id}"')
        summary = await summary_of(worker)
        assert [isinstance(await turn.result(timeout=10), agents.Completed) for turn in turns] == [True] * 4

    ids = [turn.id for turn in turns]
    assert sorted(summary["finished"]) == sorted(ids[:2])
    assert sorted(summary["handed_back"]) == sorted(ids[2:])
    assert summary["turns"] == 2
    began = said_at(worker, "worker_draining")[0]
    assert max(said_at(worker, '"outcome": "stopped"')) - began < timedelta(seconds=grace + AT_ONCE_S)
    assert not [line for line in worker.log.lines if late.id in line]
    assert not [line for line in worker.log.lines if '"level": "warning"' in line]


async def test_leases_are_renewed_while_a_worker_drains(fleet: Fleet, clerk: agents.Agent) -> None:
    """F09: a turn that takes two leases after SIGTERM, within the grace, is nobody else's."""
    with fleet.worker(*LEASE, "--grace", "60") as worker, fleet.worker(*LEASE) as other:
        other.process.send_signal(signal.SIGSTOP)
        session = await clerk.start_session()
        observed = Observed(session)
        turn = await session.send_message(f"tool {2.2 * LEASE_S}")
        await at_work(session)
        other.process.send_signal(signal.SIGCONT)
        worker.process.send_signal(signal.SIGTERM)

        assert isinstance(await turn.result(timeout=20), agents.Completed)
        assert (await summary_of(worker))["finished"] == [turn.id]
        assert not [line for line in other.log.lines if "turn_begun" in line]
    await observed.expect_whole(place_of(fleet.url).broker)
    assert not [event for event in observed.seen if isinstance(event, agents.Notice)]


async def test_ten_rolling_restarts_during_one_turn_cost_no_attempt(fleet: Fleet, clerk: agents.Agent) -> None:
    """F10, with three attempts allowed: each deploy hands the turn to the next worker, and the last one completes it."""
    fleet.env["TURNSTREAM_MAX_ATTEMPTS"] = "3"
    broker = place_of(fleet.url).broker
    with ExitStack() as workers:
        running = workers.enter_context(fleet.worker(*LEASE))
        session = await clerk.start_session()
        observed = Observed(session)
        turn = await session.send_message("stream 1500")
        for _ in range(10):
            await asyncio.to_thread(running.log.until, '"turn_begun"')
            upcoming = workers.enter_context(fleet.worker(*LEASE))
            running.process.send_signal(signal.SIGTERM)
            assert (await summary_of(running))["handed_back"] == [turn.id]
            running = upcoming
        await asyncio.to_thread(running.log.until, '"turn_begun"')
        assert await holders.fields(broker, session.id, "attempts") == ["1"]

        assert isinstance(await turn.result(timeout=30), agents.Completed)
    await observed.expect_whole(broker)
    assert not [event for event in observed.seen if isinstance(event, agents.Notice)]


async def test_ctrl_c_at_a_terminal_reaches_the_whole_group_and_a_tool_s_program_goes_on(
    fleet: Fleet, case: Case
) -> None:
    """Else its call would fail in the midst of a drain that lets it finish."""
    fleet.env |= {"MCP_CASE": str(case.path), "TOOL_SERVER": case.url, "TOKEN_FILE": "none"}
    librarian = agents.Agent.load_from(agent_name="librarian", url=fleet.url)
    with fleet.worker(*LEASE, "--grace", "30", serves="fleet_sources:librarian", group=True) as worker:
        session = await librarian.start_session()
        turn = await session.send_message("mcp.box.slow")
        await eventually(lambda: case.log, "the call is there", until=lambda log: "call slow" in log, within=20)
        os.killpg(worker.process.pid, signal.SIGINT)
        await asyncio.to_thread(worker.log.until, "worker_draining")
        await (await librarian.start_session()).send_message("left to others")
        case.say(go=True)

        assert isinstance(await turn.result(timeout=20), agents.Completed)
        assert (await summary_of(worker))["finished"] == [turn.id]
    (result,) = [entry async for entry in session.history() if isinstance(entry, agents.ToolResultEntry)]
    assert not result.is_error


def starting(fleet: Fleet) -> subprocess.Popen[str]:
    """Start a worker process."""
    command = [sys.executable, "-m", "api_shim.cli", "worker", "fleet_agents:clerk", "--json"]
    return subprocess.Popen(command, cwd=HERE, env=fleet.env, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_worker_that_is_told_to_stop_before_it_has_loaded_says_its_summary_and_exits_0(
    fleet: Fleet, number: signal.Signals
) -> None:
    """As soon as the program listens at all: a third of a second before it is ready to work."""
    process = starting(fleet)
    status = Path(f"/proc/{process.pid}/status")

    def listens() -> bool:
        caught = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    await eventually(listens, "it listens", within=10, every=0.001)
    process.send_signal(number)
    _, err = await asyncio.to_thread(process.communicate, timeout=20)

    assert process.returncode == 0
    lines = [json.loads(line) for line in err.splitlines()]
    assert "worker_started" not in [line["event"] for line in lines]
    summary = lines[-1]
    assert (summary["event"], summary["turns"], summary["handed_back"]) == ("worker_stopped", 0, [])


def test_it_listens_before_anything_else_is_loaded() -> None:
    """What takes long comes after: nothing of others' is there yet when the first of them is asked for."""
    program = """
import os, signal, sys
sys.argv = ["turnstream", "worker"]
class First:
    def find_spec(self, name, path=None, target=None):
        if name in ("click", "pydantic", "redis", "structlog"):
            print(name, signal.getsignal(signal.SIGTERM).__module__, signal.getsignal(signal.SIGINT).__module__, flush=True)
            os._exit(0)
sys.meta_path.insert(0, First())
import api_shim.cli
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)

    assert (done.stdout, done.stderr) == ("click api_shim.cli.stop_signals api_shim.cli.stop_signals\n", "")
