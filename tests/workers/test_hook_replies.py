"""Replies that hooks have the model write again, or withdraw: what the log then holds, and what the model reads."""

from __future__ import annotations

from typing import Any

import pytest
from turns import Gate, Steps, add, call, read, staged, text_of

from broker.broker import Broker
from broker.protocol.records import TokenUsage
from workers.hooks import Hook, HookContext, HookReply, reject, retry
from workers.models import ModelError, ModelReasoning, ModelRequest, ModelUsage

Ctx = HookContext[Any]


class Polite(Hook):
    def post_llm_call(self, ctx: Ctx, reply: HookReply) -> Any:
        return retry("be polite") if "damn" in reply.text else None


async def test_a_reply_is_written_again_into_the_same_entry(broker: Broker) -> None:
    usage = ModelUsage(TokenUsage(total_tokens=3))
    model = Steps(["well, ", "damn", usage, call("add", "a", a=1, b=2)], ["good ", "day", usage])
    async with staged(broker, model, add, hooks=[Polite()]) as stage:
        await stage.send("hello")
        state = await stage.ended()
        found = await stage.records()

    assert read(model.requests[1]) == [
        ("UserMessage", "hello"),
        ("AssistantMessage", "well, damn"),
        ("ContextNote", "be polite"),
    ]
    (message,) = await stage.entries("message")
    assert text_of(message) == state["text"] == "good day"
    assert (state["toolCalls"], state["usage"]["totalTokens"]) == ([], 6)
    assert await stage.checkpoints() == [
        ("hook:Polite:post_llm_call", {"retry": "be polite", "text": "well, damn"}),
    ]
    assert [r["entry"]["id"] for r in found if r["type"] == "entryAdded" and r["entry"]["type"] == "message"][1:] == [
        message["id"]
    ]


async def test_a_draft_is_not_read_any_more_once_the_reply_stands(broker: Broker) -> None:
    replies = iter([["damn"], ["so", call("add", "a", a=1, b=2)], ["three"]])
    model = _Anew(replies)
    async with staged(broker, model, add, hooks=[Polite()]) as stage:
        await stage.send("hello")
        await stage.ended()

    assert [kind for kind, _ in read(model.requests[-1])] == ["UserMessage", "AssistantMessage", "ToolMessage"]


class _Anew:
    """A model that gives its next reply at each call."""

    def __init__(self, replies: Any) -> None:
        self._replies = replies
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> Any:
        """Yield the deltas of the next reply."""
        self.requests.append(request)
        async for delta in Steps(*([next(self._replies)] * 9)).stream(request):
            yield delta


async def test_a_message_that_came_during_a_draft_stands_after_it(broker: Broker) -> None:
    gate = Gate()
    model = Steps(["da", gate, "mn"], ["good day"])
    async with staged(broker, model, hooks=[Polite()]) as stage:
        await stage.send("hello")
        await gate.reached.wait()
        await stage.send("are you there?")
        gate.open.set()
        await stage.ended()

    assert read(model.requests[1]) == [
        ("UserMessage", "hello"),
        ("AssistantMessage", "damn"),
        ("ContextNote", "be polite"),
        ("UserMessage", "are you there?"),
    ]


async def test_a_reply_of_calls_alone_may_be_written_again(broker: Broker) -> None:
    class NoTools(Hook):
        def post_llm_call(self, ctx: Ctx, reply: HookReply) -> Any:
            return retry("without tools") if reply.calls else None

    model = _Anew(iter([[ModelReasoning("hm"), call("add", "a", a=1, b=2)], ["three"]]))
    async with staged(broker, model, add, hooks=[NoTools()]) as stage:
        await stage.send("1 + 2?")
        state = await stage.ended()

    assert read(model.requests[1]) == [("UserMessage", "1 + 2?"), ("ContextNote", "without tools")]
    assert (state["text"], state["toolCalls"]) == ("three", [])
    (reasoning,) = await stage.entries("reasoning")
    assert reasoning["text"] == ""


async def test_a_reply_that_never_passes_fails_the_turn(broker: Broker) -> None:
    model = Steps(*[["damn"]] * 9)
    async with staged(broker, model, hooks=[Polite()]) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["type"], state["error"]["code"], state["text"]) == ("failed", "hook_retry_limit", "")
    assert state["error"]["message"].startswith("hook Polite had the reply written again 3 times")
    assert len(model.requests) == 4
    (message,) = await stage.entries("message")
    assert message["content"] == []


@pytest.mark.parametrize("end", ["interrupt", "fail"])
async def test_a_draft_is_gone_when_the_turn_is_cut_before_it_is_written_again(broker: Broker, end: str) -> None:
    gate = Gate()
    second = [gate] if end == "interrupt" else [ModelError("no luck")]
    async with staged(broker, Steps(["damn"], second, second), hooks=[Polite()]) as stage:
        await stage.send()
        if end == "interrupt":
            await gate.reached.wait()
            await stage.interrupt()
        state = await stage.ended()
        (message,) = await stage.entries("message")
        assert (message["content"], state["text"]) == ([], "")

        model = stage.worker._agents["agent"].model
        assert isinstance(model, Steps)
        gate.open.set()
        await stage.send("again")
        await stage.ended()
    assert [kind for kind, _ in read(model.requests[2])] == ["UserMessage"] * 2


async def test_text_that_was_begun_afresh_is_what_a_cut_completes(broker: Broker) -> None:
    gate = Gate()
    async with staged(broker, Steps(["damn"], ["good ", gate]), hooks=[Polite()]) as stage:
        await stage.send()
        await gate.reached.wait()
        await stage.interrupt()
        state = await stage.ended()

    (message,) = await stage.entries("message")
    assert text_of(message) == state["text"] == "good "


async def test_a_rejected_reply_is_empty_and_ends_the_turn(broker: Broker) -> None:
    class Secrets(Hook):
        async def post_llm_call(self, ctx: Ctx, reply: HookReply) -> Any:
            return reject("it told a secret") if "secret" in reply.text else None

    usage = ModelUsage(TokenUsage(total_tokens=3))
    model = Steps(["so", call("add", "a", a=1, b=2)], [ModelReasoning("hm"), "a secret", usage, call("add", "b")])
    async with staged(broker, model, add, guardrails=[Secrets()]) as stage:
        await stage.send()
        state = await stage.ended()

        assert (state["type"], state["stopReason"], state["text"]) == ("completed", "skipped", "so")
        assert (len(state["toolCalls"]), state["usage"]["totalTokens"]) == (1, 3)
        assert [entry["content"] for entry in await stage.entries("message")][1] == []
        assert await stage.checkpoints() == [("hook:Secrets:post_llm_call", {"reject": "it told a secret"})]
        assert await stage.notices() == [("info", "hook:Secrets", "it told a secret")]

        await stage.send("again")
        await stage.ended()
    kinds = [kind for kind, _ in read(model.requests[-1])]
    assert kinds == ["UserMessage", "AssistantMessage", "ToolMessage", "UserMessage"]


async def test_a_turn_that_a_hook_ended_ends_whatever_came_meanwhile(broker: Broker) -> None:
    """What came is read by the next turn."""
    gate = Gate()

    class No(Hook):
        async def post_llm_call(self, ctx: Ctx, reply: HookReply) -> Any:
            return reject("no")

    model = Steps(["hm", gate])
    async with staged(broker, model, hooks=[No()]) as stage:
        await stage.send("first")
        await gate.reached.wait()
        await stage.send("second")
        gate.open.set()
        await stage.ended()
        assert len(model.requests) == 1
        await stage.send("third")
        await stage.ended()

    assert [text for _, text in read(model.requests[1])] == ["first", "second", "third"]
