"""A session's history, folded from its log and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from histories import TURN, Told, text

from broker.protocol.content import content_text
from broker.protocol.records import TokenUsage, ToolCall
from workers.fold import CALLS_LIMIT, Draft, History, Input, Reply

ASK: Final = {"decision": "ask", "callback": "q"}


def shape(history: History) -> list[object]:
    """The timeline in short: inputs as their text, replies as (text, their calls), drafts as a list of text and feedback."""
    short: list[object] = []
    for item in history.timeline:
        match item:
            case Input():
                short.append(content_text(item.content))
            case Draft():
                short.append([item.text, item.feedback])
            case Reply():
                short.append((item.text, *(call.tool_call_id for call in item.calls)))
    return short


def test_a_conversation() -> None:
    told = Told().user("hi").reply("let me see", "a", "b").result("b").result("a").reply("done").user("thanks")

    assert shape(told.history) == ["hi", ("let me see", "a", "b"), ("done",), "thanks"]
    assert (told.history.last, told.history.n) == (f"{len(told.records)}-1000", len(told.records))


def test_a_log_folded_in_pieces_is_the_log_folded_at_once() -> None:
    told = Told().user("hi").reply("x", "a", "b", a=ASK).asked("a", "q").answered("q", {"type": "allow"}).result("b")
    told.started("a").result("a").reply("y").next_turn().user("again").reply("", "c")
    again = History()
    for at, record in enumerate(told.records):
        again.apply(f"{at + 1}-1000", record)

    assert again == told.history


def test_what_this_version_does_not_know_changes_nothing() -> None:
    told = Told().user("hi")
    before = shape(told.history)
    told.record(type="somethingNew", of={"a": 1}).entry({"type": "plan", "id": "p", "steps": []})
    told.added({"type": "plan", "id": "p2"}).completed({"type": "plan", "id": "p2"})

    assert shape(told.history) == before
    assert told.history.awaits_model


def test_only_the_turn_s_own_calls_and_counts_are_kept() -> None:
    told = Told().user("hi").reply("x", "a").result("a").reply("y")
    assert (told.history.replies, told.history.usage) == (2, TokenUsage(total_tokens=2))
    assert told.history.tool_calls == (ToolCall(name="client.t", arguments={}),)

    told.next_turn().user("again")

    assert (told.history.replies, told.history.usage, told.history.text) == (0, TokenUsage(), "")
    assert told.history.calls == {}
    assert told.history.call_ids == {"a"}  # an id is unique in the session, not in the turn
    assert shape(told.history) == ["hi", ("x", "a"), ("y",), "again"]


# What people sent while the model was at work.


def test_what_came_after_the_request_had_read_stands_after_the_reply_and_its_results() -> None:
    told = Told().user("hi").user("one").user("two").reply("x", "a", read=2).result("a")

    assert shape(told.history) == ["hi", ("x", "a"), "one", "two"]
    assert content_text(told.history.timeline[-1].content) == "two"  # type: ignore[union-attr] # an input, as the line above says


def test_unread_messages_keep_their_order_over_several_replies() -> None:
    told = Told().user("hi").reply("x", "a", read=2)
    told.user("one").result("a").user("two").reply("y", read=8).user("three")

    assert shape(told.history) == ["hi", ("x", "a"), "one", ("y",), "two", "three"]


def test_context_stays_with_the_message_it_was_sent_with() -> None:
    told = Told().user("hi").user("noted", role="context").user("also", role="context").user("more")

    first, second = told.history.timeline
    assert isinstance(first, Input)
    assert isinstance(second, Input)
    assert [content_text(each) for each in first.context] == ["noted", "also"]
    assert second.context == []


# Replies that were cut, tried again, or had nothing to say.


def test_an_open_message_is_known_by_its_id() -> None:
    told = Told().user("hi").added({"type": "reasoning", "id": "r", "text": "hm"})
    told.added({"type": "message", "id": "m", "role": "assistant", "content": text("par")})
    assert (told.history.open_reasoning, told.history.open_message) == ("r", "m")

    told.completed({"type": "reasoning", "id": "r", "text": "hm"})
    told.completed({"type": "message", "id": "m", "role": "assistant", "content": text("whole")}, reply={"read": 2})

    assert (told.history.open_reasoning, told.history.open_message) == (None, None)
    assert shape(told.history) == ["hi", ("whole",)]
    assert told.history.text == "whole"


def test_an_entry_that_the_reply_did_not_write_is_no_reply() -> None:
    """An earlier try opened it; the reply completed it with content ()."""
    told = Told().user("hi").added({"type": "message", "id": "m", "role": "assistant", "content": text("par")})
    told.completed({"type": "message", "id": "m", "role": "assistant", "content": []})

    assert shape(told.history) == ["hi"]
    assert told.history.open_message is None
    assert told.history.awaits_model


def test_a_message_that_an_interrupt_cut_was_said() -> None:
    told = Told().user("hi").added({"type": "message", "id": "m", "role": "assistant", "content": text("par")})
    told.user("while it wrote").completed(
        {"type": "message", "id": "m", "role": "assistant", "content": text("partial")}
    )

    assert shape(told.next_turn().user("go on").history) == ["hi", ("partial",), "while it wrote", "go on"]


def test_a_call_without_text_is_a_reply() -> None:
    told = Told().user("hi").reply("", "a")

    assert shape(told.history) == ["hi", ("", "a")]
    assert told.history.replies == 1


@pytest.mark.parametrize("text_of", ["", "x"])
def test_reasoning_is_part_of_no_message(text_of: str) -> None:
    told = Told().user("hi").added({"type": "reasoning", "id": "r", "text": "hm"})
    if text_of:
        told.added({"type": "message", "id": "m", "role": "assistant", "content": text("x")})
    told.completed({"type": "reasoning", "id": "r", "text": "hm"}, reply={"read": 2, "usage": {"total_tokens": 5}})
    if text_of:
        told.completed({"type": "message", "id": "m", "role": "assistant", "content": text("x")})

    assert shape(told.history) == ["hi", (text_of,)]
    assert (told.history.replies, told.history.usage.total_tokens) == (1, 5)


def test_silence_counts_as_a_reply_until_something_newer_comes() -> None:
    told = Told().user("hi")
    told.history.note_silence(told.history.n, TokenUsage(total_tokens=3))
    assert not told.history.awaits_model
    assert (told.history.replies, told.history.usage.total_tokens) == (1, 3)

    assert told.user("hello?").history.awaits_model


def test_silence_after_results_counts_too() -> None:
    told = Told().user("hi").reply("", "a").result("a")
    told.history.note_silence(told.history.n, TokenUsage())
    assert not told.history.awaits_model


# Calls, and what was decided and answered about them.


def test_a_call_s_way() -> None:
    told = Told().user("hi").reply("", "a", a=ASK)
    call = told.history.calls["a"]
    assert (call.decision, call.ready, call.started, call.done) == ("ask", False, False, False)
    told.asked("a", "q").answered("q", {"type": "allow", "scope": "once"})
    assert (call.outcome, call.answer, call.ready) == ("answered", {"type": "allow", "scope": "once"}, True)
    told.started("a")
    assert (call.started, call.done, call.result_entry) == (True, False, "ra")
    told.result("a", "ran")
    assert (call.done, call.ready) == (True, False)
    assert call.result is not None
    assert call.result["content"] == text("ran")


@pytest.mark.parametrize(
    ("answer", "granted"),
    [
        ({"type": "allow", "scope": "session"}, {"client.t"}),
        ({"type": "allow", "scope": "once"}, set()),
        ({"type": "deny", "reason": "no"}, set()),
        (None, set()),
    ],
)
def test_a_grant_for_the_session_is_in_the_log(answer: dict[str, str] | None, granted: set[str]) -> None:
    told = Told().user("hi").reply("", "a", a=ASK).asked("a", "q").answered("q", answer)

    assert told.history.grants == granted
    assert told.next_turn().user("x").history.grants == granted


def test_a_client_s_call_that_was_approved_waits_for_the_client() -> None:
    told = Told().user("hi").reply("", "a", a=ASK).asked("a", "q").answered("q", {"type": "allow", "scope": "session"})
    told.asked("a", "q2", "clientTool")
    call = told.history.calls["a"]
    assert (call.decision, call.callback, call.outcome, call.answer, call.ready) == ("client", "q2", None, None, False)

    told.answered("q2", {"type": "clientTool", "result": {}})
    assert call.ready
    assert told.history.grants == {"client.t"}


@pytest.mark.parametrize("outcome", ["closed", "expired"])
def test_a_question_that_nobody_answered(outcome: str) -> None:
    told = Told().user("hi").reply("", "a", a=ASK).asked("a", "q").answered("q", None, outcome)

    assert (told.history.calls["a"].outcome, told.history.calls["a"].ready) == (outcome, True)


def test_results_of_an_interrupted_turn_are_kept_with_their_calls() -> None:
    told = Told().user("hi").reply("x", "a", "b").started("a").result("a", "cut").result("b", "not run")
    told.next_turn().user("again")

    reply = told.history.timeline[1]
    assert isinstance(reply, Reply)
    assert [call.result is not None for call in reply.calls] == [True, True]


def test_a_result_of_an_unknown_call_changes_nothing() -> None:
    told = Told().user("hi").reply("x")
    before = shape(told.history)
    told.entry({"type": "toolResult", "id": "r", "toolCallId": "nobody's", "name": None, "content": []})

    assert shape(told.history) == before
    assert not told.history.awaits_model


# Imported history: no turn, no private fields.


def _imported() -> Told:
    told = Told(turn=None).user("be kind", role="system").user("hi")
    told.added({"type": "message", "id": "m", "role": "assistant", "content": text("let me see")})
    return told.completed({"type": "message", "id": "m", "role": "assistant", "content": text("let me see")})


def test_an_imported_conversation_reads_as_it_was() -> None:
    told = _imported()
    for call in ("a", "b"):
        told.entry({"type": "toolCall", "id": call, "toolCallId": call, "name": "client.t", "arguments": None})
    told.result("a").result("b").user("thanks")

    assert shape(told.history) == ["be kind", "hi", ("let me see", "a", "b"), "thanks"]
    assert told.history.turn is None


def test_imported_calls_without_a_message_are_a_reply_of_their_own() -> None:
    told = Told(turn=None).user("hi")
    told.entry({"type": "toolCall", "id": "a", "toolCallId": "a", "name": "client.t", "arguments": None}).result("a")
    told.turn = TURN

    assert shape(told.user("go on").history) == ["hi", ("", "a"), "go on"]
    assert told.history.calls == {}


def test_imported_calls_in_a_row_are_replies_of_as_many_as_a_reply_may_have() -> None:
    told = Told(turn=None)
    for at in range(CALLS_LIMIT + 2):
        call = f"c{at}"
        told.entry({"type": "toolCall", "id": call, "toolCallId": call, "name": "client.t", "arguments": None})
    replies = [item for item in told.history.timeline if isinstance(item, Reply)]

    assert [len(reply.calls) for reply in replies] == [CALLS_LIMIT, 2]


def test_imported_calls_are_never_run() -> None:
    """One whose result is missing in the import is not the turn's to run."""
    told = _imported()
    told.entry({"type": "toolCall", "id": "a", "toolCallId": "a", "name": "client.t", "arguments": None})
    told.turn = TURN
    told.user("go on")

    assert told.history.calls == {}
    assert told.history.awaits_model


@pytest.mark.parametrize("tell", [lambda t: t.user("hi"), lambda t: t.user("hi").reply("", "a").result("a")])
def test_the_fold_does_not_change_the_records(tell: Callable[[Told], Told]) -> None:
    first, second = tell(Told()), tell(Told())

    assert first.records == second.records


# Hooks.


def test_drafts_stand_where_they_were_read_and_go_with_the_reply() -> None:
    told = Told().user("hi")
    read = len(told.records)
    told.user("are you there?").draft("bad", "do better", read=read)
    assert shape(told.history) == ["hi", ["bad", "do better"], "are you there?"]
    told.draft("worse", "better, I said")
    assert shape(told.history) == ["hi", ["bad", "do better"], "are you there?", ["worse", "better, I said"]]
    assert (told.history.drafts, told.history.replies, told.history.usage.total_tokens) == (2, 0, 2)
    assert told.history.awaits_model

    told.reply("good")
    assert shape(told.history) == ["hi", "are you there?", ("good",)]
    assert (told.history.drafts, told.history.replies, told.history.usage.total_tokens) == (0, 1, 3)


def test_drafts_go_with_their_turn() -> None:
    told = Told().user("hi").draft("bad", "do better").next_turn().user("again")

    assert shape(told.history) == ["hi", "again"]


def test_what_hooks_keep_outlives_a_turn_and_what_they_decided_does_not() -> None:
    told = Told().user("hi").checkpoint("pre_agent_turn", state={"seen": 1}).checkpoint("pre_llm_call", skip="no")
    assert (told.history.hooks.opened, told.history.hooks.closed) == (True, True)

    told.next_turn().user("again")
    assert (told.history.hooks.opened, told.history.hooks.closed) == (False, False)
    assert told.history.hooks.kept == {"h": {"seen": 1}}
    told.checkpoint("post_agent_turn", hook="a.b", state=None)
    assert told.history.hooks.kept == {"h": {"seen": 1}, "a.b": None}


def test_a_rejected_reply_is_a_reply_that_says_nothing() -> None:
    told = Told().user("hi").checkpoint("post_llm_call", private={"reply": {"read": 2, "usage": {}}}, reject="no")

    assert shape(told.history) == ["hi", ("",)]
    assert (told.history.replies, told.history.hooks.closed) == (1, True)


def test_an_imported_snapshot_is_no_hook_s() -> None:
    told = Told(turn=None).checkpoint("pre_agent_turn", state={"admin": True}, skip="all")
    told.entry({"type": "checkpoint", "id": "s", "taskName": "x", "snapshotType": "y", "value": 1})
    told.turn = TURN
    told.entry({"type": "checkpoint", "id": "t", "message": None, "details": {"state": 1}})

    assert (told.history.hooks.kept, told.history.hooks.closed) == ({}, False)
