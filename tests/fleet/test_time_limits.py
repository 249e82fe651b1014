"""Deadlines that worker processes keep, in real time: nobody answers, and nothing moves (F07, F37)."""

from __future__ import annotations

from eventually import eventually
from fleet import Fleet

import api_shim as agents
from broker.protocol.content import content_text


def over(state: object) -> bool:
    return not isinstance(state, agents.Running | agents.Blocked)


async def test_a_worker_process_expires_a_question_and_goes_on(fleet: Fleet, clerk: agents.Agent) -> None:
    fleet.env["TURNSTREAM_CALLBACK_TIMEOUT"] = "0.5"
    with fleet.worker():
        session = await clerk.start_session()
        turn = await session.send_message("ask k")
        assert isinstance(await turn.result(timeout=10), agents.Blocked)

        assert isinstance(await eventually(turn.get, "the turn goes on", until=over, within=10), agents.Completed)

        entries = [entry async for entry in session.history() if isinstance(entry, agents.ToolResultEntry)]
        assert ["nobody answered in time" in content_text(entry.content) for entry in entries] == [True]
        await session.cancel()


async def test_a_turn_that_hangs_fails_and_its_worker_serves_on(fleet: Fleet, clerk: agents.Agent) -> None:
    """Its process lives and renews its lease; and a turn beside it that streams for as long ends well."""
    fleet.env["TURNSTREAM_NO_PROGRESS"] = "1"
    with fleet.worker() as worker:
        stuck, busy = await clerk.start_session(), await clerk.start_session()
        hanging = await stuck.send_message("tool 60")
        streaming = await busy.send_message("stream 1500")

        state = await hanging.result(timeout=10)

        assert isinstance(state, agents.Failed)
        assert state.error.code == "no_progress"
        assert isinstance(await streaming.result(timeout=20), agents.Completed)
        assert isinstance(await stuck.run("hello", timeout=10), agents.Completed)
        assert worker.process.poll() is None
        for session in (stuck, busy):
            await session.cancel()
