"""A model's reply on its way into the log: streamed while it is written, ended by one append."""

from __future__ import annotations

from typing import Any

import holders
import pytest
from turns import add, call, no_hooks, text_of, writer_for

from broker import transitions
from broker.broker import Broker
from broker.channels import subscribe
from broker.protocol.records import TokenUsage
from broker.protocol.values import loads
from broker.protocol.wire import INLINE_LIMIT
from broker.runs import Gap, Superseded
from workers.agent import AgentDefinition
from workers.client_tools import client_tool
from workers.fold import CALLS_LIMIT
from workers.models import ModelError, ModelReasoning, ModelStop, ModelText, ModelToolCall, ModelUsage
from workers.permissions import PermissionPolicy, PermissionRule
from workers.reply import CleanText, ReplyWriter
from workers.scripted import ScriptedModel
from workers.tools import tool
from workers.writer import Writer


@tool(retry_safe=True)
async def look() -> str:
    """Look."""
    return ""


@client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the person for a color."""


def definition(**options: Any) -> AgentDefinition:
    return AgentDefinition(model=ScriptedModel(), name="agent", tools=[add, look, ask_color], **options)


async def begun(broker: Broker, **options: Any) -> tuple[holders.Holder, Writer, ReplyWriter]:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    made = definition(**options)
    return holder, writer, ReplyWriter(writer, made, made.toolset(), no_hooks(writer))


async def reply(broker: Broker, *deltas: Any, **options: Any) -> tuple[holders.Holder, Writer, list[holders.Record]]:
    """Write a whole reply, and return what the log holds after the start."""
    holder, writer, replying = await begun(broker, **options)
    before = writer.history.n
    for delta in deltas:
        await replying.take(delta)
    await replying.end()
    found = (await holders.records(broker, holder.session_id))[before:]
    assert writer.history.n == before + len(found)
    return holder, writer, found


def completed(found: list[holders.Record], kind: str) -> list[holders.Record]:
    return [r for r in found if r["type"] == "entryCompleted" and r["entry"]["type"] == kind]


# Streaming.


async def test_the_first_text_opens_the_message_and_the_rest_are_deltas(broker: Broker) -> None:
    holder, writer, replying = await begun(broker)
    heard = subscribe(broker, [broker.keys.live(holder.session_id)])
    assert await anext(heard) is None

    for text in ("one", "two"):
        await replying.take(ModelText(text))
        await writer.flush()
    added, delta = [loads(got[1]) for got in [await anext(heard), await anext(heard)] if got is not None]
    await heard.aclose()

    (opened,) = added["e"]
    assert (opened["type"], opened["delta"], text_of(opened["entry"])) == ("entryAdded", True, "one")
    assert (delta["d"]["text"], delta["d"]["entryId"], delta["n"]) == ("two", opened["entry"]["id"], added["n"])
    assert writer.history.open_message == opened["entry"]["id"]
    await replying.end()
    await writer.close()


async def test_text_that_piles_up_while_a_write_is_in_flight_goes_as_one_delta(broker: Broker) -> None:
    holder, _, replying = await begun(broker)
    heard = subscribe(broker, [broker.keys.live(holder.session_id)])
    assert await anext(heard) is None
    await replying.take(ModelText("0"))

    for at in range(1, 50):
        await replying.take(ModelText(f",{at}"))  # gives the loop no time to write
    await replying.end()

    texts: list[str] = []
    while True:
        got = await anext(heard)
        assert got is not None
        published = loads(got[1])
        if "d" in published:
            texts.append(published["d"]["text"])
        elif len(published["e"]) == 1 and published["e"][0]["type"] == "entryCompleted":
            break
    await heard.aclose()
    assert "0" + "".join(texts) == ",".join(map(str, range(50)))
    assert len(texts) < 10


async def test_reasoning_is_stored_and_never_published_as_text(broker: Broker) -> None:
    holder, writer, replying = await begun(broker)
    heard = subscribe(broker, [broker.keys.live(holder.session_id)])
    assert await anext(heard) is None
    for text in ("let ", "me ", "see"):
        await replying.take(ModelReasoning(text))
        await writer.flush()
    await replying.take(ModelText("so"))
    await replying.end()

    published = [loads(got[1]) for got in [await anext(heard) for _ in range(3)] if got is not None]
    await heard.aclose()
    assert [one.get("d") for one in published] == [None, None, None]
    assert [event["entry"]["type"] for one in published for event in one["e"]] == [
        *("reasoning", "message"),
        *("reasoning", "message"),
    ]
    found = await holders.records(broker, holder.session_id)
    assert completed(found, "reasoning")[0]["entry"]["text"] == "let me see"


async def test_what_is_written_so_far_is_what_a_cut_completes(broker: Broker) -> None:
    holder, writer, replying = await begun(broker)
    for delta in (ModelReasoning('"hm\n'), ModelText("a\x00\u2028"), ModelText("\\b"), ModelReasoning("\ud83d")):
        await replying.take(delta)
    await replying.take(ModelText("\ud83d"))  # half of a character waits
    await writer.flush()

    assert await holders.verb_interrupt(broker, holder)

    found = await holders.records(broker, holder.session_id)
    holders.expect_whole(found)
    assert text_of(completed(found, "message")[-1]["entry"]) == "a\x00\u2028\\b"
    assert completed(found, "reasoning")[0]["entry"]["text"] == '"hm\n'


# The end.


async def test_the_first_record_of_the_end_says_what_was_read_and_used(broker: Broker) -> None:
    usage = TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3, cached_input_tokens=1)
    deltas = [ModelReasoning("hm"), ModelText("x"), ModelUsage(usage), ModelUsage(usage), ModelStop()]
    _, writer, found = await reply(broker, *deltas, call("add", "a", a=1, b=2))

    privates = [r["private"] for r in found if "reply" in r.get("private", {})]
    assert len(privates) == 1
    assert completed(found, "reasoning")[0]["private"] == privates[0]
    assert privates[0]["reply"]["usage"]["total_tokens"] == 6
    assert writer.history.usage == usage + usage
    assert privates[0]["reply"]["read"] == 5


async def test_a_reply_without_text_has_no_message(broker: Broker) -> None:
    _, writer, found = await reply(broker, call("add", "a", a=1, b=2))

    assert [r["type"] for r in found] == ["entryAdded", "entryCompleted"]
    assert "reply" in found[1]["private"]
    assert writer.history.replies == 1


async def test_a_reply_of_nothing_leaves_nothing_in_the_log(broker: Broker) -> None:
    _, writer, found = await reply(broker, ModelUsage(TokenUsage(total_tokens=9)), ModelText(""), ModelStop())

    assert found == []
    assert (writer.history.replies, writer.history.usage.total_tokens) == (1, 9)
    assert not writer.history.awaits_model


async def test_the_turn_s_text_is_kept_for_its_record(broker: Broker) -> None:
    holder, _, _ = await reply(broker, ModelText("so far"))

    record = await transitions.record(broker, holder.session_id, holder.turn)
    assert isinstance(record, transitions.OpenRecord)
    assert loads(record.text) == "so far"


# Decisions.


POLICY = PermissionPolicy(
    rules=[
        PermissionRule(tools=["client.look"], decision="ask"),
        PermissionRule(tools=["client.add"], decision="deny"),
    ]
)


@pytest.mark.parametrize(
    ("options", "name", "decided", "opened"),
    [
        ({}, "add", {"decision": "run", "retrySafe": False}, None),
        ({}, "look", {"decision": "run", "retrySafe": True}, None),
        ({}, "ask_color", {"decision": "client"}, "clientTool"),
        ({"permission_mode": "ask"}, "add", {"decision": "ask", "retrySafe": False}, "approval"),
        ({"permission_mode": "ask"}, "ask_color", {"decision": "ask", "retrySafe": False}, "approval"),
        ({"permission_mode": "deny"}, "add", {"decision": "refused"}, None),
        ({"permission_policy": POLICY}, "add", {"decision": "refused"}, None),
        ({"permission_policy": POLICY}, "look", {"decision": "ask", "retrySafe": True}, "approval"),
        ({}, "no_such", {"decision": "refused"}, None),
    ],
)
async def test_a_decision_is_written_with_its_call(
    broker: Broker, options: dict[str, Any], name: str, decided: dict[str, Any], opened: str | None
) -> None:
    _, writer, found = await reply(broker, call(name, "c"), **options)

    (made,) = completed(found, "toolCall")
    stored = made["private"]["call"]
    assert {key: stored.get(key) for key in decided} == decided
    callbacks = [r["callback"] for r in found if r["type"] == "callbackOpened"]
    assert [callback["type"] for callback in callbacks] == ([opened] if opened else [])
    assert stored.get("callback") == (callbacks[0]["id"] if callbacks else None)
    assert [r["type"] for r in found].count("turnUpdated") == len(callbacks)
    assert writer.history.calls["c"].decision == decided["decision"]


async def test_a_question_says_what_is_asked(broker: Broker) -> None:
    _, _, found = await reply(broker, call("add", "c", a=1, b=2), permission_mode="ask")

    (callback,) = [r["callback"] for r in found if r["type"] == "callbackOpened"]
    assert callback["request"]["toolCallId"] == "c"
    assert callback["request"]["arguments"] == {"a": 1, "b": 2}
    assert callback["request"]["tool"] == {"id": "client.add", "name": "add", "description": "Add two numbers."}


async def test_a_name_without_its_source_is_the_tool_s(broker: Broker) -> None:
    _, _, found = await reply(broker, ModelToolCall("c", "add", {"a": 1, "b": 2}))

    assert completed(found, "toolCall")[0]["entry"]["name"] == "client.add"


@pytest.mark.parametrize("arguments", [float("nan"), {1: 2}, {"a": object()}, {"a": {1, 2}}, b"x"])
async def test_what_json_cannot_hold_is_malformed(broker: Broker, arguments: Any) -> None:
    _, writer, found = await reply(broker, ModelToolCall("c", "client.add", arguments))

    (made,) = completed(found, "toolCall")
    assert made["entry"]["arguments"] is None
    assert writer.history.calls["c"].text == "The arguments of client.add are no valid JSON."


@pytest.mark.parametrize("call_id", ["", "a\nb", "a\x00", "\ud83d", "a\u2028b"])
async def test_an_id_that_is_no_plain_text_is_replaced(broker: Broker, call_id: str) -> None:
    _, _, found = await reply(broker, ModelToolCall(call_id, "client.look", None))

    made = completed(found, "toolCall")[0]["entry"]["toolCallId"]
    assert made.startswith("call_")
    assert made.isprintable()


# Limits.


async def test_as_many_calls_as_one_append_holds(broker: Broker) -> None:
    calls = [ModelToolCall(f"c{at}", "client.add", {"a": at, "b": 1}) for at in range(CALLS_LIMIT)]
    holder, _, found = await reply(broker, ModelReasoning("hm"), ModelText("x"), *calls, permission_mode="ask")

    assert len(completed(found, "toolCall")) == CALLS_LIMIT
    assert len(found) <= 500
    assert await holders.verb_interrupt(broker, holder)
    holders.expect_whole(await holders.records(broker, holder.session_id))


async def test_more_calls_fail_the_model_call(broker: Broker) -> None:
    _, writer, replying = await begun(broker)
    for at in range(CALLS_LIMIT):
        await replying.take(ModelToolCall(f"c{at}", "client.add", {}))

    with pytest.raises(ModelError, match="more than 128") as failed:
        await replying.take(ModelToolCall("one more", "client.add", {}))
    assert (failed.value.code, failed.value.retryable) == ("too_many_calls", False)
    await writer.close()


async def test_large_bodies_are_blobs(broker: Broker) -> None:
    large = "x" * (INLINE_LIMIT + 1)
    calls = [call("look", "a", given=large), call("ask_color", "b", of=large)]
    holder, writer, found = await reply(broker, ModelReasoning(large), ModelText(large), *calls)

    stored = await holders.raw_records(broker, holder.session_id)
    assert max(len(raw.body) for raw in stored) < 2000
    assert text_of(completed(found, "message")[0]["entry"]) == large
    assert [r["callback"]["call"]["arguments"] for r in found if r["type"] == "callbackOpened"] == [{"of": large}]
    assert writer.history.calls["a"].arguments == {"given": large}
    again = await writer_for(broker, holder)
    assert again.history == writer.history


# A reply of a run that holds the turn no more.


async def test_a_superseded_run_stops_at_its_next_write(broker: Broker) -> None:
    holder, writer, replying = await begun(broker)
    await replying.take(ModelText("one"))
    assert await holders.verb_interrupt(broker, holder)

    await replying.take(ModelText("more"))
    with pytest.raises(Superseded):
        await writer.flush()
    with pytest.raises(Superseded):
        await replying.take(ModelText("and more"))
    with pytest.raises(Superseded):
        await replying.end()
    await writer.close()


async def test_a_log_that_lost_what_was_seen_is_a_gap(broker: Broker) -> None:
    holder, writer, replying = await begun(broker)
    await replying.take(ModelText("one"))
    await holders.command(broker, "XDEL", broker.keys.of("log", holder.session_id), writer.history.last)

    with pytest.raises(Gap):
        await replying.end()
    await writer.close()


def test_clean_text_holds_back_only_what_may_still_be_joined() -> None:
    clean = CleanText()

    assert [clean.feed(piece) for piece in ("a\ud83d", "\ude00", "b", "\ude00")] == ["a", "😀", "b", "\ufffd"]
    assert clean.replaced
    assert clean.end() == ""


async def test_a_reply_cut_at_the_models_length_limit_says_so(broker: Broker) -> None:
    _, _, found = await reply(broker, ModelText("a lo"), ModelStop("length"))

    assert [record["type"] for record in found] == ["entryAdded", "entryCompleted", "notice"]
    assert (found[-1]["level"], found[-1]["source"], found[-1]["details"]) == ("warning", "model", {"reason": "length"})
