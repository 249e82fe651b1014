"""A turn that ends each process which runs it goes to the dead letters, and those beside it finish (F05)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from deadly_agents import EXIT
from fleet import HERE, Fleet

import api_shim as agents
from api_shim.local import place_of
from broker.stored_session import check_tree, read_tree

ATTEMPTS = 3
NEIGHBOURS = 10


@asynccontextmanager
async def kept_up(fleet: Fleet, workers: int) -> AsyncIterator[list[int]]:
    """Run workers, each of which is started again when it exits, as a supervisor does; give the exit codes of those that did."""
    env = {**fleet.env, "TURNSTREAM_LEASE": "2", "TURNSTREAM_MAX_ATTEMPTS": str(ATTEMPTS)}
    command = [sys.executable, "-m", "api_shim.cli", "worker", "deadly_agents:clerk", "--grace", "0"]
    codes: list[int] = []

    async def keep_up() -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=HERE, env=env, stderr=asyncio.subprocess.DEVNULL
            )
            try:
                codes.append(await process.wait())
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()

    supervisors = [asyncio.create_task(keep_up()) for _ in range(workers)]
    try:
        yield codes
    finally:
        for each in supervisors:
            each.cancel()
        await asyncio.gather(*supervisors, return_exceptions=True)


@pytest.mark.parametrize("where", ["tool", pytest.param("model", marks=pytest.mark.soak)])
async def test_a_turn_that_ends_the_process_dies_and_its_neighbours_finish(
    fleet: Fleet, clerk: agents.Agent, where: str
) -> None:
    """Its attempts are counted as they start; its neighbours lose some with it, and are not dragged along."""
    deadly = await clerk.start_session()
    turn = await deadly.start_turn(f"crash {where}")
    assert isinstance(turn, agents.Turn)
    beside = [await clerk.start_session() for _ in range(NEIGHBOURS)]
    turns = [await session.send_message("work") for session in beside]

    async with kept_up(fleet, 3) as codes:
        state, *states = await asyncio.wait_for(asyncio.gather(*(each.result() for each in (turn, *turns))), 60)

    assert isinstance(state, agents.Failed)
    assert (state.error.code, state.error.details) == ("worker_lost", {"attempts": ATTEMPTS})
    assert codes[:ATTEMPTS] == [EXIT] * ATTEMPTS
    assert EXIT not in codes[ATTEMPTS:]
    assert {type(each) for each in states} == {agents.Completed}
    (letter,) = [each async for each in agents.list_dead_letters()]
    assert (letter.turn_id, letter.attempts) == (turn.id, ATTEMPTS)
    assert letter.reason == state.error.message
    for session in (deadly, *beside):
        checked = check_tree(await read_tree(place_of(fleet.url).broker, session.id))
        assert [finding for _, findings in checked for finding in findings] == []
