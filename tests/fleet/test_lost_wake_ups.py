"""What wakes a worker carries no truth: lost or doubled, it does no harm (F48). The answer itself is in the log before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import holders
import pytest
from eventually import eventually
from fleet import Fleet
from ledger_agents import whole
from whole_agent import answer_to

import api_shim as agents
from api_shim.local import place_of
from broker import channels
from broker.broker import Broker
from broker.settings import Settings
from workers import worker as worker_module
from workers.worker import TurnWorker

LEASE_S = 2.0


def unheard(real: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    """A bell, or hints, of which nothing comes through but that they are there."""

    async def none(*arguments: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(real(*arguments)) as heard:
            async for each in heard:
                if each is None:
                    yield None

    return none


def again_and_again(real: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    """A bell, or hints, of which each comes twice, and earlier ones once more after it; of the bell to the other worker too."""
    before: list[Any] = []

    async def many(broker: Broker, *rest: Any) -> AsyncGenerator[Any, None]:
        async with aclosing(real(broker, *rest)) as heard:
            async for each in heard:
                yield each
                if each is None:
                    continue
                if real is channels.pop_token and each not in before:
                    await broker.commands.command("RPUSH", *each)
                before.append(each)
                for old in before[-5:]:
                    yield old

    return many


@pytest.fixture(params=[unheard, again_and_again])
def wake_ups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose, or double, every wake token and every hint to workers."""
    for name in ("pop_token", "subscribe"):
        monkeypatch.setattr(worker_module, name, request.param(getattr(channels, name)))


@asynccontextmanager
async def two_workers(fleet: Fleet, *served: agents.Agent) -> AsyncIterator[None]:
    """Run two workers in this process."""
    brokers = [Broker(Settings(redis_url=fleet.url, lease=LEASE_S)) for _ in range(2)]
    workers = [TurnWorker(broker, [agent.definition for agent in served], slots=50) for broker in brokers]
    mains = [asyncio.create_task(worker.main()) for worker in workers]
    try:
        yield
    finally:
        await asyncio.gather(*(worker.drain(0) for worker in workers))
        await asyncio.gather(*mains, *(broker.close() for broker in brokers))


async def done(agent: agents.Agent) -> tuple[str, agents.TurnState[Any]]:
    """Have the whole turn done, with a message that joins it and every question answered; the session and its end."""
    session = await agents.Agent.load_from(agent_name=agent.name).start_session()
    turn = await session.send_message("Do all of it.")
    state = await turn.result(timeout=60)
    await session.send_message("And be careful.")
    while isinstance(state, agents.Blocked):
        for callback in state.callbacks:
            await turn.answer(callback.id, answer_to(callback))
        state = await turn.result(after=state, timeout=60)
    return session.id, state


@pytest.mark.usefixtures("wake_ups")
async def test_each_turn_is_done_once(fleet: Fleet, tmp_path: Path) -> None:
    served = [whole(f"whole-{n}", tmp_path) for n in range(8)]
    async with two_workers(fleet, *served):
        ended = await asyncio.gather(*map(done, served))
    for agent, (session_id, state) in zip(served, ended, strict=True):
        assert isinstance(state, agents.Completed)
        assert sorted((tmp_path / agent.name).read_text().split("\n")) == ["", "look_up", "pay 40", "pay 50"]
        log = await holders.records(place_of(fleet.url).broker, session_id)
        holders.expect_whole(log)
        assert not any("attempt" in (record.get("details") or {}) for record in log), "it was begun twice at one wake"


@pytest.mark.usefixtures("wake_ups")
async def test_an_answer_is_found_while_another_call_runs(fleet: Fleet) -> None:
    go, paid = asyncio.Event(), asyncio.Event()

    @agents.tool
    async def stand() -> str:
        """Run for as long as the test wants."""
        await go.wait()
        return "stood"

    @agents.tool
    async def pay() -> str:
        """Pay."""
        paid.set()
        return "paid"

    policy = agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.pay"], decision="ask")])
    calls = [agents.ScriptedCall("client.stand"), agents.ScriptedCall("client.pay")]
    model = agents.ScriptedModel([agents.ScriptedReply(calls=calls)])
    async with two_workers(fleet, agents.Agent(name="both", tools=[stand, pay], permission_policy=policy, model=model)):
        session = await agents.Agent.load_from(agent_name="both").start_session()
        turn = await session.send_message("both")
        state = await turn.result(timeout=30)
        assert isinstance(state, agents.Blocked)
        await turn.answer(state.callbacks[0].id, agents.AllowApproval())
        await eventually(paid.is_set, "what was allowed runs, though the other call goes on", within=LEASE_S + 5)
        go.set()
        assert isinstance(await turn.result(after=state, timeout=30), agents.Completed)
