"""6. Workers, leases and fences.

A worker takes a turn up under a lease, which it renews, and a fence, which goes with each of its writes. One that leaves hands
its turns back; one that is lost loses its lease. Either way another goes on where the log stands: the log is the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from eventually import eventually
from homes import Home

import api_shim as agents
from broker.broker import Broker
from workers.agent import AgentDefinition
from workers.worker import TurnWorker


class Halted:
    """A model that writes "half", and then waits for the test."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def stream(self, _request: agents.ModelRequest) -> AsyncIterator[agents.ModelDelta]:
        """Yield half a reply, and the rest when the test says so."""
        yield agents.ModelText("half")
        self.reached.set()
        await self.go_on.wait()
        yield agents.ModelText(" of the first")


FRESH = agents.ScriptedModel([agents.ScriptedReply(text="whole")])


@asynccontextmanager
async def worker(home: Home, agent: agents.Agent, kind: type[TurnWorker] = TurnWorker) -> AsyncIterator[TurnWorker]:
    """Run a worker beside the test. It hands back what it holds when it is left, as a process does at SIGTERM."""
    running = kind(home.broker, [agent.definition])
    main = asyncio.create_task(running.main())
    try:
        await running.ready.wait()
        yield running
    finally:
        await running.drain(0)
        await asyncio.gather(main, return_exceptions=True)


def served(model: agents.Model, *tools: agents.Tool[..., Any]) -> agents.Agent:
    return agents.Agent(name="clerk", model=model, tools=tools)


async def texts(session: agents.Session) -> list[str]:
    """What the model said, as the log has it in the end."""
    return [e.text async for e in session.history() if isinstance(e, agents.MessageEntry) and e.role == "assistant"]


async def test_a_client_needs_no_agent_s_code_and_a_turn_waits_for_a_worker(home: Home) -> None:
    """`load_from` is a handle by name. The turn is queued until some worker serves that name."""
    session = await agents.Agent.load_from(agent_name="clerk").start_session()
    turn = await session.send_message("Hello?")
    assert isinstance(await turn.get(), agents.Running)

    async with worker(home, served(FRESH)):
        assert (await turn.result()).text == "whole"


async def test_a_worker_that_leaves_hands_its_turn_to_the_next(home: Home) -> None:
    """The half reply is written afresh: it was never the turn's, only what was seen so far."""
    halted = Halted()
    session = await agents.Agent.load_from(agent_name="clerk").start_session()
    async with worker(home, served(halted)):
        turn = await session.send_message("Hello?")
        await halted.reached.wait()
    async with worker(home, served(FRESH)):
        state = await turn.result()

    assert isinstance(state, agents.Completed)
    assert [text for text in await texts(session) if text] == ["whole"]


class Forgetful(TurnWorker):
    """A worker that stands still as a stopped process does: its leases run out, and it does not know.

    Its one slot is taken by the turn that it holds, so it takes nothing more: not that turn again, either.
    """

    def __init__(self, broker: Broker, of: Iterable[AgentDefinition] = ()) -> None:
        super().__init__(broker, of, slots=1)
        self.renewal.start = lambda: None  # type: ignore[method-assign] # what it would do is what stands still


async def test_a_lost_worker_s_turn_goes_on_elsewhere_and_its_late_writes_are_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it wakes up its fence is old: nothing that it writes gets into the log."""
    monkeypatch.setenv("TURNSTREAM_LEASE", "0.4")
    halted = Halted()
    session = await agents.Agent.load_from(agent_name="clerk").start_session()
    async with worker(home, served(halted), Forgetful):
        turn = await session.send_message("Hello?")
        await halted.reached.wait()
        async with worker(home, served(FRESH)):
            state = await turn.result()
            log = [event.id async for event in turn.iter_events()]
            halted.go_on.set()

    assert state.text == "whole"
    assert [event.id async for event in turn.iter_events()] == log
    assert [text for text in await texts(session) if text] == ["whole"]


@pytest.mark.parametrize("retry_safe", [False, True])
async def test_a_tool_that_had_started_runs_again_only_if_it_says_that_it_may(home: Home, retry_safe: bool) -> None:
    """Nobody knows what a lost call did. The model is told so; a tool that is safe to repeat is repeated."""
    runs = 0
    started, never = asyncio.Event(), asyncio.Event()

    @agents.tool(retry_safe=retry_safe)
    async def pay() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            started.set()
            await never.wait()
        return "paid"

    def script(request: agents.ModelRequest) -> agents.ScriptedReply:
        last = request.messages[-1]
        if isinstance(last, agents.ToolMessage):
            return agents.ScriptedReply(text=last.text)
        return agents.ScriptedReply(calls=[agents.ScriptedCall("client.pay", {})])

    clerk = served(agents.ScriptedModel(script), pay)
    session = await agents.Agent.load_from(agent_name="clerk").start_session()
    async with worker(home, clerk):
        turn = await session.send_message("Pay.")
        await started.wait()
    async with worker(home, clerk):
        state = await turn.result()

    assert (runs, state.text == "paid") == ((2, True) if retry_safe else (1, False))
    assert retry_safe or "what it did is not known" in state.text


async def test_a_turn_that_parked_goes_on_wherever_there_is_a_worker(home: Home) -> None:
    """Nothing of a parked turn is in any process: the one that asked may be gone when the answer comes."""

    @agents.client_tool
    def pick() -> str:  # type: ignore[empty-body] # a stub
        """Let the person pick."""

    def script(request: agents.ModelRequest) -> agents.ScriptedReply:
        last = request.messages[-1]
        if isinstance(last, agents.ToolMessage):
            return agents.ScriptedReply(text=f"picked {last.text}")
        return agents.ScriptedReply(calls=[agents.ScriptedCall("client.pick", {})])

    clerk = agents.Agent(name="clerk", model=agents.ScriptedModel(script), tools=[pick])
    session = await agents.Agent.load_from(agent_name="clerk").start_session()
    async with worker(home, clerk):
        turn = await session.send_message("Pick.")
        state = await turn.result()
    assert isinstance(state, agents.Blocked)
    await turn.answer(state.callbacks[0].id, "tea")
    async with worker(home, clerk):
        await eventually(turn.get, "it has ended", until=lambda seen: isinstance(seen, agents.Completed))

    assert (await turn.get()).text == "picked tea"
