"""The named places at which a worker's process can be made to die: each is passed, and a wrong name is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import holders
import pytest
from whole_agent import agent, answer_to

import api_shim as agents
from api_shim.local import place_of
from broker import fault_points, queue, runs
from broker.broker import Broker

NOT_IN_A_TURN = {"release.before", "release.after", "sweep.before", "sweep.after"}
"""A turn that goes well is not handed back; the broker asks for a sweep once a minute."""


@pytest.fixture
def passed() -> Iterator[set[str]]:
    """The points that are passed from now on."""
    seen: set[str] = set()

    def noting(point: str) -> Callable[[], Awaitable[None]]:
        async def note() -> None:
            seen.add(point)

        return note

    for point in fault_points.POINTS:
        fault_points.arm(point, noting(point))
    yield seen
    fault_points.disarm()


async def test_the_whole_agent_passes_every_point_of_a_turn(passed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNSTREAM_REDIS_URL", raising=False)
    agents.connect(None)
    session = await agent.start_session()
    state = await session.run("Do all of it.")
    while isinstance(state, agents.Blocked):
        turn = session.turn(state.turn_id)
        await turn.answer(state.callbacks[0].id, answer_to(state.callbacks[0]))
        state = await turn.result(after=state)
    await place_of(None).close()
    assert isinstance(state, agents.Completed)
    assert passed | NOT_IN_A_TURN == set(fault_points.POINTS)


async def test_a_drain_and_a_sweep_pass_theirs(passed: set[str], broker: Broker) -> None:
    holder = await holders.running(broker)
    assert await runs.release(broker, holder.session_id, holder.fence, budget=5)
    await queue.sweep(broker, 0)
    assert passed >= NOT_IN_A_TURN


def run(fault: str, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with a fault point armed."""
    env = {**os.environ, "TURNSTREAM_FAULT": fault}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)


def test_the_process_dies_at_the_passing_that_is_told() -> None:
    program = """
import asyncio
from broker import fault_points
for n in range(5):
    asyncio.run(fault_points.reach("tool.started"))
    asyncio.run(fault_points.reach("tool.ran"))
    print(n)
"""
    died = run("tool.ran:3", program)
    assert (died.returncode, died.stdout, died.stderr) == (-signal.SIGKILL, "0\n1\n", "fault tool.ran\n")
    assert run("tool.ran", program).stdout == ""
    assert run("", program).returncode == 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("tool.run", "There is no fault point 'tool.run'. Known points: claim.before, claim.after, begin.before"),
        ("tool.ran:0", "After the colon stands which passing it is, a number from 1 on, not '0'."),
        ("tool.ran:", "After the colon stands which passing it is, a number from 1 on, not ''."),
    ],
)
def test_what_is_no_point_is_refused_before_anything_runs(fault: str, said: str) -> None:
    refused = run(fault, "import api_shim.cli.worker\nprint('it runs')")
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"TURNSTREAM_FAULT: {said}")
    assert refused.stderr.count("\n") == 1
