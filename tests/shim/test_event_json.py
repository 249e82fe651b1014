"""Events as JSON: the public form that programs read, and what of it reaches a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from api_shim.cli.terminal import json_line, one_line, plain
from api_shim.event_json import event_line, event_to_json
from broker.protocol.wire import Position, decode

SESSION = "0-3f9c2e71-8c1e-4b7a-9f5e-0a4c8f1d2b3c"
TURN = "b6ab4ea9-8d2c-4f6e-9c8e-3a1f1e2d3c4b"
ENTRY = {"type": "message", "id": "e1", "role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
APPROVAL = {
    "type": "approval",
    "id": "c1",
    "title": "Allow pay?",
    "openedAt": "2026-01-02T03:04:05+00:00",
    "request": {
        "tool": {"id": "client.pay", "name": "pay", "description": None},
        "toolCallId": "call_1",
        "arguments": {"amount": 1},
        "fromHook": False,
    },
}
SIGN_IN = {
    **{key: APPROVAL[key] for key in ("id", "title", "openedAt")},
    "type": "signIn",
    "requests": [{"sourceId": "drive", "title": "Drive", "url": "https://example.org"}],
}
CLIENT_TOOL = {
    **{key: APPROVAL[key] for key in ("id", "title", "openedAt")},
    "type": "clientTool",
    "call": {"toolCallId": "call_1", "name": "client.clip", "arguments": None},
}
USAGE = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3, "cachedInputTokens": 0}
COMPLETED = {
    "type": "completed",
    "text": "Hi.",
    "toolCalls": [{"name": "client.pay", "arguments": {}}],
    "stopReason": None,
    "usage": USAGE,
}


@pytest.mark.parametrize(
    "record",
    [
        {"type": "turnStarted"},
        {"type": "turnUpdated", "status": "blocked"},
        {"type": "turnUpdated", "status": "of tomorrow"},
        {"type": "callbackOpened", "callback": APPROVAL},
        {"type": "callbackOpened", "callback": SIGN_IN},
        {"type": "callbackOpened", "callback": CLIENT_TOOL},
        {"type": "callbackOpened", "callback": {"type": "vote", "id": "c1", "title": "Vote", "choices": [1]}},
        {"type": "callbackResolved", "callbackId": "c1"},
        {"type": "notice", "message": "m", "level": "warning", "source": None, "details": {"reason": "x"}},
        {"type": "entryAdded", "entry": ENTRY},
        {"type": "entryCompleted", "entry": ENTRY},
        {"type": "entryCompleted", "entry": {"type": "reasoning", "id": "e2", "text": "Hm."}},
        {"type": "textDelta", "entryId": "e1", "text": "He"},
        {"type": "ofTomorrow", "field": [1, {"a": None}]},
    ],
)
def test_an_event_is_what_is_stored_with_its_ids(record: dict[str, Any]) -> None:
    event = decode(SESSION, Position(7, 1000), {**record, "turnId": TURN, "private": {"answer": "secret"}})[0]

    assert event_to_json(event) == {"id": f"{SESSION}:7-1000", "sessionId": SESSION, "turnId": TURN, **record}


def test_a_sessions_update_names_no_turn() -> None:
    record = {"type": "sessionUpdated", "status": "waiting", "title": None, "archived": False}
    event = decode(SESSION, Position(1, 2), record)[0]

    assert event_to_json(event) == {"id": f"{SESSION}:1-2", "sessionId": SESSION, "turnId": None, **record}


@pytest.mark.parametrize(
    "state",
    [
        COMPLETED,
        {"type": "interrupted", "cause": "cancelled", "text": ""},
        {"type": "interrupted", "cause": "of tomorrow", "text": ""},
        {"type": "failed", "error": {"message": "m", "code": "c", "details": None}, "text": "so far"},
        {"type": "ofTomorrow", "text": "", "why": [1]},
    ],
)
def test_an_ended_turn_has_its_record_with_the_cursor(state: dict[str, Any]) -> None:
    event = decode(SESSION, Position(9, 5), {"type": "turnEnded", "turnId": TURN, "state": state})[0]

    assert event_to_json(event)["state"] == {**state, "cursor": f"{SESSION}:10-5"}


def test_a_line_stays_one_line_and_harmless_whatever_the_text_holds() -> None:
    text = "a\nb\u2028c\x85d\x1b[2Je\x9bf\x00g\x7f \U0001f600 é"
    record = {"type": "textDelta", "turnId": TURN, "entryId": "e1", "text": text}
    line = event_line(decode(SESSION, Position(1, 1), record)[0])

    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert json.loads(line)["text"] == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        (
            "\x1b[31mred\x1b[0m \x1b[1;2Hmoved \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\",
            "red moved link",
        ),
        ("\x9b31mred\x9d0;title\x9c done", "red done"),
        ("\x1bP1$r0m\x1b\\dcs \x1bcreset \x1b(Bset \x1b", "dcs reset set "),
        ("an unended \x1b]52;c;aGFja2Vk", "an unended "),
        ("turned \u202eback\u202c, \u2066kept\u2069", "turned back, kept"),
        ("half \ud83d of a pair", "half \ufffd of a pair"),
        ("back\bspace, null\x00, bell\x07", "backspace, null, bell"),
    ],
)
def test_text_for_a_terminal_holds_nothing_that_acts(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_a_line_for_a_terminal_is_short_and_a_megabyte_is_no_matter() -> None:
    assert one_line("a\nb  c") == "a b c"
    assert one_line("x" * 1_000_000) == "x" * 159 + "…"
    assert one_line("x" * 160) == "x" * 160
    assert json_line({"amount": 1, "to": "a\x9b2Jb"}) == 'amount=1, to="ab"'
    assert json_line("text") == "text"
    assert json_line([1, None]) == "[1,null]"


def test_commands_that_only_read_load_no_workers_code() -> None:
    code = "import sys, api_shim.cli.watch, api_shim.cli.sessions; print([m for m in ('arq', 'workers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
