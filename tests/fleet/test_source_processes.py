"""Tool sources of worker processes: their programs end with them, and a sign-in is answered on whatever worker there is."""

from __future__ import annotations

import asyncio
import signal

import pytest
from eventually import eventually
from fleet import Fleet
from tool_servers import Case, alive

import api_shim as agents


@pytest.fixture
def librarians(fleet: Fleet, case: Case) -> Fleet:
    token = str(case.path.with_name("token"))
    fleet.env |= {"MCP_CASE": str(case.path), "TOOL_SERVER": f"{case.url}?case={case.path}", "TOKEN_FILE": token}
    return fleet


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_a_worker_s_programs_end_with_it(librarians: Fleet, case: Case, ending: signal.Signals) -> None:
    agent = agents.Agent.load_from(agent_name="librarian", url=librarians.url)
    with librarians.worker("--lease", "2", serves="fleet_sources:librarian") as worker:
        session = await agent.start_session()
        await session.send_message("mcp.box.hang")
        await eventually(lambda: case.log, "the call is there", until=lambda log: "call hang" in log, within=20)
        (pid,) = case.pids()
        assert alive(pid)
        worker.process.send_signal(ending)
        code = await asyncio.to_thread(worker.process.wait, 15)

    assert code == (0 if ending == signal.SIGTERM else -9)
    await eventually(lambda: alive(pid), "the program is gone", until=lambda lives: not lives)
    await session.cancel()


async def test_a_sign_in_survives_its_worker_and_is_answered_on_another(librarians: Fleet, case: Case) -> None:
    agent = agents.Agent.load_from(agent_name="reader", url=librarians.url)
    session = await agent.start_session()
    turn = await session.send_message("connectors.notion.whoami")
    with librarians.worker(serves="fleet_sources:reader"):
        state = await turn.result()
        assert isinstance(state, agents.Blocked)
        (callback,) = state.callbacks
    case.path.with_name("token").write_text("s3cret")
    await turn.answer(callback.id, agents.SignInAnswer(connected=("connectors:notion",)))
    with librarians.worker(serves="fleet_sources:reader") as other:
        assert isinstance(await turn.result(), agents.Completed)

    (result,) = [entry async for entry in session.history() if isinstance(entry, agents.ToolResultEntry)]
    assert result.content == (agents.TextContentBlock(text="Bearer s3cret"),)
    assert not any("s3cret" in line for line in other.log.lines)
    await session.cancel()
