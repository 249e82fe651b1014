"""Hooks in a turn: what each point may decide, what the log then holds, what the model reads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import holders
import pytest
from pydantic import BaseModel
from turns import Gate, Steps, add, call, staged, text_of

from broker.broker import Broker
from broker.protocol.callbacks import AllowApproval, DenyApproval
from broker.protocol.content import content_text
from broker.protocol.records import TokenUsage
from workers.client_tools import client_tool
from workers.hooks import Hook, HookCall, HookContext, HookReply, Skip, reject, request_approval, skip
from workers.models import (
    ModelUsage,
    ToolMessage,
)
from workers.permissions import PermissionPolicy, PermissionRule
from workers.tools import ToolResult, tool

Ctx = HookContext[Any]


@client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the person for a color."""


# The turn.


async def test_the_points_come_in_their_order(broker: Broker) -> None:
    came: list[str] = []

    class Watch(Hook):
        async def pre_agent_turn(self, ctx: Ctx) -> None:
            came.append(f"pre_agent_turn {ctx.text!r}")

        async def pre_llm_call(self, ctx: Ctx) -> None:
            came.append(f"pre_llm_call {[type(message).__name__ for message in ctx.messages]}")

        async def post_llm_call(self, ctx: Ctx, reply: HookReply) -> None:
            came.append(f"post_llm_call {reply.text} {[one.name for one in reply.calls]}")

        async def pre_tool_call(self, ctx: Ctx, call: HookCall) -> None:
            came.append(f"pre_tool_call {ctx.text} {call.name} {call.arguments}")

        async def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> None:
            came.append(f"post_tool_call {call.id} {result.structured_content}")

        async def post_agent_turn(self, ctx: Ctx) -> None:
            came.append(f"post_agent_turn {ctx.text}")

    async with staged(broker, Steps(["let me", call("add", "a", a=1, b=2)], ["three"]), add, hooks=[Watch()]) as stage:
        await stage.send()
        state = await stage.ended()

    assert came == [
        "pre_agent_turn ''",
        "pre_llm_call ['UserMessage']",
        "post_llm_call let me ['client.add']",
        "pre_tool_call let me client.add {'a': 1, 'b': 2}",
        "post_tool_call a 3",
        "pre_llm_call ['UserMessage', 'AssistantMessage', 'ToolMessage']",
        "post_llm_call three []",
        "post_agent_turn three",
    ]
    assert (state["text"], await stage.checkpoints()) == ("three", [("hook:Watch:pre_agent_turn", {})])


async def test_a_turn_in_which_nothing_is_decided_writes_nothing_more(broker: Broker) -> None:
    class Quiet(Hook):
        def pre_llm_call(self, ctx: Ctx) -> None:
            pass

        def post_llm_call(self, ctx: Ctx, reply: HookReply) -> None:
            pass

        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> None:
            pass

        def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> None:
            pass

        def post_agent_turn(self, ctx: Ctx) -> None:
            pass

    logs = []
    for hooks in ([], [Quiet()]):
        async with staged(broker, Steps(["so", call("add", "a", a=1, b=2)]), add, hooks=hooks) as stage:
            await stage.send()
            await stage.ended()
            logs.append(holders.kinds(await stage.records()))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("point", ["pre_agent_turn", "pre_llm_call"])
async def test_a_skipped_turn_calls_no_model(broker: Broker, point: str) -> None:
    def decide(self: Hook, ctx: Ctx) -> Skip:
        return skip("not on Sundays")

    closed: list[str] = []

    class Late(Hook):
        def post_agent_turn(self, ctx: Ctx) -> None:
            closed.append(ctx.turn_id)

    guard = type("Guard", (Hook,), {point: decide})()
    model = Steps(["never"])
    async with staged(broker, model, guardrails=[guard], hooks=[Late()]) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["type"], state["stopReason"], state["text"]) == ("completed", "skipped", "")
    assert model.requests == []
    assert await stage.checkpoints() == [(f"hook:Guard:{point}", {"skip": "not on Sundays"})]
    assert await stage.notices() == [("info", "hook:Guard", "not on Sundays")]
    assert closed == [stage.turn]


async def test_a_hook_that_skips_is_the_last_to_run(broker: Broker) -> None:
    ran: list[str] = []

    def hook(name: str, verdict: Skip | None) -> Hook:
        def pre_agent_turn(self: Hook, ctx: Ctx) -> Skip | None:
            ran.append(name)
            return verdict

        return type(name, (Hook,), {"pre_agent_turn": pre_agent_turn})()  # type: ignore[no-any-return]

    async with staged(
        broker, Steps(), hooks=[hook("three", skip("b")), hook("four", None)], guardrails=[hook("one", None)]
    ) as stage:
        await stage.send()
        await stage.ended()

    assert ran == ["one", "three"]
    assert [message for message, _ in await stage.checkpoints()] == [
        "hook:one:pre_agent_turn",
        "hook:three:pre_agent_turn",
    ]


async def test_a_turn_skipped_later_keeps_what_was_done(broker: Broker) -> None:
    class Budget(Hook):
        def pre_llm_call(self, ctx: Ctx) -> Skip | None:
            return skip("enough") if len(ctx.messages) > 1 else None

    model = Steps(["let me", ModelUsage(TokenUsage(total_tokens=4)), call("add", "a", a=1, b=2)], ["never"])
    async with staged(broker, model, add, hooks=[Budget()]) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["stopReason"], state["text"], state["usage"]["totalTokens"]) == ("skipped", "let me", 4)
    assert [made["name"] for made in state["toolCalls"]] == ["client.add"]
    assert await stage.results() == {"a": "3"}


async def test_the_turn_s_end_is_met_again_when_a_message_came_meanwhile(broker: Broker) -> None:
    gate = Gate()
    ends: list[str] = []

    class Last(Hook):
        async def post_agent_turn(self, ctx: Ctx) -> None:
            ends.append(ctx.text)
            if len(ends) == 1:
                await gate.wait()

    async with staged(broker, Steps(["one"], ["two"]), hooks=[Last()]) as stage:
        await stage.send()
        await gate.reached.wait()
        await stage.send("and?")
        gate.open.set()
        await stage.ended()

    assert ends == ["one", "two"]


# A tool call.


def policy(**decisions: Any) -> PermissionPolicy:
    return PermissionPolicy(
        rules=[PermissionRule(tools=[f"client.{name}"], decision=decision) for name, decision in decisions.items()]
    )


async def test_a_skipped_call_keeps_the_model_s_arguments(broker: Broker) -> None:
    class Double(Hook):
        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
            return {key: value * 2 for key, value in call.arguments.items()}

    class No(Hook):
        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
            return skip("too large") if call.arguments["a"] > 9 else None

    model = Steps([call("add", "a", a=1, b=2), call("add", "b", a=5, b=2)])
    async with staged(broker, model, add, hooks=[Double(), No()]) as stage:
        await stage.send()
        state = await stage.ended()

    assert [entry["arguments"] for entry in await stage.entries("toolCall")] == [{"a": 2, "b": 4}, {"a": 5, "b": 2}]
    assert [made["arguments"] for made in state["toolCalls"]] == [{"a": 2, "b": 4}, {"a": 5, "b": 2}]
    assert await stage.results() == {"a": "6", "b": "client.add was not run: a hook skipped it: too large."}
    assert {entry["toolCallId"]: entry["isError"] for entry in await stage.entries("toolResult")} == {
        "a": False, "b": True
    }  # fmt: skip
    requested = [each for message in model.requests[1].messages for each in getattr(message, "calls", ())]
    assert [each.arguments for each in requested] == [{"a": 2, "b": 4}, {"a": 5, "b": 2}]


async def test_arguments_that_a_hook_set_are_checked_like_the_model_s(broker: Broker) -> None:
    class Wrong(Hook):
        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
            call.arguments["a"] = "changed in place, which counts for nothing"
            return {"a": 1} if call.id == "a" else None

    model = Steps([call("add", "a", a=1, b=2), call("add", "b", a=1, b=2)])
    async with staged(broker, model, add, hooks=[Wrong()]) as stage:
        await stage.send()
        state = await stage.ended()

    assert await stage.results() == {
        "a": "The arguments do not fit client.add: b: Field required.",
        "b": "3",
    }
    assert state["type"] == "completed"


async def test_a_hook_is_shown_only_what_could_run(broker: Broker) -> None:
    shown: list[str] = []

    class Watch(Hook):
        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> None:
            shown.append(call.name)

    broken = call("add", "b")
    model = Steps([call("no_such", "a"), type(broken)("b", "client.add", '{"a"', malformed=True), call("add", "c")])
    async with staged(broker, model, add, hooks=[Watch()], permission_policy=policy(add="deny")) as stage:
        await stage.send()
        await stage.ended()

    assert shown == ["client.add"]
    assert (await stage.results())["c"] == "client.add was not run: the permission policy refuses it."


class Careful(Hook):
    def __init__(self, reason: str | None = None, name: str = "Careful") -> None:
        self.name = name
        self.reason = reason

    def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
        return request_approval(self.reason)


@pytest.mark.parametrize("said", ["allow", "ask"])
async def test_a_hook_s_question_is_one_question(broker: Broker, said: Any) -> None:
    """Even if two hooks and the policy ask; an answer does not call the hooks again."""
    hooks = [Careful("it is\ndear"), Careful(name="too")]
    model = Steps([call("add", "a", a=1, b=2), call("add", "b", a=1, b=2)])
    async with staged(broker, model, add, hooks=hooks, permission_policy=policy(add=said)) as stage:
        await stage.send()
        await stage.until("parked")
        opened = [r["callback"] for r in await stage.records() if r["type"] == "callbackOpened"]
        assert [(each["title"], each["request"]["fromHook"]) for each in opened] == [
            ("Allow add? it is dear", True),
        ] * 2
        await stage.answer(opened[0]["id"])
        await stage.answer(opened[1]["id"], DenyApproval("no"))
        await stage.ended()

    assert await stage.results() == {"a": "3", "b": "client.add was not run: a person denied it: no."}


async def test_a_policy_s_refusal_is_stronger_than_a_hook_s_question(broker: Broker) -> None:
    async with staged(
        broker, Steps([call("add", "a", a=1, b=2)]), add, hooks=[Careful()], permission_policy=policy(add="deny")
    ) as stage:
        await stage.send()
        await stage.ended()

    assert await stage.results() == {"a": "client.add was not run: the permission policy refuses it."}


async def test_a_grant_for_the_session_does_not_answer_a_hook(broker: Broker) -> None:
    class Second(Hook):
        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
            return request_approval() if call.id == "b" else None

    model = Steps([call("add", "a", a=1, b=2)], [call("add", "b", a=1, b=2)], [call("add", "c", a=1, b=2)])
    async with staged(broker, model, add, hooks=[Second()], permission_mode="ask") as stage:
        await stage.send()
        await stage.until("parked")
        await stage.answer((await stage.callbacks())[0], AllowApproval(scope="session"))
        await stage.until("parked")
        await stage.answer((await stage.callbacks())[0])
        await stage.ended()
        opened = [r["callback"]["request"] for r in await stage.records() if r["type"] == "callbackOpened"]

    assert [(each["toolCallId"], each["fromHook"]) for each in opened] == [("a", False), ("b", True)]


async def test_a_client_tool_is_asked_with_the_hook_s_arguments(broker: Broker) -> None:
    class Sky(Hook):
        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
            return {"of": "the sky"}

        def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> Any:
            return f"{call.arguments['of']} is {content_text(tuple(result.content))}"  # type: ignore[arg-type] # blocks

    async with staged(broker, Steps([call("ask_color", "a", of="sea")]), ask_color, hooks=[Sky()]) as stage:
        await stage.send()
        await stage.until("parked")
        (opened,) = [r["callback"] for r in await stage.records() if r["type"] == "callbackOpened"]
        assert opened["call"]["arguments"] == {"of": "the sky"}
        await stage.answer_client(opened["id"], "a", "blue")
        await stage.ended()

    assert await stage.results() == {"a": "the sky is blue"}


# A result.


async def test_a_result_is_replaced_or_withheld(broker: Broker) -> None:
    class Mask(Hook):
        def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> Any:
            if call.id == "b":
                return reject("private")
            return {"masked": result.structured_content} if call.id == "a" else None

    class After(Hook):
        def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> Any:
            return ToolResult(f"{result.structured_content}!", meta={"by": "After"}) if call.id == "a" else None

    model = Steps([call("add", call_id, a=1, b=2) for call_id in ("a", "b", "c")])
    async with staged(broker, model, add, hooks=[Mask(), After()]) as stage:
        await stage.send()
        await stage.ended()
        found = {entry["toolCallId"]: entry for entry in await stage.entries("toolResult")}

    assert {key: text_of(entry) for key, entry in found.items()} == {
        "a": "{'masked': 3}!",
        "b": "The result of client.add was withheld: private.",
        "c": "3",
    }
    assert [found[key]["isError"] for key in "abc"] == [False, True, False]
    assert found["a"]["meta"] == {"by": "After"}
    assert {m.call_id for m in model.requests[1].messages if isinstance(m, ToolMessage) and m.is_error} == {"b"}


async def test_a_call_that_did_not_run_has_no_result_to_show(broker: Broker) -> None:
    shown: list[str] = []

    class Watch(Hook):
        def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
            return skip("no") if call.id == "a" else None

        def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> None:
            shown.append(call.id)

    model = Steps([call("add", "a"), call("no_such", "b"), call("ask_color", "c"), call("add", "d", wrong=1)])
    async with staged(
        broker, model, add, ask_color, hooks=[Watch()], permission_policy=policy(ask_color="deny")
    ) as stage:
        await stage.send()
        await stage.ended()

    assert shown == ["d"]


async def test_a_result_that_a_hook_withholds_is_not_there_when_the_turn_is_cut(broker: Broker) -> None:
    """Not even a client's, which is in the log as soon as it answers."""
    gate = Gate()

    class Mask(Hook):
        async def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> Any:
            await gate.wait()
            return reject("private")

    async with staged(broker, Steps([call("ask_color", "a", of="sky")]), ask_color, hooks=[Mask()]) as stage:
        await stage.send()
        await stage.until("parked")
        await stage.answer_client((await stage.callbacks())[0], "a", "blue")
        await gate.reached.wait()
        await stage.interrupt()
        await stage.ended()

    (result,) = await stage.entries("toolResult")
    assert "blue" not in text_of(result)
    assert result["isError"]


# What runs how.


async def test_a_plain_function_runs_in_a_thread_and_holds_nobody_up(broker: Broker) -> None:
    threads: list[bool] = []
    beside, go_on = asyncio.Event(), threading.Event()

    class Slow(Hook):
        def pre_llm_call(self, ctx: Ctx) -> None:
            threads.append(threading.current_thread() is threading.main_thread())
            go_on.wait(5)

    async with staged(broker, Steps(["hi"]), hooks=[Slow()]) as stage:
        await stage.send()
        beside.set()
        await asyncio.sleep(0)
        go_on.set()
        await stage.ended()

    assert threads == [False]


async def test_half_characters_of_a_hook_are_replaced_and_flagged(broker: Broker) -> None:
    half = "a\ud83d"

    class Half(Hook):
        class State(BaseModel):
            said: str = ""

        async def pre_agent_turn(self, ctx: HookContext[State]) -> None:
            ctx.state.said = half

        async def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
            return {"of": half}

        async def post_llm_call(self, ctx: Ctx, reply: HookReply) -> Any:
            return None if reply.calls else reject(half)

    async with staged(broker, Steps([call("no_such", "a"), call("echo", "b", of="")]), echo, hooks=[Half()]) as stage:
        await stage.send()
        await stage.ended()

    assert await stage.checkpoints() == [
        ("hook:Half:pre_agent_turn", {"state": {"said": "a\ufffd"}}),
        ("hook:Half:post_llm_call", {"reject": "a\ufffd"}),
    ]
    assert (await stage.results())["b"] == "a\ufffd"
    assert [message for _, _, message in await stage.notices()] == [
        "What hook Half gave held half characters, which were replaced.",
        "What a hook set held half characters, which were replaced.",
        "What hook Half gave held half characters, which were replaced.",
        "a\ufffd",
    ]


@tool
async def echo(of: str) -> str:
    """Say it again."""
    return of
