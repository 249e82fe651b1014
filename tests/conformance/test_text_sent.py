"""Text from anywhere (F43) that comes in by a send, a title, session inputs, a starting history, a hook or a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agents_for_tests import (
    ENDED,
    STARTED,
    Home,
    StepModel,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    spelled,
    started,
    stored,
    words,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_text import TEXTS, expect_utf8, flagged, named, shown

import api_shim as agents
from api_shim.sends import build_message
from broker.contents import Note, contents
from broker.protocol.values import clean_text, loads, watch_replaced
from broker.settings import Settings
from broker.starting_history import check_history

ANY_TEXT = st.text(
    st.characters(codec=None, categories=None) | st.sampled_from("\ud83d\ude00\x00\u2028\x85"), min_size=1
)
FLAG = "Notice"


def flag(text: str) -> list[str]:
    """The flag that is due for what a session was opened with, or its title."""
    return ["session"] if text != shown(text) else []


@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_what_people_send(home: Home, name: str, text: str) -> None:  # noqa: ARG001 - the case's name
    agent = await home.agent(StepModel(["ok"]))
    session = await agent.start_session()
    context = {"type": "context", "text": text}

    done(await (started(await session.start_turn([{"type": "text", "text": text}, context]))).result())

    user, noted, _ = entries_of(await stored(session), agents.MessageEntry)
    assert [user.text, noted.text] == [shown(text), shown(text)]
    assert await flagged(session) == [*named(user, text), *named(noted, text)]
    await expect_utf8(home, session)


async def test_a_flag_stands_after_what_it_is_about_and_comes_once(home: Home) -> None:
    agent = await home.agent(StepModel(["ok"]))
    session = await agent.start_session()
    content = [{"type": "text", "text": "\ud83d"}, {"type": "context", "text": "x"}]
    turn = started(await session.start_turn(content, idempotency_key="k"))
    await turn.result()
    assert await session.start_turn(content, idempotency_key="k") == turn

    said = words(await stored(session))
    assert said.startswith(spelled(STARTED, "+context | =context", FLAG, "+assistant"))
    assert said.endswith(ENDED)
    assert said.count(FLAG) == 1


async def test_what_joins_a_turn_is_flagged_too(home: Home) -> None:
    agent = await home.asking()
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await turn.result()

    assert await turn.steer("a\ud83d") == turn
    assert await session.send_message("\ude00b") == turn

    _, steered, joined = entries_of(await stored(session), agents.MessageEntry)
    assert await flagged(session) == [f"entry:{steered.id}", f"entry:{joined.id}"]
    await session.cancel()


@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_titles(home: Home, name: str, text: str) -> None:  # noqa: ARG001 - the case's name
    """Opening a session has no event, so what is to be said of its title is said when its first turn starts."""
    agent = await home.agent(StepModel(["ok"], ["ok"]))
    session = await agent.start_session(title=text)
    assert await stored(session) == []
    assert (await session.info()).title == shown(text)

    await session.run("hi")
    await session.run("hi")
    assert await flagged(session) == flag(text)
    await session.rename(text + "!")

    assert (await session.info()).title == shown(text + "!")
    assert await flagged(session) == flag(text) * 2
    assert words((await stored(session))[-1 - len(flag(text)) :]) == spelled(
        "session waiting", *[FLAG] * len(flag(text))
    )
    await expect_utf8(home, session)


@pytest.mark.parametrize("how", ["inputs", "customization"])
@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_what_a_session_is_opened_with(home: Home, name: str, text: str, how: str) -> None:  # noqa: ARG001 - the case's name
    model = StepModel(["ok"])
    options: dict[str, Any] = {"session_inputs": {"k": {"v": [text]}}}
    if how == "customization":
        options = {"agent": {"additional_instructions": text}}
    session = await (await home.agent(model)).start_session(**options)

    done(await session.run("hi"))

    assert await flagged(session) == flag(text)
    if how == "customization":
        assert model.requests[0].instructions == shown(text)
    await expect_utf8(home, session)


@pytest.mark.parametrize(("name", "text"), TEXTS)
async def test_a_starting_history(home: Home, name: str, text: str) -> None:  # noqa: ARG001 - the case's name
    history: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "text", "text": text}]},
        {"type": "reasoning", "text": text},
        {"type": "tool_call", "tool_call_id": "t1", "name": text, "arguments": {text: text}},
        {"type": "tool_result", "tool_call_id": "t1", "name": text, "result": text, "annotations": {"k": text}},
        {"type": "snapshot", "task_name": text, "snapshot_type": "s", "value": [text]},
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "clean"}]},
    ]
    session = await (await home.agent(StepModel([], ["ok"]))).start_session(history=history)

    entries = [entry async for entry in session.history()]
    assert len(entries) == 6
    assert await flagged(session) == [flag for entry in entries[:5] for flag in named(entry, text)]
    done(await session.run("hi"))
    await expect_utf8(home, session)


@pytest.mark.parametrize("say", [agents.skip, agents.reject, agents.retry, agents.request_approval])
@pytest.mark.parametrize("text", ["a\ud83d\u2028", "a\u2028b\x00"], ids=["half", "whole"])
async def test_what_hooks_give_as_a_reason(home: Home, text: str, say: Callable[[str], Any]) -> None:
    class Says(agents.Hook):
        async def pre_llm_call(self, _ctx: Any) -> Any:
            return say(text) if say is agents.skip else None

        async def post_llm_call(self, _ctx: Any, reply: Any) -> Any:
            if say is agents.retry:
                return None if "better" in reply.text else say(text)
            return say(text) if say is agents.reject else None

        async def pre_tool_call(self, _ctx: Any, _call: Any) -> Any:
            return say(text) if say is agents.request_approval else None

    @agents.tool
    async def noop() -> None:
        """Do nothing."""

    model = StepModel([["worse", call("noop")], ["better", call("noop")]], ["better"])
    agent = await home.agent(model, tools=[noop], hooks=[Says()])
    session = await agent.start_session(on_approval=lambda _ctx, _request: agents.AllowApproval())

    done(await session.run("hi"))

    assert len(await flagged(session)) == (text != shown(text))
    await expect_utf8(home, session)


@pytest.mark.parametrize("text", ["a\ud83d\u2028", "a\u2028b\x00"], ids=["half", "whole"])
async def test_a_task_of_a_subagent(home: Home, text: str) -> None:
    helper = agents.Subagent(name="helper", description="helps", model=StepModel(["helped"]))
    spawn = agents.ScriptedCall("agents.spawn", {"agent": "helper", "task": text})
    session = await (await home.agent(StepModel([spawn]), subagents=[helper])).start_session()

    done(await session.run("hi"))

    (asked,) = entries_of(await stored(session), agents.ToolCallEntry)
    assert asked.arguments == {"agent": "helper", "task": shown(text)}
    assert await flagged(session) == named(asked, text)
    (child,) = await session.subagents()
    (task,) = entries_of(await stored(child), agents.UnknownEntry)
    assert task.raw["content"] == [{"type": "text", "text": shown(text)}]
    await expect_utf8(home, child)


def _stored_forms(values: Any) -> list[dict[str, Any]]:
    forms = []
    for value in contents(values):
        if isinstance(value, bytes):
            assert b"\n" not in value
            forms.append(loads(b"{" + value))
    return forms


def _unclean(text: str) -> bool:
    with watch_replaced() as replaced:
        clean_text(text)
    return bool(replaced)


@given(ANY_TEXT, ANY_TEXT)
@settings(max_examples=300, deadline=None)
def test_any_message_is_stored_as_utf8_and_flagged(said: str, aside: str) -> None:
    message = build_message([{"type": "text", "text": said}, {"type": "context", "text": aside}], Settings())

    user, noted, *notes = _stored_forms(message.tails)
    assert [content["entry"]["content"][0]["text"] for content in (user, noted)] == [
        clean_text(said),
        clean_text(aside),
    ]
    due = [form["entry"]["id"] for form, text in ((user, said), (noted, aside)) if _unclean(text)]
    assert [note["source"] for note in notes] == [f"entry:{entry_id}" for entry_id in due]


@given(st.lists(ANY_TEXT, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_any_starting_history_is_stored_as_utf8_and_flagged(texts: list[str]) -> None:
    items = [{"type": "message", "role": "user", "content": [{"type": "text", "text": text}]} for text in texts]
    starting = asyncio.run(check_history(items, 10**6))

    assert starting is not None
    forms = _stored_forms(starting.entries)
    assert sum(isinstance(each, Note) for each in starting.entries) == sum(map(_unclean, texts))
    said = [form["entry"]["content"][0]["text"] for form in forms if "entry" in form]
    assert said == [clean_text(text) for text in texts]
    for at, form in enumerate(forms):
        if form["type"] == "notice":
            assert form["source"] == f"entry:{forms[at - 1]['entry']['id']}"
