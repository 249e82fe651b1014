"""A turn, run by a worker: replies, tools, questions, news, and what a crash leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import holders
import pytest
from eventually import eventually
from turns import Gate, Stage, Step, Steps, add, call, staged, text_of

from broker import queue, transitions
from broker.broker import Broker
from broker.protocol.callbacks import AllowApproval, DenyApproval
from broker.protocol.records import TokenUsage
from broker.protocol.wire import tail
from workers.client_tools import client_tool
from workers.models import ModelError, ModelReasoning, ModelRequest, ModelText, ModelUsage, ToolMessage, UserMessage
from workers.permissions import PermissionPolicy, PermissionRule
from workers.tools import ToolError, tool


@client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the person for a color."""


def asking(*tools: str) -> PermissionPolicy:
    return PermissionPolicy(rules=[PermissionRule(tools=[f"client.{name}" for name in tools], decision="ask")])


def log_of(records: list[dict[str, Any]]) -> list[str]:
    """The turn's own records, in words."""
    words = []
    for record in records:
        entry = record.get("entry") or {}
        words.append(f"{record['type']}({entry['type']})" if entry else record["type"])
    return words


# Replies.


async def test_a_reply_ends_the_turn(broker: Broker) -> None:
    async with staged(broker, Steps(["hel", "lo", ModelUsage(TokenUsage(input_tokens=3, total_tokens=5))])) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["type"], state["text"], state["toolCalls"], state["stopReason"]) == ("completed", "hello", [], None)
    assert state["usage"]["totalTokens"] == 5


async def test_a_reply_with_calls_goes_on_with_their_results(broker: Broker) -> None:
    model = Steps(["let me see", call("add", "a", a=1, b=2), call("add", "b", a=3, b=4)], ["so"])
    async with staged(broker, model, add) as stage:
        await stage.send()
        state = await stage.ended()

    assert results_read(model.requests[1]) == {"a": "3", "b": "7"}
    assert state["text"] == "so"
    assert [made["arguments"] for made in state["toolCalls"]] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def results_read(request: ModelRequest) -> dict[str, str]:
    found = [message for message in request.messages if isinstance(message, ToolMessage)]
    return {each.call_id: "".join(getattr(block, "text", "") for block in each.content) for each in found}


async def test_the_end_of_a_reply_is_one_append(broker: Broker) -> None:
    """Its completed entries, its calls, and every question that they raise."""
    model = Steps([ModelReasoning("hm"), "text", call("add", "a", a=1, b=2), call("ask_color", "b", of="sky")])
    async with staged(broker, model, add, ask_color, permission_policy=asking("add")) as stage:
        await stage.send()
        await stage.until("parked")
        found = [record for record in await stage.records() if record.get("turnId")][3:]

    ends = found[2:]
    assert log_of(found) == [
        "entryAdded(reasoning)",
        "entryAdded(message)",
        "entryCompleted(reasoning)",
        "entryCompleted(message)",
        *["entryAdded(toolCall)", "entryCompleted(toolCall)"] * 2,
        *["callbackOpened"] * 2,
        "turnUpdated",
    ]
    assert len({record["at"].partition("-")[2] for record in ends}) == 1


async def test_a_model_with_nothing_to_say_ends_the_turn(broker: Broker) -> None:
    async with staged(broker, Steps([ModelUsage(TokenUsage(total_tokens=2))])) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["text"], state["usage"]["totalTokens"]) == ("", 2)
    assert await stage.entries("message") == []


async def test_the_limit_of_replies(broker: Broker) -> None:
    async with staged(
        broker, Steps(*[[call("add", f"c{at}", a=at, b=1)] for at in range(5)]), add, max_iterations=2
    ) as stage:
        await stage.send()
        state = await stage.ended()

    assert state["stopReason"] == "iteration_limit"
    assert await stage.results() == {"c0": "1", "c1": "2"}


# A model call that fails.


async def test_a_model_call_is_made_again_into_the_same_entry(broker: Broker) -> None:
    failed = ModelError("busy", retryable=True, retry_after=0.0)
    model = Steps(["right"], tries={0: [["wro", "ng", failed], ["worse", failed]]})
    async with staged(broker, model) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["text"], len(model.requests)) == ("right", 3)
    (entry,) = await stage.entries("message")
    assert text_of(entry) == "right"


async def test_what_an_earlier_try_opened_and_the_reply_does_not_write_is_completed_empty(broker: Broker) -> None:
    failed = ModelError("busy", retryable=True, retry_after=0.0)
    first: list[Step] = [ModelReasoning("hm"), "text", failed]
    model = Steps([call("add", "a", a=1, b=2)], ["done"], tries={0: [first]})
    async with staged(broker, model, add) as stage:
        await stage.send()
        await stage.ended()

    assert (await stage.entries("message"))[0]["content"] == []
    (reasoning,) = await stage.entries("reasoning")
    assert reasoning["text"] == ""
    assert [type(message).__name__ for message in model.requests[-1].messages] == [
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
    ]


@pytest.mark.parametrize(("retryable", "asked"), [(True, 3), (False, 1)])
async def test_a_model_call_that_fails_for_good_fails_the_turn(broker: Broker, asked: int, *, retryable: bool) -> None:
    failed = ModelError("no luck", code="quota", retryable=retryable, retry_after=0.0)
    model = Steps(tries={0: [["half", failed]] * 9})
    async with staged(broker, model) as stage:
        await stage.send()
        state = await stage.ended()

    assert (state["type"], state["error"]["message"], state["error"]["code"]) == ("failed", "no luck", "quota")
    assert len(model.requests) == asked
    assert state["text"] == text_of((await stage.entries("message"))[0])


async def test_what_a_model_raises_beside_its_errors_fails_the_turn_without_its_words(broker: Broker) -> None:
    class Broken:
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelText]:
            if request.messages:
                raise RuntimeError("the password is 1234")
            yield ModelText("never")

    async with staged(broker, Broken()) as stage:
        await stage.send()
        state = await stage.ended()

    assert state["error"] == {"message": "RuntimeError in the agent's code", "code": "internal_error", "details": None}


# Tools.


async def test_tools_of_one_reply_run_side_by_side(broker: Broker) -> None:
    meeting = asyncio.Barrier(3)

    @tool
    async def meet() -> str:
        """Wait for the others."""
        await meeting.wait()
        return "met"

    model = Steps([call("meet", call_id) for call_id in ("a", "b", "c")])
    async with staged(broker, model, meet) as stage:
        await stage.send()
        await stage.ended()

    assert await stage.results() == {"a": "met", "b": "met", "c": "met"}


async def test_a_running_tool_shows_as_an_empty_result(broker: Broker) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "ran"

    async with staged(broker, Steps([call("slow", "a")]), slow) as stage:
        await stage.send()
        await gate.reached.wait()
        (added,) = [r["entry"] for r in await stage.records() if r["type"] == "entryAdded" and "toolResult" in str(r)]
        assert (added["content"], added["isError"], added["toolCallId"]) == ([], False, "a")
        gate.open.set()
        await stage.ended()

    (result,) = await stage.entries("toolResult")
    assert (result["id"], text_of(result)) == (added["id"], "ran")


async def test_a_tool_that_fails_is_the_model_s_to_read(broker: Broker) -> None:
    @tool
    async def fail(how: str) -> str:
        """Fail."""
        raise ToolError("not today") if how == "said" else KeyError(how)

    model = Steps([call("fail", "a", how="said"), call("fail", "b", how="x"), call("fail", "c", wrong=1)])
    async with staged(broker, model, fail) as stage:
        await stage.send()
        state = await stage.ended()
        results = await stage.results()

    assert (results["a"], results["b"]) == ("not today", "KeyError: 'x'")
    assert results["c"].startswith("The arguments do not fit client.fail: how:")
    assert state["type"] == "completed"


async def test_an_unknown_tool_and_malformed_arguments(broker: Broker) -> None:
    broken = call("add", "b")
    model = Steps([call("no_such", "a"), type(broken)("b", "client.add", '{"a": 1', malformed=True)])
    async with staged(broker, model, add) as stage:
        await stage.send()
        await stage.ended()
        results = await stage.results()

    assert results["a"] == "There is no tool 'client.no_such'. Known tools: client.add."
    assert results["b"] == "The arguments of client.add are no valid JSON."
    (_, second) = await stage.entries("toolCall")
    assert second["arguments"] == '{"a": 1'


async def test_a_repeated_call_id_is_replaced(broker: Broker) -> None:
    model = Steps([call("add", "x", a=1, b=1), call("add", "x", a=2, b=2)], [call("add", "x", a=3, b=3)])
    async with staged(broker, model, add) as stage:
        await stage.send()
        await stage.ended()
        made = [entry["toolCallId"] for entry in await stage.entries("toolCall")]
        results = await stage.results()

    assert made[0] == "x"
    assert len(set(made)) == 3
    assert [results[call_id] for call_id in made] == ["2", "4", "6"]


# Questions.


async def test_an_allowed_and_a_denied_call(broker: Broker) -> None:
    model = Steps([call("add", "a", a=1, b=2), call("add", "b", a=1, b=2)])
    async with staged(broker, model, add, permission_mode="ask") as stage:
        await stage.send()
        await stage.until("parked")
        first, second = await stage.callbacks(2)
        await stage.answer(first)
        await stage.answer(second, DenyApproval("too dear"))
        await stage.ended()

    assert await stage.results() == {"a": "3", "b": "client.add was not run: a person denied it: too dear."}


async def test_a_turn_is_blocked_while_a_tool_still_runs(broker: Broker) -> None:
    """It parks when the tool is done and only the answer is missing."""
    gate = Gate()

    @tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "ran"

    model = Steps([call("slow", "a"), call("add", "b", a=1, b=2)])
    async with staged(broker, model, slow, add, permission_policy=asking("add")) as stage:
        await stage.send()
        await gate.reached.wait()
        (callback,) = await stage.callbacks()
        record = await transitions.record(broker, stage.session_id, stage.turn)
        assert isinstance(record, transitions.OpenRecord)
        assert await stage.state() == "running"
        gate.open.set()
        await stage.until("parked")
        assert await stage.results() == {"a": "ran"}
        await stage.answer(callback)
        await stage.ended()

    assert await stage.results() == {"a": "ran", "b": "3"}


async def test_an_answer_is_acted_on_while_another_tool_runs(broker: Broker) -> None:
    gate = Gate()

    @tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "ran"

    model = Steps([call("slow", "a"), call("add", "b", a=1, b=2)])
    async with staged(broker, model, slow, add, permission_policy=asking("add")) as stage:
        await stage.send()
        await gate.reached.wait()
        (callback,) = await stage.callbacks()
        await stage.answer(callback)
        await _until_results(stage, {"b": "3"})
        gate.open.set()
        await stage.ended()


async def _until_results(stage: Stage, wanted: dict[str, str]) -> None:
    await eventually(stage.results, f"the results are {wanted}", until=lambda seen: seen == wanted)


async def test_an_approved_client_tool_then_asks_the_client(broker: Broker) -> None:
    model = Steps([call("ask_color", "a", of="sky")])
    async with staged(broker, model, ask_color, permission_mode="ask") as stage:
        await stage.send()
        await stage.until("parked")
        (approval,) = await stage.callbacks()
        await stage.answer(approval)
        await stage.until("parked")
        (question,) = await stage.callbacks()
        assert question != approval
        await stage.answer_client(question, "a", "blue")
        await stage.ended()

    assert await stage.results() == {"a": "blue"}
    kinds = [r["callback"]["type"] for r in await stage.records() if r["type"] == "callbackOpened"]
    assert kinds == ["approval", "clientTool"]


async def test_a_grant_holds_for_the_session(broker: Broker) -> None:
    model = Steps(*[[call("add", f"c{at}", a=at, b=1)] for at in range(2)])
    async with staged(broker, model, add, permission_mode="ask") as stage:
        await stage.send()
        await stage.until("parked")
        await stage.answer((await stage.callbacks())[0], AllowApproval(scope="session"))
        await stage.ended()
        opened = [r for r in await stage.records() if r["type"] == "callbackOpened"]

    assert len(opened) == 1
    assert await stage.results() == {"c0": "1", "c1": "2"}


# News.


async def test_a_message_during_a_model_call_is_read_after_its_results(broker: Broker) -> None:
    gate = Gate()
    model = Steps(["let ", gate, "me see", call("add", "a", a=1, b=2)], ["so"])
    async with staged(broker, model, add) as stage:
        await stage.send("first")
        await gate.reached.wait()
        await stage.send("second")
        await stage.send("third")
        gate.open.set()
        await stage.ended()

    kinds = [type(message).__name__ for message in model.requests[1].messages]
    assert kinds == ["UserMessage", "AssistantMessage", "ToolMessage", "UserMessage", "UserMessage"]
    said = [message.content for message in model.requests[1].messages if isinstance(message, UserMessage)]
    assert [content[0].text for content in said] == ["first", "second", "third"]  # type: ignore[union-attr] # texts


async def test_a_message_during_the_last_reply_is_answered(broker: Broker) -> None:
    gate = Gate()
    model = Steps(["hel", gate, "lo"], ["and more"])
    async with staged(broker, model) as stage:
        await stage.send("first")
        await gate.reached.wait()
        await stage.send("second")
        gate.open.set()
        state = await stage.ended()

    assert (state["text"], len(model.requests)) == ("and more", 2)


# What a crash leaves behind.


async def crashed(broker: Broker, *effects: Any) -> holders.Holder:
    """A turn whose worker wrote this, and was lost."""
    session_id = await holders.open_session(broker)
    await holders.start(broker, session_id)
    holder = await holders.hold(broker, worker="lost")
    await holder.append(*effects)
    key = broker.keys.queue(0, "agent")
    await holders.command(broker, "ZADD", f"{key}:running", 1, holder.job.id)
    await queue.claim(broker, key, worker="lost", slots=0, lease=15, budget=5)
    return holder


@pytest.mark.parametrize("retry_safe", [False, True])
async def test_a_tool_that_had_started_is_run_again_only_if_it_may_be(broker: Broker, *, retry_safe: bool) -> None:
    ran: list[str] = []

    @tool(name="t", retry_safe=retry_safe)
    async def t() -> str:
        """Run."""
        ran.append("t")
        return "ran"

    made = {"type": "toolCall", "id": "e", "toolCallId": "a", "name": "client.t", "arguments": {}}
    private = {"reply": {"read": 5, "usage": {}}, "call": {"decision": "run", "retrySafe": retry_safe}}
    completed = tail({"type": "entryCompleted", "entry": made, "private": private})
    beside = tail({"type": "entryAdded", "beside": True})
    holder = await crashed(broker, "e", beside, "e", completed, *holders.tool_started("a", "result"))
    model = Steps(["never"], ["so"])
    async with staged(broker, model, t) as stage:
        stage.session_id = holder.session_id
        await stage.ended()

    assert len(ran) == retry_safe
    (result,) = await stage.entries("toolResult")
    assert result["id"] == "result"
    assert ("worker_lost" in text_of(result)) is not retry_safe
    assert result["isError"] is not retry_safe
    assert len(model.requests) == 1


async def test_a_model_call_that_was_lost_is_made_again_into_the_same_entry(broker: Broker) -> None:
    holder = await crashed(broker, *holders.writing("message", "m", "half a "), *holders.more("m", "senten"))
    async with staged(broker, Steps(["a whole one"])) as stage:
        stage.session_id = holder.session_id
        state = await stage.ended()

    (entry,) = await stage.entries("message")
    assert (entry["id"], text_of(entry), state["text"]) == ("m", "a whole one", "a whole one")


async def test_a_decision_that_is_in_the_log_is_not_taken_again(broker: Broker) -> None:
    """The policy has changed since: what was refused stays refused, with the reason that was written."""
    made = {"type": "toolCall", "id": "e", "toolCallId": "a", "name": "client.add", "arguments": {"a": 1, "b": 2}}
    private = {"reply": {"read": 5, "usage": {}}, "call": {"decision": "refused", "text": "the old reason"}}
    completed = tail({"type": "entryCompleted", "entry": made, "private": private})
    holder = await crashed(broker, "e", tail({"type": "entryAdded", "beside": True}), "e", completed)
    async with staged(broker, Steps(["never"], ["so"]), add) as stage:
        stage.session_id = holder.session_id
        await stage.ended()

    assert await stage.results() == {"a": "the old reason"}
