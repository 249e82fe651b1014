"""A hook that raises, or gives what it must not: its turn fails, says which hook and point, and tells nothing more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from turns import Gate, Steps, add, call, staged, text_of

from broker.broker import Broker
from workers.hook_set import POINTS
from workers.hooks import Hook, HookCall, HookContext, HookReply, RequestApproval, reject, retry, skip
from workers.tools import ToolResult, tool

PRIVATE = "what nobody must read"


def at(point: str, does: Any, *, plain: bool = False) -> Hook:
    """A hook that does this at one point, in a thread or not."""

    async def method(self: Hook, ctx: Any, *shown: Any) -> Any:
        return does()

    def function(self: Hook, ctx: Any, *shown: Any) -> Any:
        return does()

    return type("Bad", (Hook,), {point: function if plain else method})()  # type: ignore[no-any-return]


def raising(error: BaseException) -> Any:
    def does() -> Any:
        raise error

    return does


async def fail(broker: Broker, hook: Hook) -> dict[str, Any]:
    """Run a turn that passes every point with this hook, and return its end."""
    async with staged(broker, Steps(["so", call("add", "a", a=1, b=2)], ["done"]), add, hooks=[hook]) as stage:
        await stage.send()
        return await stage.ended()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("point", POINTS)
async def test_a_hook_that_raises_fails_the_turn(
    embedded_broker: Broker, capfd: pytest.CaptureFixture[str], point: str, *, plain: bool
) -> None:
    state = await fail(embedded_broker, at(point, raising(RuntimeError(PRIVATE)), plain=plain))

    assert state["type"] == "failed"
    assert state["error"] == {
        "message": f"hook Bad raised RuntimeError at {point}",
        "code": "hook_failed",
        "details": None,
    }
    said = "".join(capfd.readouterr())
    assert "hook_failed" in said
    assert PRIVATE not in said


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(1), asyncio.CancelledError(), TimeoutError()])
@pytest.mark.parametrize("plain", [False, True])
async def test_whatever_a_hook_raises_is_its_own(broker: Broker, error: BaseException, *, plain: bool) -> None:
    state = await fail(broker, at("pre_llm_call", raising(error), plain=plain))

    kind = "RuntimeError" if isinstance(error, StopIteration) and not plain else type(error).__name__
    assert state["error"]["message"] == f"hook Bad raised {kind} at pre_llm_call"


@pytest.mark.parametrize(
    ("point", "given"),
    [
        ("pre_agent_turn", retry("x")),
        ("pre_agent_turn", "skip"),
        ("pre_llm_call", reject("x")),
        ("pre_llm_call", False),
        ("post_llm_call", skip("x")),
        ("post_llm_call", "another text"),
        ("pre_tool_call", reject("x")),
        ("pre_tool_call", ["a", 1]),
        ("pre_tool_call", {"a": object()}),
        ("pre_tool_call", {1: 2}),
        ("post_tool_call", object()),
        ("post_tool_call", skip("x")),
        ("post_tool_call", RequestApproval()),
        ("post_agent_turn", skip("x")),
    ],
)
async def test_what_a_point_must_not_give(embedded_broker: Broker, point: str, given: Any) -> None:
    state = await fail(embedded_broker, at(point, lambda: given))

    assert state["error"]["code"] == "hook_failed"
    assert state["error"]["message"].startswith("hook Bad gave ")
    assert point in state["error"]["message"]


async def test_a_state_that_is_none_of_the_hook_s(broker: Broker) -> None:
    class Bad(Hook):
        class State(BaseModel):
            value: Any = None

        def __init__(self, put: Any) -> None:
            self.put = put

        def pre_llm_call(self, ctx: HookContext[Any]) -> None:
            self.put(ctx)

    def replaced(ctx: Any) -> None:
        ctx.state = {"value": 1}

    def unstorable(ctx: Any) -> None:
        ctx.state.value = object()

    assert "gave a state that is dict at" in (await fail(broker, Bad(replaced)))["error"]["message"]
    assert "gave a state that JSON cannot hold at" in (await fail(broker, Bad(unstorable)))["error"]["message"]


async def test_a_failing_hook_ends_what_still_runs(broker: Broker) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "ran"

    class Bad(Hook):
        async def post_tool_call(self, ctx: Any, call: HookCall, result: ToolResult) -> None:
            await gate.reached.wait()
            raise KeyError(PRIVATE)

    async with staged(
        broker, Steps([call("slow", "a"), call("add", "b", a=1, b=2)]), slow, add, hooks=[Bad()]
    ) as stage:
        await stage.send()
        state = await stage.ended()
        results = await stage.results()

    assert state["error"]["message"] == "hook Bad raised KeyError at post_tool_call"
    assert "was interrupted while it ran" in results["a"]
    assert "was interrupted while it ran" in results["b"]


async def test_a_reply_that_a_hook_failed_on_stands_as_it_was_streamed(broker: Broker) -> None:
    class Bad(Hook):
        def post_llm_call(self, ctx: Any, reply: HookReply) -> None:
            raise ValueError(PRIVATE)

    async with staged(broker, Steps(["all of ", "it", call("add", "a", a=1, b=2)]), add, hooks=[Bad()]) as stage:
        await stage.send()
        state = await stage.ended()

    (message,) = await stage.entries("message")
    assert text_of(message) == state["text"] == "all of it"
    assert await stage.entries("toolCall") == []


async def test_the_next_turn_is_not_harmed(broker: Broker) -> None:
    class Once(Hook):
        def __init__(self) -> None:
            self.failed = False

        def pre_llm_call(self, ctx: Any) -> None:
            if not self.failed:
                self.failed = True
                raise ValueError(PRIVATE)

    model = Steps(["fine"])
    async with staged(broker, model, hooks=[Once()]) as stage:
        await stage.send()
        await stage.ended()
        await stage.send()
        state = await stage.ended()

    assert (state["type"], len(model.requests)) == ("completed", 1)
