"""A session that starts with a history: what its readers get, what its model gets, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents_for_tests import (
    ENDED,
    REPLIED,
    STARTED,
    Home,
    StepModel,
    add,
    call,
    done,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    lasting,
    spelled,
    started,
    stored,
    words,
)

import api_shim as agents
from broker.protocol.content import content_text
from workers.models import AssistantMessage, RequestedCall, SystemMessage, ToolMessage, UserMessage

IMPORTED = "+system | =system | +user | =user | +reasoning | =reasoning | +call | =call | +result | =result"
IMPORTED += " | +checkpoint | =checkpoint | +assistant | =assistant"


def text(said: str, **more: Any) -> list[agents.TextContentBlock]:
    """Content of one text block."""
    return [agents.TextContentBlock(text=said, **more)]


def said(role: Any, words: str, **more: Any) -> agents.HistoryImportMessage:
    """A message of a history."""
    return agents.HistoryImportMessage(role=role, content=[*text(words, **more)])


HISTORY: list[Any] = [
    said("system", "Answer in French."),
    said("user", "How is the weather?"),
    agents.HistoryImportReasoning(text="I should look"),
    agents.HistoryImportToolCall(tool_call_id="c1", name="client.look", arguments={"at": "Paris"}),
    agents.HistoryImportToolResult(tool_call_id="c1", result={"sun": True}, annotations={"took": 3}),
    agents.HistoryImportSnapshot(task_name="weather", snapshot_type="end", value={"secret": 1}),
    said("assistant", "Sunny."),
]


async def test_a_session_begins_with_its_history_as_entries_of_no_turn(home: Home) -> None:
    model = StepModel(["Bien sûr."])
    agent = await home.agent(model)
    session = await agent.start_session(history=HISTORY)

    before = await stored(session)
    assert words(before) == IMPORTED
    assert {event.turn_id for event in before} == {None}
    entries = [entry async for entry in session.history()]
    assert {entry.turn_id for entry in entries} == {None}
    system, _, reasoning, made, result, checkpoint, _ = entries
    match system, reasoning, made, result, checkpoint:
        case (
            agents.MessageEntry("system", (agents.TextContentBlock(text="Answer in French."),)),
            agents.UnknownEntry("reasoning", {"type": "reasoning", "text": "I should look"}),
            agents.ToolCallEntry("client.look", {"at": "Paris"}, "c1"),
            agents.ToolResultEntry(None, _, {"sun": True}, False, "c1", {"took": 3}),
            agents.UnknownEntry("checkpoint", {"message": "weather:end", "details": {"secret": 1}}),
        ):
            pass
        case other:
            raise AssertionError(other)
    assert [entry async for entry in session.history(after=before[5].id)] == entries[3:]
    state = done(await session.run("Really?"))
    log = await stored(session)
    assert words(log) == spelled(IMPORTED, STARTED, REPLIED, ENDED)
    await session.cancel()
    for at, event in enumerate(log):
        assert lasting([later async for later in session.iter_events(after=event.id)])[:-1] == lasting(log[at + 1 :])
    assert state.tool_calls == ()


async def test_the_first_turn_s_events_begin_with_the_history_and_a_wait_s_with_its_message(home: Home) -> None:
    agent = await home.agent(StepModel(["yes"]))
    session = await agent.start_session(history=HISTORY[:2])
    heard: list[agents.Event] = []
    turn = started(await session.start_turn("hi"))
    done(await turn.result(on_event=heard.append))

    read = [event async for event in turn.iter_events()]

    imported = "+system | =system | +user | =user"
    assert words(read) == spelled(imported, STARTED, REPLIED, "turn terminated | ended Completed")
    assert words(heard) == spelled(STARTED, REPLIED, "turn terminated | ended Completed")
    assert done(await turn.get()).tool_calls == ()


async def test_the_model_gets_what_was_said_and_done_and_nothing_else(home: Home) -> None:
    model = StepModel([], ["Sunny, really."])
    agent = await home.agent(model)
    session = await agent.start_session(history=HISTORY)
    done(await session.run("Really?"))

    assert model.requests[-1].messages == (
        SystemMessage((agents.TextContentBlock(text="Answer in French."),)),
        UserMessage((agents.TextContentBlock(text="How is the weather?"),)),
        AssistantMessage("", (RequestedCall("c1", "client.look", {"at": "Paris"}),)),
        ToolMessage("c1", "client.look", (agents.TextContentBlock(text='{"sun":true}'),), is_error=False),
        AssistantMessage("Sunny."),
        UserMessage((agents.TextContentBlock(text="Really?"),)),
    )


async def test_blocks_for_others_meta_and_messages_of_nothing_else_never_reach_the_model(home: Home) -> None:
    model = StepModel()
    agent = await home.agent(model)
    hidden = {"annotations": agents.ContentAnnotations(audience=["user"])}
    history: list[Any] = [
        agents.HistoryImportMessage(role="user", content=[*text("one", meta={"k": 1}), *text("not this", **hidden)]),
        said("system", "nor this", **hidden),
        agents.HistoryImportMessage(role="assistant", content=[*text("two"), *text("nor that", **hidden)]),
        agents.HistoryImportMessage(role="user"),
        said("assistant", "nor these", **hidden),
    ]
    session = await agent.start_session(history=history)
    done(await session.run("three"))

    user, assistant, last = model.requests[-1].messages
    assert user == UserMessage((agents.TextContentBlock(text="one"),))
    assert assistant == AssistantMessage("two")
    assert isinstance(last, UserMessage)
    kept = [entry async for entry in session.history(limit=5)]
    assert [len(entry.content) for entry in kept if isinstance(entry, agents.MessageEntry)] == [2, 1, 2, 0, 1]


async def test_calls_of_a_history_are_never_run_and_each_has_its_result(home: Home) -> None:
    """Calls without a result, results without a call or before it, ids that repeat: the model gets pairs."""
    model = StepModel([], [], [], [call("add", a=1, b=2)])
    agent = await home.agent(model, tools=[add])
    history: list[Any] = [
        {"type": "tool_result", "tool_call_id": "lone", "result": "of nothing"},
        {"type": "tool_call", "tool_call_id": "0", "name": "client.add", "arguments": {"a": 1, "b": 1}},
        {"type": "message", "role": "user", "content": [{"type": "text", "text": "hm"}]},
        {"type": "tool_result", "tool_call_id": "0", "result": "first"},
        {"type": "tool_call", "tool_call_id": "0", "name": "client.add"},
        {"type": "tool_call", "tool_call_id": "x", "name": "client.add", "arguments": {}},
        {"type": "tool_result", "tool_call_id": "0", "result": "second"},
        {"type": "tool_call", "tool_call_id": "late", "name": "client.add", "arguments": {}},
    ]
    session = await agent.start_session(history=history)
    state = done(await session.run("go on"))

    assert [(made.name, made.arguments) for made in state.tool_calls] == [("client.add", {"a": 1, "b": 2})]
    told = model.requests[-1].messages
    results = [(content_text(each.content), each.is_error) for each in told if isinstance(each, ToolMessage)]
    cut = "client.add was not run: the turn was interrupted before it started."
    assert results == [("first", False), ("second", False), (cut, True), (cut, True), ("3", False)]
    assert told[1] == ToolMessage("0", "client.add", (agents.TextContentBlock(text="first"),), is_error=False)
    calls = [each.id for message in told if isinstance(message, AssistantMessage) for each in message.calls]
    assert len(set(calls)) == 5


async def test_the_same_key_and_history_give_the_same_session_and_another_history_is_a_conflict(home: Home) -> None:
    agent = await home.agent(StepModel())
    session = await agent.start_session(history=HISTORY, idempotency_key="k")
    log = await stored(session)
    camel = {"type": "tool_call", "toolCallId": "c1", "name": "client.look", "arguments": {"at": "Paris"}}

    assert await agent.start_session(history=HISTORY, idempotency_key="k") == session
    assert await agent.start_session(history=[*HISTORY[:3], camel, *HISTORY[4:]], idempotency_key="k") == session
    assert await stored(session) == log
    for other in (HISTORY[:-1], None, [*HISTORY, said("user", "more")]):
        with pytest.raises(agents.SessionIdempotencyConflictError) as conflict:
            await agent.start_session(history=other, idempotency_key="k")
        assert conflict.value.idempotency_key == "k"
    assert await agent.start_session(idempotency_key="j") == await agent.start_session(history=[], idempotency_key="j")


async def test_of_clients_that_import_with_one_key_at_once_one_counts_whole(home: Home) -> None:
    agent = await home.agent(StepModel())
    long = [said("user", f"message {at}") for at in range(600)]

    sessions = await asyncio.gather(*(agent.start_session(history=long, idempotency_key="k") for _ in range(8)))

    assert len(set(sessions)) == 1
    told = [entry.text async for entry in sessions[0].history() if isinstance(entry, agents.MessageEntry)]
    assert told == [f"message {at}" for at in range(600)]


async def test_of_clients_that_import_different_histories_with_one_key_one_counts_and_the_others_are_told(
    home: Home,
) -> None:
    agent = await home.agent(StepModel())
    long = [[said("user", f"{client} {at}") for at in range(300)] for client in range(4)]

    async def opened(history: list[Any]) -> agents.Session | None:
        try:
            return await agent.start_session(history=history, idempotency_key="k")
        except agents.SessionIdempotencyConflictError:
            return None

    sessions = await asyncio.gather(*(opened(history) for history in long))

    (session,) = [each for each in sessions if each is not None]
    winner = sessions.index(session)
    told = [entry.text async for entry in session.history() if isinstance(entry, agents.MessageEntry)]
    assert told == [f"{winner} {at}" for at in range(300)]


async def test_a_long_history_and_large_entries_arrive_whole(home: Home) -> None:
    model = StepModel()
    agent = await home.agent(model)
    large = "0123456789" * 20_000
    history: list[Any] = [said("user" if at % 2 else "assistant", f"message {at}") for at in range(3000)]
    history[1500] = said("user", large)
    history[1501] = agents.HistoryImportToolCall(tool_call_id="c", name="client.add", arguments={"text": large})
    session = await agent.start_session(history=history)
    done(await session.run("hi"))

    messages = model.requests[-1].messages
    assert len(messages) == 3000 + 1 + 1  # the call's missing result, and the turn's message
    assert UserMessage((agents.TextContentBlock(text=large),)) in messages
    entries = [entry async for entry in session.history(limit=3000)]
    assert isinstance(made := entries[1501], agents.ToolCallEntry)
    assert made.arguments == {"text": large}
    assert isinstance(last := entries[2999], agents.MessageEntry)
    assert last.text == "message 2999"


async def test_an_entry_has_the_limit_of_a_message(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_MESSAGE_LIMIT", "100000")
    agent = await home.agent(StepModel())
    fits = said("user", "x" * 90_000)
    await agent.start_session(history=[fits] * 3)

    with pytest.raises(ValueError, match=r"^history\[1\]: 100,\d{3} bytes; an entry has at most 100,000"):
        await agent.start_session(history=[fits, said("user", "x" * 99_950)])


@pytest.mark.parametrize(
    ("history", "error", "said"),
    [
        ([said("user", "hi"), {"type": "message", "role": "boss"}], ValueError, r"history\[1\]: role must be"),
        (
            [{"type": "message", "role": "user", "content": [{"type": "text", "txt": "x"}]}],
            ValueError,
            r"history\[0\]\.content\[0\]\.txt: no such field",
        ),
        ([{"type": "tool_call", "tool_call_id": "", "name": "x"}], ValueError, r"history\[0\]\.tool_call_id must not"),
        ("hi", TypeError, "history must be a sequence"),
        (5, TypeError, "history must be a sequence"),
    ],
    ids=["role", "content", "empty id", "text", "number"],
)
async def test_a_history_that_is_refused_sends_nothing(
    home: Home, history: Any, error: type[Exception], said: str
) -> None:
    agent = await home.agent(StepModel())

    with pytest.raises(error, match=said):
        await agent.start_session(history=history)
    assert await home.broker.client.keys(f"{home.broker.settings.prefix}*:log:*") == []
    assert [info async for info in agents.list_sessions()] == []


async def test_an_agent_that_is_served_elsewhere_takes_a_history_too(home: Home) -> None:
    agent = await home.agent(StepModel([], [], ["oui"]))
    await agent.start_session()  # its first use serves it in this process
    loaded = agents.Agent.load_from(agent_name=agent.name)
    session = await loaded.start_session(history=HISTORY)

    assert done(await session.run("Really?")).output == "oui"
    assert (await session.info()).preview == "How is the weather?"
