"""A starting history: what is taken, what is refused, which entries it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from broker.protocol.content import (
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    TextContentBlock,
    UnknownContentBlock,
)
from broker.protocol.entries import MessageEntry, ToolCallEntry, ToolResultEntry, UnknownEntry, entry_to_wire
from broker.protocol.history_import import (
    HistoryImportMessage,
    HistoryImportReasoning,
    HistoryImportSnapshot,
    HistoryImportToolCall,
    HistoryImportToolResult,
    history_entries,
    parse_history,
)
from broker.protocol.records import ProtocolError

TEXT = TextContentBlock(text="hi")
RESOURCE = EmbeddedResourceContentBlock(uri="u", text="x")


def entries(*items: Any) -> list[Any]:
    return list(history_entries(tuple(parse_history(items))))


def test_classes_and_mappings_in_both_spellings_are_the_same() -> None:
    classes = (
        HistoryImportMessage(role="user", content=[TEXT]),
        HistoryImportReasoning(text="hm"),
        HistoryImportToolCall(tool_call_id="1", tool_kind="mcp", name="look", arguments={"a": 1}),
        HistoryImportToolResult(tool_call_id="1", name="look", error=ProtocolError(message="no"), annotations={"k": 1}),
        HistoryImportSnapshot(task_name="t", snapshot_type="s", value=[1]),
    )
    error = {"message": "no"}
    snake: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"type": "reasoning", "text": "hm"},
        {"type": "tool_call", "tool_call_id": "1", "tool_kind": "mcp", "name": "look", "arguments": {"a": 1}},
        {"type": "tool_result", "tool_call_id": "1", "name": "look", "error": error, "annotations": {"k": 1}},
        {"type": "snapshot", "task_name": "t", "snapshot_type": "s", "value": [1]},
    ]
    camel: list[dict[str, Any]] = [
        *snake[:2],
        {"type": "tool_call", "toolCallId": "1", "toolKind": "mcp", "name": "look", "arguments": {"a": 1}},
        {"type": "tool_result", "toolCallId": "1", "name": "look", "error": error, "annotations": {"k": 1}},
        {"type": "snapshot", "taskName": "t", "snapshotType": "s", "value": [1]},
    ]

    assert [tuple(parse_history(items)) for items in (classes, snake, camel)] == [classes] * 3
    assert [item.type for item in classes] == ["message", "reasoning", "tool_call", "tool_result", "snapshot"]


def test_messages_and_calls_become_entries_without_a_turn() -> None:
    message, call = entries(
        HistoryImportMessage(role="assistant", content=[TEXT, UnknownContentBlock(original_type="video")]),
        HistoryImportToolCall(tool_call_id="1", name="client.look"),
    )

    assert message == MessageEntry(
        id=message.id,
        turn_id=None,
        role="assistant",
        content=(TEXT, UnknownContentBlock(original_type="video")),
    )
    assert call == ToolCallEntry(id=call.id, turn_id=None, tool_call_id="1", name="client.look", arguments=None)
    assert message.id != call.id


@pytest.mark.parametrize(
    ("given", "text", "structured", "failed"),
    [
        ({"result": "fine"}, "fine", None, False),
        ({"result": ""}, "", None, False),
        ({"result": {"a": [1]}}, '{"a":[1]}', {"a": [1]}, False),
        ({"result": False}, "false", False, False),
        ({}, None, None, False),
        ({"error": {"message": "no", "code": "x"}}, "no", None, True),
    ],
    ids=str,
)
def test_results_become_text_and_structured_content(given: Any, text: str | None, structured: Any, failed: Any) -> None:
    (result,) = entries({"type": "tool_result", "toolCallId": "1", "annotations": {"k": 1}, **given})

    content = () if text is None else (TextContentBlock(text=text),)
    assert result == ToolResultEntry(
        id=result.id,
        turn_id=None,
        tool_call_id="1",
        name=None,
        content=content,
        structured_content=structured,
        is_error=failed,
        meta={"k": 1},
    )


def test_reasoning_and_snapshots_become_raw_entries() -> None:
    reasoning, checkpoint = entries(
        HistoryImportReasoning(text="hm"), HistoryImportSnapshot(task_name="plan", snapshot_type="end", value={"a": 1})
    )

    assert isinstance(reasoning, UnknownEntry)
    assert (reasoning.type, reasoning.raw["text"]) == ("reasoning", "hm")
    assert (checkpoint.type, checkpoint.raw["message"], checkpoint.raw["details"]) == (
        "checkpoint",
        "plan:end",
        {"a": 1},
    )
    assert entry_to_wire(checkpoint) == checkpoint.raw


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("a a= b b=", "a a= b b="),
        ("a a= a a= a a=", "a a= 1 1= 2 2="),
        ("a a a= a=", "a 1 a= 1="),
        ("a b a= b=", "a b a= b="),
        ("a= a", "a= a"),
        ("a= a a=", "1= a a="),
        ("a a= a=", "a a= 1="),
        ("a= b=", "a= b="),
    ],
)
def test_call_ids_are_unique_and_a_result_has_its_call_s(given: str, stored: str) -> None:
    """`a` is a call with the id a, `a=` a result; an id that is replaced is a number, in the order of their places."""
    made = entries(
        *(
            HistoryImportToolResult(tool_call_id=word[0])
            if word.endswith("=")
            else HistoryImportToolCall(tool_call_id=word, name="t")
            for word in given.split()
        )
    )

    numbers: dict[str, str] = {}
    words = []
    for entry in made:
        call_id = entry.tool_call_id
        if len(call_id) > 1:
            call_id = numbers.setdefault(call_id, str(len(numbers) + 1))
        words.append(call_id + ("=" if isinstance(entry, ToolResultEntry) else ""))
    assert " ".join(words) == stored


def test_lone_surrogates_are_replaced_wherever_they_are() -> None:
    (call,) = entries(HistoryImportToolCall(tool_call_id="\ud800", name="x", arguments={"\ud800": ["\udfff"]}))

    assert (call.tool_call_id, call.arguments) == ("\ufffd", {"\ufffd": ["\ufffd"]})


def test_rules_hold_where_an_object_is_made() -> None:
    with pytest.raises(ValueError, match="text blocks only"):
        HistoryImportMessage(role="system", content=[ImageContentBlock(uri="u")])
    with pytest.raises(ValueError, match="no embedded resource"):
        HistoryImportMessage(role="assistant", content=[RESOURCE])
    with pytest.raises(ValueError, match="role must be"):
        HistoryImportMessage(role="context")  # type: ignore[arg-type] # what is refused
    with pytest.raises(ValueError, match="tool_kind must be"):
        HistoryImportToolCall(tool_call_id="1", name="x", tool_kind="magic")  # type: ignore[arg-type] # what is refused
    with pytest.raises(ValueError, match="either result or error"):
        HistoryImportToolResult(tool_call_id="1", result=1, error=ProtocolError(message="no"))

    assert HistoryImportMessage(role="user", content=[RESOURCE]).content == [RESOURCE]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"role": "user"}, r"history\[1\]\.type: None"),
        ({"type": "entry"}, r"history\[1\]\.type: 'entry'"),
        ({"type": "message"}, r"history\[1\]: missing .*'role'"),
        ({"type": "message", "role": "boss"}, r"history\[1\]: role must be"),
        ({"type": "message", "role": "user", "sender": "x"}, r"history\[1\]\.sender: no such field"),
        ({"type": "message", "role": "user", "content": [{"type": "x"}]}, r"history\[1\]\.content\[0\]\.type: 'x'"),
        ({"type": "reasoning"}, r"history\[1\]: missing .*'text'"),
        ({"type": "tool_call", "tool_call_id": "1", "name": None}, r"history\[1\]: missing .*'name'"),
        ({"type": "tool_call", "toolCallId": "1", "tool_call_id": "1", "name": "x"}, "given twice"),
        (
            {"type": "tool_result", "tool_call_id": "1", "result": 1, "error": {"message": "m"}},
            "either result or error",
        ),
        ({"type": "tool_result", "tool_call_id": "1", "error": {}}, r"history\[1\]\.error: message must be"),
        ({"type": "tool_result", "tool_call_id": "1", "result": float("nan")}, r"history\[1\]\.result: nan"),
    ],
    ids=str,
)
def test_bad_entries_are_value_errors_that_name_the_place(item: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tuple(parse_history([HistoryImportMessage(role="user"), item]))


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("history", "history must be"),
        ({"type": "reasoning"}, "history must be"),
        ([5], r"history\[0\] must be"),
        ([{"type": "message", "role": "user", "content": "hi"}], r"history\[0\]\.content must be a list"),
        ([HistoryImportReasoning(text=5)], r"history\[0\]\.text must be a text"),  # type: ignore[arg-type] # what is refused
        ([{"type": "tool_result", "tool_call_id": "1", "annotations": []}], r"history\[0\]\.annotations must be"),
        ([{"type": "tool_result", "tool_call_id": "1", "error": "no"}], r"history\[0\]\.error must be"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_no_history_at_all_is_a_type_error(items: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        tuple(parse_history(items))
