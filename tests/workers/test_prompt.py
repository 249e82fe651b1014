"""The request of a model call: one that a provider accepts, whatever happened before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from histories import TURN, Told, text
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from test_steps import told_histories
from wellformed import expect_wellformed

from broker.protocol.content import ContentAnnotations, TextContentBlock, content_text, content_to_wire
from broker.protocol.entries import entry_to_wire
from broker.protocol.history_import import (
    HistoryImportMessage,
    HistoryImportReasoning,
    HistoryImportSnapshot,
    HistoryImportToolCall,
    HistoryImportToolResult,
    history_entries,
    parse_history,
)
from workers.agent import AgentDefinition
from workers.fold import History
from workers.models import (
    AssistantMessage,
    ContextNote,
    ModelMessage,
    RequestedCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from workers.prompt import build_request, messages
from workers.scripted import ScriptedModel
from workers.tools import tool


def short(message: ModelMessage) -> tuple[str, ...]:
    """A message as its kind and its text, then its calls."""
    match message:
        case AssistantMessage(said, calls):
            return ("assistant", said, *(call.id for call in calls))
        case ToolMessage(call_id, _, content, is_error):
            return ("error" if is_error else "tool", call_id, content_text(content))
        case SystemMessage(content):
            return ("system", content_text(content))
        case UserMessage(content):
            return ("user", content_text(content))
        case ContextNote(content):
            return ("context", content_text(content))


def request(history: History, **options: Any) -> list[tuple[str, ...]]:
    customization = options.pop("customization", {})
    definition = AgentDefinition(model=ScriptedModel(), **options)
    return [
        short(message) for message in build_request(definition, customization, definition.toolset(), history).messages
    ]


def test_a_conversation() -> None:
    told = Told().user("be kind", role="system").user("hi").reply("let me see", "a", "b").result("b").result("a", "ran")

    assert request(told.reply("so").user("thanks").history) == [
        ("system", "be kind"),
        ("user", "hi"),
        ("assistant", "let me see", "a", "b"),
        ("tool", "a", "ran"),
        ("tool", "b", "done"),
        ("assistant", "so"),
        ("user", "thanks"),
    ]


def test_context_stands_before_the_message_it_was_sent_with() -> None:
    told = Told().user("hi").user("noted", role="context").user("more")

    assert request(told.history) == [("context", "noted"), ("user", "hi"), ("user", "more")]


def test_unread_messages_stand_after_the_results() -> None:
    told = Told().user("hi").user("while it wrote").reply("x", "a", read=2).result("a").user("while it ran")

    assert [kind for kind, *_ in request(told.history)] == ["user", "assistant", "tool", "user", "user"]


@pytest.mark.parametrize(
    ("started", "said"),
    [
        (True, "client.t was interrupted while it ran; what it did is not known."),
        (False, "client.t was not run: the turn was interrupted before it started."),
    ],
)
def test_a_call_without_a_result_says_so(said: str, *, started: bool) -> None:
    told = Told().user("hi").reply("", "a")
    if started:
        told.started("a")

    assert request(told.next_turn().user("again").history)[2] == ("error", "a", said)


@given(told_histories())
@settings(max_examples=200, deadline=None)
def test_each_call_is_followed_by_its_result(drawn: tuple[History, frozenset[str]]) -> None:
    expect_wellformed(list(messages(drawn[0])))


SAID = st.sampled_from(["", "so"])


@st.composite
def any_records(draw: st.DrawFn) -> Told:
    """A log that no engine of ours would write, too: results that are missing, doubled, early, late, or of no call."""
    told, made = Told().user("hi"), 0
    for at in range(draw(st.integers(0, 15))):
        if draw(st.booleans()) and made < 9:
            calls = [f"c{made + n}" for n in range(draw(st.integers(0, 3)))]
            made += len(calls)
            told.reply(draw(SAID), *calls, read=draw(st.integers(0, len(told.records))))
        moves = _any_moves(draw, told, at, f"c{draw(st.integers(0, made))}")
        moves[draw(st.sampled_from([*moves, "result", "started", "turn"]))]()
        list(messages(told.history))  # what is made early is what is made late
    return told


def _any_moves(draw: st.DrawFn, told: Told, at: int, call: str) -> dict[str, Callable[[], object]]:
    message = {"type": "message", "id": told.history.open_message or f"o{at}", "role": "assistant"}
    kind = st.sampled_from(["approval", "clientTool"])
    return {
        "input": lambda: told.user("more", draw(st.sampled_from(["user", "system", "context"]))),
        "source": lambda: told.entry(
            {**message, "role": "context", "kind": "capability_source", "content": text("gone")}
        ),
        "started": lambda: told.started(call),
        "result": lambda: told.result(call, draw(SAID)),
        "asked": lambda: told.asked(call, f"q{at}", draw(kind)),
        "answered": lambda: told.answered(f"q{draw(st.integers(0, 15))}", {"type": "allow"}),
        "turn": lambda: told.next_turn(f"00000000-0000-4000-8000-{at:012}").user("again"),
        "draft": lambda: told.draft(draw(SAID), "do better"),
        "rejected": lambda: told.checkpoint("post_llm_call", reject="no"),
        "opened": lambda: told.added({**message, "content": []}),
        "cut": lambda: told.completed({**message, "content": text(draw(SAID))}),
        "unknown": lambda: told.record(type="fromTheFuture", entry={"type": "toolCall"}),
    }


@given(any_records())
@settings(max_examples=300, deadline=None)
def test_whatever_a_log_holds_the_request_is_wellformed(told: Told) -> None:
    made = list(messages(told.history))

    expect_wellformed(made)
    afresh = History()
    for at, record in enumerate(told.records):
        afresh.apply(f"{at + 1}-1000", record)
    assert list(messages(afresh)) == made


IDS = st.sampled_from(["a", "b", "\x00", "c"])
TEXTS = st.sampled_from(["", "x", "y"])
HIDDEN = ContentAnnotations(audience=["user"])
BLOCKS = st.builds(TextContentBlock, text=TEXTS, annotations=st.sampled_from([None, None, HIDDEN]))
ITEMS = st.one_of(
    st.builds(
        HistoryImportMessage,
        role=st.sampled_from(["system", "user", "assistant"]),
        content=st.lists(BLOCKS, max_size=2),
    ),
    st.builds(HistoryImportReasoning, text=TEXTS),
    st.builds(HistoryImportToolCall, tool_call_id=IDS, name=st.just("t"), arguments=st.sampled_from([None, {"k": 1}])),
    st.builds(HistoryImportToolResult, tool_call_id=IDS, result=st.integers(0, 9)),
    st.builds(HistoryImportSnapshot, task_name=TEXTS, snapshot_type=TEXTS),
)


def paired(items: list[Any]) -> int:
    """How many calls of a history have a result in it: as many as there are of both with one id."""
    calls = Counter(item.tool_call_id for item in items if isinstance(item, HistoryImportToolCall))
    results = Counter(item.tool_call_id for item in items if isinstance(item, HistoryImportToolResult))
    return (calls & results).total()


@given(st.lists(ITEMS, max_size=14), st.integers(0, 14))
@settings(max_examples=400, deadline=None)
def test_whatever_is_imported_the_request_is_valid_and_holds_every_pair(items: list[Any], cut: int) -> None:
    told = Told(turn=None)
    for at, entry in enumerate(history_entries(tuple(parse_history(items)))):
        if at == cut:
            list(messages(told.history))  # what is made early is what is made late
        told.entry(entry_to_wire(entry))
    told.turn = TURN
    told.user("go on").reply("", "d").result("d").user("more")

    made = list(messages(told.history))

    expect_wellformed(made)
    assert made[-1] == UserMessage((TextContentBlock(text="more"),))
    calls = sum(len(message.calls) for message in made if isinstance(message, AssistantMessage))
    assert calls == 1 + sum(isinstance(item, HistoryImportToolCall) for item in items)
    results = [message for message in made if isinstance(message, ToolMessage) and not message.is_error]
    assert len(results) == 1 + paired(items)
    again = History()
    for at, record in enumerate(told.records):
        again.apply(f"{at + 1}-1000", record)
    assert list(messages(again)) == made
    told.user("aside", role="context")
    assert list(messages(told.history))[-2:] == [ContextNote((TextContentBlock(text="aside"),)), made[-1]]


def test_what_is_not_for_the_assistant_is_not_shown_to_it() -> None:
    told = Told()
    blocks = [
        TextContentBlock(text="for all", meta={"secret": 1}),
        TextContentBlock(text="for the user", annotations=ContentAnnotations(audience=["user"])),
        TextContentBlock(text="for both", annotations=ContentAnnotations(audience=["user", "assistant"])),
    ]
    content = [*(content_to_wire(block) for block in blocks), {"type": "hologram", "data": "x"}]
    told.entry({"type": "message", "id": "u", "role": "user", "content": content})
    told.reply("", "a")
    told.entry(
        {"type": "toolResult", "id": "r", "toolCallId": "a", "name": "client.t", "content": content, "meta": {"k": 1}}
    )

    user, _, result = messages(told.history)

    assert isinstance(user, UserMessage)
    assert isinstance(result, ToolMessage)
    for shown in (user.content, result.content):
        assert [block.text for block in shown if isinstance(block, TextContentBlock)] == ["for all", "for both"]
        assert len(shown) == 2
        assert shown[0] == TextContentBlock(text="for all")


def test_a_request_holds_what_the_definition_says() -> None:
    class Verdict(BaseModel):
        good: bool

    @tool
    def look(at: str) -> str:
        """Look at it."""
        return at

    definition = AgentDefinition(
        model=ScriptedModel(),
        instructions="Be brief.",
        tools=[look],
        temperature=0.5,
        reasoning_effort="low",
        output_type=Verdict,
    )
    customization = {"additional_instructions": "In French.", "reasoning_effort": "high"}

    made = build_request(definition, customization, definition.toolset(), Told().user("hi").history)

    assert made.instructions == "Be brief.\n\nIn French."
    assert (made.temperature, made.reasoning_effort) == (0.5, "high")
    assert [(spec.id, spec.description) for spec in made.tools] == [("client.look", "Look at it.")]
    assert made.output_schema == Verdict.model_json_schema()
    assert build_request(definition, {}, definition.toolset(), History()).reasoning_effort == "low"


def test_arguments_are_shown_as_they_were_made() -> None:
    told = Told().user("hi")
    told.entry(
        {"type": "toolCall", "id": "e", "toolCallId": "a", "name": "client.t", "arguments": {"n": [1, None]}},
        reply={"read": 2},
        call={"decision": "run"},
    )

    _, assistant, _ = messages(told.history)

    assert assistant == AssistantMessage("", (RequestedCall("a", "client.t", {"n": [1, None]}),))


def test_a_draft_is_read_with_what_was_said_of_it() -> None:
    told = Told().user("hi").draft("bad", "do better").draft("", "say something")

    assert request(told.history) == [
        ("user", "hi"),
        ("assistant", "bad"),
        ("context", "do better"),
        ("context", "say something"),
    ]
