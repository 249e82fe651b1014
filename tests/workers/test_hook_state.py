"""A hook's State: kept across turns and workers, together with the step that it was changed in."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field, create_model
from turns import Gate, Stage, Steps, add, call, staged, working

from broker.broker import Broker
from broker.protocol.wire import INLINE_LIMIT
from workers.agent import AgentDefinition
from workers.hooks import Hook, HookCall, HookContext, HookReply, skip
from workers.models import ModelError
from workers.tools import ToolResult


class Turns(Hook):
    class State(BaseModel):
        count: int = 0
        note: str = ""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def post_agent_turn(self, ctx: HookContext[State]) -> None:
        self.seen.append(ctx.state.count)
        ctx.state.count += 1


async def kept(stage: Stage) -> list[Any]:
    return [details["state"] for _, details in await stage.checkpoints() if "state" in details]


async def test_a_state_is_kept_across_turns_and_workers(broker: Broker) -> None:
    hook = Turns()
    async with staged(broker, Steps(), hooks=[hook]) as stage:
        for _ in range(2):
            await stage.send()
            await stage.ended()
        session_id = stage.session_id
    async with working(broker, AgentDefinition(model=Steps(), name="agent", hooks=[hook])) as worker:
        stage = Stage(broker, worker, session_id)
        await stage.send()
        await stage.ended()

    assert hook.seen == [0, 1, 2]
    assert [state["count"] for state in await kept(stage)] == [1, 2, 3]


async def test_sessions_have_states_of_their_own(broker: Broker) -> None:
    hook = Turns()
    for _ in range(2):
        async with staged(broker, Steps(), hooks=[hook]) as stage:
            await stage.send()
            await stage.ended()

    assert hook.seen == [0, 0]


async def test_a_state_that_did_not_change_is_not_written(broker: Broker) -> None:
    class Still(Turns):
        async def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            ctx.state.count += 1
            ctx.state.count -= 1

    async with staged(broker, Steps(), hooks=[Still()]) as stage:
        await stage.send()
        await stage.ended()

    assert await stage.checkpoints() == []


async def test_a_default_that_differs_each_time_is_kept_from_its_first_use(broker: Broker) -> None:
    seen: list[UUID] = []

    class Tagged(Hook):
        class State(BaseModel):
            tag: UUID = Field(default_factory=uuid4)

        def pre_llm_call(self, ctx: HookContext[State]) -> None:
            seen.append(ctx.state.tag)

    async with staged(broker, Steps(), hooks=[Tagged()]) as stage:
        for _ in range(2):
            await stage.send()
            await stage.ended()

    assert seen[0] == seen[1]
    assert len(await kept(stage)) == 1


async def test_a_state_may_be_replaced(broker: Broker) -> None:
    class Frozen(Hook):
        class State(BaseModel, frozen=True):
            count: int = 0

        def pre_llm_call(self, ctx: HookContext[State]) -> None:
            ctx.state = ctx.state.model_copy(update={"count": ctx.state.count + 1})

    async with staged(broker, Steps([call("add", "a", a=1, b=2)], ["so"]), add, hooks=[Frozen()]) as stage:
        await stage.send()
        await stage.ended()

    assert [state["count"] for state in await kept(stage)] == [1, 2]


async def test_a_large_state_is_kept(broker: Broker) -> None:
    class Large(Turns):
        async def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            self.seen.append(len(ctx.state.note))
            ctx.state.note = "x" * INLINE_LIMIT

    hook = Large()
    async with staged(broker, Steps(), hooks=[hook]) as stage:
        for _ in range(2):
            await stage.send()
            await stage.ended()

    assert hook.seen == [0, INLINE_LIMIT]


async def test_results_that_come_together_are_counted_one_by_one(broker: Broker) -> None:
    class Count(Hook):
        class State(BaseModel):
            results: int = 0

        async def post_tool_call(self, ctx: HookContext[State], call: HookCall, result: ToolResult) -> None:
            seen = ctx.state.results
            await asyncio.sleep(0.01)
            ctx.state.results = seen + 1

    model = Steps([call("add", f"c{at}", a=at, b=1) for at in range(5)])
    async with staged(broker, model, add, hooks=[Count()]) as stage:
        await stage.send()
        await stage.ended()

    assert [state["results"] for state in await kept(stage)] == [1, 2, 3, 4, 5]


async def test_a_change_counts_with_its_step(broker: Broker) -> None:
    """A model call that failed is no step: what was changed before it is as if it had not been."""

    class Calls(Turns):
        async def pre_llm_call(self, ctx: HookContext[Any]) -> None:
            self.seen.append(ctx.state.count)
            ctx.state.count += 1

        async def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            pass

    hook = Calls()
    model = Steps(["fine"], tries={0: [[ModelError("no luck")]]})
    async with staged(broker, model, hooks=[hook]) as stage:
        await stage.send()
        assert (await stage.ended())["type"] == "failed"
        await stage.send()
        await stage.ended()

    assert hook.seen == [0, 0]
    assert [state["count"] for state in await kept(stage)] == [1]


async def test_an_end_that_did_not_come_is_taken_back(broker: Broker) -> None:
    """A message came while post_agent_turn ran: the turn goes on, and what it had changed is as if it had not been."""
    gate = Gate()

    class Last(Turns):
        async def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            self.seen.append(ctx.state.count)
            ctx.state.count += 1
            if len(self.seen) == 1:
                await gate.wait()

    hook = Last()
    async with staged(broker, Steps(), hooks=[hook]) as stage:
        await stage.send()
        await gate.reached.wait()
        await stage.send("and?")
        gate.open.set()
        await stage.ended()

    assert hook.seen == [0, 0]
    assert [state["count"] for state in await kept(stage)] == [1]


async def test_a_model_call_made_again_after_a_failure_runs_the_hook_once(broker: Broker) -> None:
    class Calls(Turns):
        async def pre_llm_call(self, ctx: HookContext[Any]) -> None:
            ctx.state.count += 1

        async def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            pass

    model = Steps(["fine"], tries={0: [["half", ModelError("busy", retryable=True, retry_after=0)]]})
    async with staged(broker, model, hooks=[Calls()]) as stage:
        await stage.send()
        await stage.ended()

    assert [state["count"] for state in await kept(stage)] == [1]


async def test_a_reply_of_nothing_keeps_what_a_hook_changed(broker: Broker) -> None:
    class Calls(Turns):
        async def post_llm_call(self, ctx: HookContext[Any], reply: HookReply) -> None:
            ctx.state.count += 1

        async def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            pass

    model = Steps([])
    async with staged(broker, model, hooks=[Calls()]) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["type"], len(model.requests)) == ("completed", 1)
    assert [state["count"] for state in await kept(stage)] == [1]


async def test_a_decision_and_a_state_are_one_checkpoint(broker: Broker) -> None:
    class Quota(Turns):
        async def pre_llm_call(self, ctx: HookContext[Any]) -> Any:
            ctx.state.note = "over"
            return skip("quota")

        async def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            pass

    async with staged(broker, Steps(), hooks=[Quota()]) as stage:
        await stage.send()
        await stage.ended()

    assert await stage.checkpoints() == [
        ("hook:Quota:pre_llm_call", {"skip": "quota", "state": {"count": 0, "note": "over"}})
    ]


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (
            {"count": (str, "")},
            "hook Turns: what was kept does not fit its State: count: Input should be a valid string",
        ),
        ({"count": (int, 0), "more": (int, 0)}, None),
    ],
)
async def test_a_state_of_an_earlier_release(broker: Broker, later: dict[str, Any], said: str | None) -> None:
    """New fields start with their defaults; what does not fit fails the turn, and the value is not told."""
    async with staged(broker, Steps(), hooks=[Turns()]) as stage:
        await stage.send()
        await stage.ended()
        session_id = stage.session_id

    hook = type("Turns", (Turns,), {"State": create_model("State", **later)})()
    async with working(broker, AgentDefinition(model=Steps(), name="agent", hooks=[hook])) as worker:
        stage = Stage(broker, worker, session_id)
        await stage.send()
        state = await stage.ended()

    assert (state.get("error") or {}).get("message") == said
