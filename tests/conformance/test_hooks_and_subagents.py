"""Hooks where a turn starts subagents: what the parent's see of the call, and the child's own, inherited or not."""

from __future__ import annotations

from typing import Any

from agents_for_tests import (
    Home,
    StepModel,
    add,
    ask_color,
    blocked,
    call,
    done,
    entries_of,
    expect_pairs,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    opened,
    started,
    stored,
)
from pydantic import BaseModel
from test_subagents import HELPER, helper, only_child, results, spawn

import api_shim as agents
from broker.protocol.content import content_text

Ctx = agents.HookContext


async def said(session: agents.Session) -> list[str]:
    return [content_text(result.content) for result in await results(session)]


async def test_a_hook_sees_the_call_that_starts_a_subagent_and_not_its_end(home: Home) -> None:
    shown: list[str] = []

    class Reword(agents.Hook):
        def pre_tool_call(self, ctx: Ctx, call: agents.HookCall) -> Any:
            shown.append(call.name)
            return {**call.arguments, "task": "Say it kindly."}

        def post_tool_call(self, ctx: Ctx, call: agents.HookCall, result: agents.ToolResult) -> None:
            shown.append("its end")

    child = helper(["hello, dear"], hooks=[])
    agent = await home.agent(StepModel([spawn("Say it.")]), subagents=[child], hooks=[Reword()])
    session = await agent.start_session()
    done(await session.run("hi"))

    assert shown == ["agents.spawn"]
    (task,) = entries_of(await stored(await only_child(session)), agents.UnknownEntry)
    assert task.raw["content"] == [{"type": "text", "text": "Say it kindly."}]
    assert await said(session) == ["hello, dear"]


async def test_a_skipped_subagent_is_not_started(home: Home) -> None:
    class Alone(agents.Hook):
        def pre_tool_call(self, ctx: Ctx, call: agents.HookCall) -> agents.Skip:
            return agents.skip("do it yourself")

    agent = await home.agent(StepModel([spawn("Say it.")]), subagents=[helper(["never"])], guardrails=[Alone()])
    session = await agent.start_session()
    done(await session.run("hi"))

    assert await session.subagents() == []
    assert await said(session) == ["agents.spawn was not run: a hook skipped it: do it yourself."]


class Count(agents.Hook):
    """Counts the model calls of each session."""

    class State(BaseModel):
        calls: int = 0

    def __init__(self) -> None:
        self.counted: list[tuple[str, int]] = []

    async def pre_llm_call(self, ctx: agents.HookContext[State]) -> None:
        ctx.state.calls += 1
        self.counted.append((ctx.agent_name, ctx.state.calls))


async def test_a_subagent_inherits_hooks_and_each_session_has_its_own_state(home: Home) -> None:
    hook = Count()
    agent = await home.agent(StepModel([spawn("Say it.")]), subagents=[helper(["hello"])], hooks=[hook])
    session = await agent.start_session()
    done(await session.run("hi"))

    assert hook.counted == [(agent.name, 1), (HELPER, 1), (agent.name, 2)]


async def test_what_a_subagent_s_hook_asks_is_answered_at_the_root(home: Home) -> None:
    class Asks(agents.Hook):
        async def pre_tool_call(self, ctx: Ctx, call: agents.HookCall) -> agents.RequestApproval:
            return agents.request_approval("below")

    child = helper([call("add", a=1, b=2)], ["three"], tools=[add], hooks=[Asks()])
    agent = await home.agent(StepModel([spawn("Add.")]), subagents=[child])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    assert isinstance(callback, agents.OpenApproval)
    assert (callback.title, callback.request.from_hook) == ("Allow add? below", True)

    await turn.answer(callback.id, agents.AllowApproval())
    done(await turn.result())
    assert await said(session) == ["three"]
    assert await said(await only_child(session)) == ["3"]


async def test_a_subagent_that_its_hook_ends_gave_no_answer(home: Home) -> None:
    class Closed(agents.Hook):
        async def pre_agent_turn(self, ctx: Ctx) -> agents.Skip:
            return agents.skip("closed")

    child = helper(["never"], guardrails=[Closed()])
    agent = await home.agent(StepModel([spawn("Add.")]), subagents=[child])
    session = await agent.start_session()
    done(await session.run("hi"))

    (result,) = await results(session)
    assert result.is_error
    assert content_text(result.content) == "The subagent helper gave no answer: a hook ended its turn."
    expect_pairs(await stored(session))


async def test_a_client_tool_of_a_subagent_s_hook_is_answered_unchecked_through_the_root(home: Home) -> None:
    class Colors(agents.Hook):
        tools = (ask_color,)

    child = helper([call("ask_color", of="sky")], ["so"], hooks=[Colors()])
    agent = await home.agent(StepModel([spawn("Look.")]), subagents=[child])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    (callback,) = blocked(await turn.result()).callbacks

    assert isinstance(await turn.answer(callback.id, {"not": "a text"}), agents.Answered)
    done(await turn.result())
    (result,) = await results(await only_child(session))
    assert result.structured_content == {"not": "a text"}
