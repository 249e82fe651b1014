"""Text from anywhere (F43): half characters, NUL, line separators, a megabyte in one line. Stored and shown as valid UTF-8.

What was replaced is flagged: a warning in the session's log names the entry.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from agents_for_tests import (
    Home,
    StepModel,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    opened,
    started,
    stored,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import api_shim as agents
from broker.protocol.content import content_text
from broker.protocol.values import clean_json, clean_text, dumps, is_clean, loads, watch_replaced
from broker.protocol.wire import tail
from workers.effects import stored_result
from workers.models import ModelReasoning, ModelText, ModelToolCall
from workers.reply import CleanText
from workers.tools import to_result

WHOLE: Final = {
    "nul": "a\x00b\x00",
    "separators": "a\u2028b\u2029c\x85d\x0b\x0ce\r\n\r",
    "json": '"}],\\"\\u0000\\\\",{}"',
    "control": "".join(map(chr, range(32))) + "\x7f\x9f",
    "astral": "😀\U0001d518\U0010ffff\ufdd0\ufffe",
    "replacement": "already \ufffd",
    "format": "%s {0} ${x} \x1b[31mred\x1b[0m",
    "megabyte": "ä" * 500_000 + "x" * 100_000,
}
HALVES: Final = {
    "high": "a\ud83d",
    "low": "\ude00b",
    "swapped": "\ude00\ud83d",
    "escaped bytes": b"caf\xe9 \xff\xfe.txt".decode("utf-8", "surrogateescape"),
    "megabyte": "x" * 1_000_000 + "\ud83d",
}
TEXTS: Final = [*WHOLE.items(), *((f"half {name}", text) for name, text in HALVES.items())]


def shown(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if not is_clean(text) else text


async def flagged(session: agents.Session) -> list[str | None]:
    """What the log's warnings about replaced text name."""
    notices = [event for event in await stored(session) if isinstance(event, agents.Notice)]
    return [notice.source for notice in notices if notice.level == "warning" and "replaced" in notice.message]


async def expect_utf8(home: Home, session: agents.Session) -> None:
    """Every stored byte of the session is UTF-8, and every body one line of JSON."""
    keys, broker = home.broker.keys, home.broker
    log = await broker.client.xrange(keys.of("log", session.id))
    blobs = await broker.client.hvals(keys.of("blobs", session.id))  # type: ignore[misc] # redis-py's sync and async types are one
    for body in [*(fields[b"e"] for _, fields in log), *(b"{" + blob for blob in blobs)]:
        assert "\n" not in body.decode("utf-8")
        loads(body)


def named(entry: agents.HistoryEntry, text: str) -> list[str]:
    """The flag that is due for an entry which held this text."""
    return [f"entry:{entry.id}"] if text != shown(text) else []


# What the model writes.


@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_what_the_model_writes(home: Home, name: str, text: str) -> None:  # noqa: ARG001 - the case's name
    at = len(text) // 2
    agent = await home.agent(StepModel([ModelReasoning(text), ModelText(text[:at]), ModelText(text[at:])]))
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    seen = [event async for event in turn.iter_events()]

    record = done(await turn.result())

    (message,) = [entry for entry in entries_of(seen, agents.MessageEntry) if entry.role == "assistant"]
    (reasoning,) = entries_of(seen, agents.UnknownEntry)
    assert record.text == message.text == reasoning.raw["text"] == shown(text)
    deltas = [event.text for event in seen if isinstance(event, agents.TextDelta)]
    assert all(is_clean(delta) for delta in deltas)
    assert "".join(deltas) in shown(text)
    assert await flagged(session) == [*named(reasoning, text), *named(message, text)]
    await expect_utf8(home, session)


async def test_halves_that_meet_are_a_character_wherever_the_stream_is_cut(home: Home) -> None:
    agent = await home.agent(StepModel([ModelText("a\ud83d"), ModelText("\ude00b\ud83d"), ModelText("\ude00")]))
    session = await agent.start_session()

    record = done(await (started(await session.start_turn("hi"))).result())

    assert record.text == "a😀b😀"
    assert await flagged(session) == []


async def test_a_reply_whose_reasoning_was_replaced_is_one_reply(home: Home) -> None:
    """The next request holds one assistant message, not two."""
    model = StepModel([ModelReasoning("\ud83d"), "hello"], ["again"])
    session = await (await home.agent(model)).start_session()
    done(await (started(await session.start_turn("hi"))).result())
    done(await (started(await session.start_turn("more"))).result())

    kinds = [type(message).__name__ for message in model.requests[-1].messages]
    assert kinds == ["UserMessage", "AssistantMessage", "UserMessage"]


@given(st.lists(st.text(st.characters(codec=None, categories=None) | st.sampled_from("\ud83d\ude00")), max_size=6))
@settings(max_examples=200, deadline=None)
def test_a_stream_is_cleaned_as_its_whole(pieces: list[str]) -> None:
    clean = CleanText()
    joined = "".join([*map(clean.feed, pieces), clean.end()])

    assert joined == clean_text("".join(pieces))
    assert is_clean(joined)
    with watch_replaced() as replaced:
        dumps("".join(pieces))
        clean_text("".join(pieces))
    assert clean.replaced is bool(replaced)


# Calls: their names, ids and arguments.


@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_what_the_model_calls(home: Home, name: str, text: str) -> None:  # noqa: ARG001 - the case's name
    got: list[dict[str, Any]] = []

    @agents.tool
    async def keep(given: dict[str, Any]) -> str:
        """Keep it."""
        got.append(given)
        return "kept"

    calls = [
        ModelToolCall(f"id{text[:5]}", "client.keep", {"given": {text: [text]}}),
        ModelToolCall(f"id{text[:5]}", text, {}),
        ModelToolCall("broken", "client.keep", text, malformed=True),
    ]
    session = await (await home.agent(StepModel(calls), tools=[keep])).start_session()

    record = done(await (started(await session.start_turn("hi"))).result())

    first, second, third = entries_of(await stored(session), agents.ToolCallEntry)
    assert got == [{shown(text): [shown(text)]}]
    assert (first.arguments, second.name, third.arguments) == ({"given": got[0]}, shown(text), shown(text))
    assert [made.name for made in record.tool_calls] == ["client.keep", shown(text), "client.keep"]
    assert len({first.tool_call_id, second.tool_call_id, third.tool_call_id}) == 3
    assert all(entry.tool_call_id.isprintable() for entry in (first, second, third))
    results = {entry.tool_call_id: entry for entry in entries_of(await stored(session), agents.ToolResultEntry)}
    assert [results[entry.tool_call_id].is_error for entry in (first, second, third)] == [False, True, True]
    assert await flagged(session) == [*named(first, text), *named(second, text), *named(third, text)]
    await expect_utf8(home, session)


# What tools return.

ANYTHING = st.recursive(
    st.none() | st.text(st.characters(codec=None, categories=None) | st.sampled_from("\ud83d\ude00\x00\u2028\x85")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(ANYTHING)
@settings(max_examples=300, deadline=None)
def test_whatever_a_tool_returns_is_stored_as_utf8_and_flagged(value: Any) -> None:
    with watch_replaced() as expected:
        cleaned = clean_json(value)
    with watch_replaced() as replaced:
        body = tail(stored_result("e", "c", "client.t", to_result(value)))

    stored_form = loads(b"{" + body.decode("utf-8").encode())
    if isinstance(value, str):
        assert stored_form["content"] == [{"type": "text", "text": cleaned}]
    elif value is not None:
        assert stored_form["structuredContent"] == cleaned == loads(stored_form["content"][0]["text"])
    assert b"\n" not in body
    assert bool(replaced) is bool(expected)


@pytest.mark.parametrize("kind", ["text", "json", "result", "error", "raised"])
@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_what_a_tool_returns(home: Home, name: str, text: str, kind: str) -> None:  # noqa: ARG001 - the case's name
    @agents.tool
    async def say() -> Any:
        """Say it."""
        match kind:
            case "text":
                return text
            case "json":
                return {"files": [text], text: 1}
            case "result":
                block = agents.TextContentBlock(text=text)
                return agents.ToolResult([block], structured_content=[text], meta={"m": text})
            case "error":
                raise agents.ToolError(text)
            case _:
                raise RuntimeError(text)

    session = await (await home.agent(StepModel([call("say")]), tools=[say])).start_session()
    done(await (started(await session.start_turn("hi"))).result())

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    said = content_text(result.content)
    match kind:
        case "json":
            assert result.structured_content == loads(said) == {"files": [shown(text)], shown(text): 1}
        case "result":
            assert (said, result.structured_content, result.meta) == (shown(text), [shown(text)], {"m": shown(text)})
        case "raised":
            assert said == f"RuntimeError: {shown(text)}"
        case _:
            assert said == shown(text)
    assert await flagged(session) == named(result, text)
    await expect_utf8(home, session)


# What people answer.


@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_what_people_answer(home: Home, name: str, text: str) -> None:  # noqa: ARG001 - the case's name
    @agents.client_tool
    def ask(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
        """Ask the client."""

    @agents.tool
    async def danger() -> str:
        """Be refused."""
        return "ran"

    policy = agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.danger"], decision="ask")])
    agent = await home.agent(
        StepModel([call("danger")], [call("ask", of="x")]), tools=[ask, danger], permission_policy=policy
    )
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    denial = await opened(turn)
    reason = agents.DenyApproval(text)
    assert await turn.answer(denial.id, reason) == agents.Answered(agents.DenyApproval(shown(text)), session.id)
    question = await opened(turn)
    await turn.answer(question.id, text)
    done(await turn.result())

    denied, answered = entries_of(await stored(session), agents.ToolResultEntry)
    assert content_text(denied.content) == f"client.danger was not run: a person denied it: {shown(text)}."
    assert content_text(answered.content) == shown(text)
    assert await flagged(session) == [*named(denied, text), *named(answered, text)]
    await expect_utf8(home, session)
