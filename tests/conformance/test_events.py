"""The events of a turn and their order ("Order of events" in the reference)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import FrozenInstanceError
from typing import cast

import pytest
from agents_for_tests import (
    ANSWERED,
    ASKED,
    ENDED,
    REPLIED,
    STARTED,
    Gate,
    Home,
    StepModel,
    add,
    ask_color,
    call,
    done,
    entries_of,
    expect_pairs,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    opened,
    seen,
    spelled,
    started,
    stored,
    words,
)
from eventually import eventually

import api_shim as agents
from workers.models import ModelReasoning

# Start, reply, end.


async def test_a_turn_starts_with_the_message_and_ends_with_the_record(home: Home) -> None:
    session = await (await home.agent(StepModel(["Hel", "lo"]))).start_session()
    state = await session.run("hi")
    log = await stored(session)

    assert words(log) == spelled(STARTED, REPLIED, ENDED)
    assert [event.state for event in log if isinstance(event, agents.TurnEnded)] == [state]
    expect_pairs(log)


async def test_context_messages_follow_the_start_each_added_and_completed(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.run([{"type": "context", "text": "it rains"}, {"type": "text", "text": "hi"}])
    log = await stored(session)

    assert words(log) == spelled(STARTED, "+context | =context", REPLIED, ENDED)
    (context,) = entries_of(log, agents.ContextMessage)
    assert (context.text, context.kind, context.source, context.role) == ("it rains", "input", None, "context")


async def test_the_model_gets_context_just_before_the_input_that_carried_it(home: Home) -> None:
    model = StepModel()
    session = await (await home.agent(model)).start_session()
    await session.run("first")
    await session.run([{"type": "text", "text": "hi"}, {"type": "context", "text": "it rains"}])

    assert [type(message).__name__ for message in model.requests[-1].messages] == [
        "UserMessage",
        "AssistantMessage",
        "ContextNote",
        "UserMessage",
    ]


async def test_reasoning_is_an_unknown_entry_beside_the_message(home: Home) -> None:
    model = StepModel([ModelReasoning("hm"), "Yes", ModelReasoning(", well"), "."])
    session = await (await home.agent(model)).start_session()
    await session.run("hi")
    log = await stored(session)

    added = "+reasoning | +assistant | TextDelta"
    assert words(log) == spelled(STARTED, added, "=reasoning | =assistant", ENDED)
    (reasoning,) = entries_of(log, agents.UnknownEntry)
    assert (reasoning.type, reasoning.raw["text"]) == ("reasoning", "hm, well")


async def test_a_reply_without_text_has_no_message(home: Home) -> None:
    session = await (await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add])).start_session()
    await session.run("hi")

    calls = "+call | =call | +result | =result"
    assert words(await stored(session)) == spelled(STARTED, calls, REPLIED, ENDED)


async def test_a_reply_ends_with_its_message_then_its_calls_then_its_questions(home: Home) -> None:
    model = StepModel([ModelReasoning("sum"), "Adding", call("add", a=1, b=2), call("ask_color", of="sky")])
    agent = await home.agent(
        model,
        tools=[add, ask_color],
        permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.add"], decision="ask")]),
    )
    session = await agent.start_session()
    await session.run("hi")
    log = await stored(session)

    end = "=reasoning | =assistant | +call | =call | +call | =call | CallbackOpened | CallbackOpened | turn blocked"
    assert words(log) == spelled(STARTED, "+reasoning | +assistant | TextDelta", end)
    appended = {event.id.rpartition("-")[2] for event in log[-9:]}
    assert len(appended) == 1, "one append has one time"
    await session.cancel()


async def test_a_tool_result_is_added_empty_when_the_tool_starts(home: Home) -> None:
    gate = Gate()

    @agents.tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "slept"

    session = await (await home.agent(StepModel([call("slow")]), tools=[slow])).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    added = (await stored(session))[-1]

    assert isinstance(added, agents.EntryAdded)
    assert isinstance(added.entry, agents.ToolResultEntry)
    assert (added.entry.content, added.entry.name, added.entry.is_error) == ((), "client.slow", False)
    gate.open.set()
    await turn.result()
    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.id == added.entry.id
    assert result.tool_call_id == added.entry.tool_call_id
    assert result.content == (agents.TextContentBlock(text="slept"),)


async def test_a_question_blocks_and_its_answer_lets_go(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    await turn.answer((await opened(turn)).id, agents.AllowApproval())
    await turn.result()

    assert words(await stored(session)) == spelled(STARTED, ASKED, ANSWERED, "+result | =result", REPLIED, ENDED)


async def test_a_denied_call_has_its_result_added_and_completed_together(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    await turn.answer((await opened(turn)).id, agents.DenyApproval("no"))
    await turn.result()
    log = await stored(session)

    assert words(log) == spelled(STARTED, ASKED, ANSWERED, "+result | =result", REPLIED, ENDED)
    added = next(e for e in log if isinstance(e, agents.EntryAdded) and isinstance(e.entry, agents.ToolResultEntry))
    (result,) = entries_of(log, agents.ToolResultEntry)
    assert added.entry == result
    assert result.is_error


async def test_a_client_tool_result_is_added_and_completed_together(home: Home) -> None:
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[ask_color])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    await turn.answer(callback.id, "blue")
    await turn.result()
    log = await stored(session)

    assert words(log) == spelled(STARTED, ASKED, ANSWERED, "+result | =result", REPLIED, ENDED)
    added = next(e for e in log if isinstance(e, agents.EntryAdded) and isinstance(e.entry, agents.ToolResultEntry))
    (result,) = entries_of(log, agents.ToolResultEntry)
    assert added.entry == result
    assert isinstance(callback, agents.OpenClientToolCall)
    assert result.tool_call_id == callback.call.tool_call_id


async def test_of_several_questions_the_first_blocks_and_the_last_answer_lets_go(home: Home) -> None:
    session = await (await home.asking([call("add", a=1, b=2), call("add", a=3, b=4)])).start_session()
    turn = started(await session.start_turn("hi"))
    blocked = await turn.result()
    assert isinstance(blocked, agents.Blocked)
    first, second = blocked.callbacks
    await turn.answer(first.id, agents.AllowApproval())
    still = await turn.get()
    await turn.answer(second.id, agents.AllowApproval())
    await turn.result()

    assert isinstance(still, agents.Blocked)
    assert [callback.id for callback in still.callbacks] == [second.id]
    updates = [word for word in words(await stored(session)).split(" | ") if word.startswith("turn ")]
    assert updates == ["turn blocked", "turn running", "turn terminated"]


# What holds for every event.


async def test_the_deltas_of_a_message_come_inside_it_and_join_to_its_text(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["Hel", gate, "lo ", "you"]))).start_session()
    # Deltas are live only: another reader sees to it that this process is told of the session before its turn starts.
    await session.rename("watched")
    watching = session.iter_events()
    await anext(watching)
    got: list[agents.Event] = []
    running = asyncio.create_task(session.run("hi", on_event=got.append))
    await eventually(lambda: words(got).endswith("TextDelta"), "the reader is live")
    gate.open.set()
    state = await running

    await cast("AsyncGenerator[agents.Event, None]", watching).aclose()
    assert words(got) == spelled(STARTED, REPLIED, "turn terminated | ended Completed")
    deltas = [event for event in got if isinstance(event, agents.TextDelta)]
    (message,) = [entry for entry in entries_of(got, agents.MessageEntry) if entry.role == "assistant"]
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == message.text == "Hello you" == done(state).text
    assert {delta.entry_id for delta in deltas} == {message.id}


async def test_the_first_delta_has_the_id_of_its_entry_and_every_other_event_its_own(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["Hel", gate, "lo"]))).start_session()
    got: list[agents.Event] = []
    running = asyncio.create_task(session.run("hi", on_event=got.append))
    await gate.reached.wait()
    gate.open.set()
    await running

    ids = [event.id for event in got]
    at = next(n for n, event in enumerate(got) if isinstance(event, agents.TextDelta))
    assert ids[at] == ids[at - 1]
    del ids[at]
    assert len(set(ids)) == len(ids)


async def test_every_event_names_its_session_and_turn_and_session_updates_none(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    await turn.answer((await opened(turn)).id, agents.AllowApproval())
    await turn.result()

    for event in await stored(session):
        assert event.session_id == session.id
        assert event.turn_id == (None if isinstance(event, agents.SessionUpdated) else turn.id)
        if isinstance(event, agents.EntryAdded | agents.EntryCompleted):
            assert event.entry.turn_id == turn.id


async def test_an_event_cannot_be_changed(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.run("hi")
    event = (await stored(session))[0]

    with pytest.raises(FrozenInstanceError):
        event.id = "other"  # type: ignore[misc] # that is the point


async def test_a_retried_model_call_writes_the_same_message_again(home: Home) -> None:
    failing = agents.ModelError("overloaded", retryable=True, retry_after=0)
    model = StepModel([["Hal", failing], ["Hello"]])
    session = await (await home.agent(model)).start_session()
    await session.run("hi")
    log = await stored(session)

    assert words(log) == spelled(STARTED, REPLIED, ENDED)
    message = entries_of(log, agents.MessageEntry)[-1]
    assert message.text == "Hello"
    expect_pairs(log)


async def test_a_message_that_a_retry_does_not_write_is_completed_empty(home: Home) -> None:
    failing = agents.ModelError("overloaded", retryable=True, retry_after=0)
    model = StepModel([["Hal", failing], [call("add", a=1, b=2)]])
    session = await (await home.agent(model, tools=[add])).start_session()
    await session.run("hi")
    log = await stored(session)

    calls = "+call | =call | +result | =result"
    assert words(log) == spelled(STARTED, REPLIED, calls, REPLIED, ENDED)
    assert [entry.content for entry in entries_of(log, agents.MessageEntry)][1] == ()
    expect_pairs(log)


async def test_a_start_that_no_worker_serves_says_so_in_the_log(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker's worker serves whatever is started here")
    session = await agents.Agent(model="scripted:echo", name="unserved").start_session()
    turn = started(await session.start_turn("hi"))
    notice = (await stored(session))[-1]

    assert isinstance(notice, agents.Notice)
    assert (notice.level, notice.source, notice.turn_id) == ("warning", "agent:unserved", turn.id)
    assert isinstance(await turn.get(), agents.Running)
    await session.cancel()


# Every entry added is completed once, whatever happens.

Cut = Callable[[agents.Session, agents.Turn], Awaitable[object]]


async def interrupt(_session: agents.Session, turn: agents.Turn) -> object:
    return await turn.interrupt()


async def cancel(session: agents.Session, _turn: agents.Turn) -> object:
    await session.cancel()
    return None


@pytest.mark.parametrize("cut", [interrupt, cancel])
@pytest.mark.parametrize("stage", ["before the reply", "reasoning", "text", "tool", "approval", "client tool", "both"])
async def test_a_turn_that_is_cut_leaves_every_entry_complete(home: Home, stage: str, cut: Cut) -> None:
    gate = Gate()

    @agents.tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return ""

    steps: dict[str, list[object]] = {
        "before the reply": [gate],
        "reasoning": [ModelReasoning("hm"), gate],
        "text": ["Hel", gate],
        "tool": ["Now", call("slow")],
        "approval": ["May I?", call("add", a=1, b=2), call("add", a=3, b=4)],
        "client tool": [call("ask_color", of="sky")],
        "both": [call("slow"), call("ask_color", of="sky"), call("add", a=1, b=2)],
    }
    rules = [agents.PermissionRule(tools=["client.add"], decision="ask")]
    agent = await home.agent(
        StepModel(steps[stage]),
        tools=[add, slow, ask_color],
        permission_policy=agents.PermissionPolicy(rules=rules),
    )
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    if stage not in ("approval", "client tool"):
        await gate.reached.wait()
    if stage in ("approval", "client tool", "both"):
        await seen(session, "CallbackOpened")
    if stage in ("reasoning", "text"):
        await seen(session, {"reasoning": "+reasoning", "text": "+assistant"}[stage])
    await cut(session, turn)
    state = await turn.result()
    log = await stored(session)

    assert isinstance(state, agents.Interrupted)
    expect_pairs(log)
    status = "waiting" if cut is interrupt else "terminated"
    assert words(log[-3:]) == f"turn terminated | ended Interrupted | session {status}"
    assert log.count(log[-2]) == 1
    gate.open.set()


async def test_a_turn_that_fails_leaves_every_entry_complete(home: Home) -> None:
    model = StepModel([ModelReasoning("hm"), "Hel", agents.ModelError("gone", code="quota")])
    session = await (await home.agent(model)).start_session()
    state = await session.run("hi")
    log = await stored(session)

    assert isinstance(state, agents.Failed)
    expect_pairs(log)
    assert words(log[-3:]) == "turn terminated | ended Failed | session waiting"
    assert entries_of(log, agents.MessageEntry)[-1].text == "Hel"


# More that holds for entries, updates and notices.


async def test_a_message_is_added_with_its_first_text(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["Hel", gate, "lo"]))).start_session()
    got: list[agents.Event] = []
    running = asyncio.create_task(session.run("hi", on_event=got.append))
    await gate.reached.wait()
    gate.open.set()
    await running

    at = next(n for n, event in enumerate(got) if isinstance(event, agents.TextDelta))
    added, first = got[at - 1], got[at]
    assert isinstance(added, agents.EntryAdded)
    assert isinstance(added.entry, agents.MessageEntry)
    assert isinstance(first, agents.TextDelta)
    assert (added.entry.text, first.text, first.entry_id) == ("Hel", "Hel", added.entry.id)
    assert entries_of(got, agents.MessageEntry)[-1].text == "Hello"


async def test_a_call_and_its_result_carry_one_id_and_one_full_name(home: Home) -> None:
    model = StepModel([call("add", a=1, b=2), call("add", a=3, b=4)])
    session = await (await home.agent(model, tools=[add])).start_session()
    state = done(await session.run("hi"))
    log = await stored(session)
    calls, results = entries_of(log, agents.ToolCallEntry), entries_of(log, agents.ToolResultEntry)

    assert sorted(entry.tool_call_id for entry in calls) == sorted(entry.tool_call_id for entry in results)
    assert {entry.name for entry in calls} == {entry.name for entry in results} == {"client.add"}
    assert [entry.arguments for entry in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    ids = [entry.id for entry in calls] + [entry.id for entry in results]
    assert len(set(ids)) == 4
    assert not set(ids) & {entry.tool_call_id for entry in calls}
    assert [each.name for each in state.tool_calls] == [entry.name for entry in calls]


async def test_a_new_title_and_an_archive_are_told_as_the_session_s_update(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    await session.rename("alerts")
    await turn.answer(callback.id, agents.AllowApproval())
    await turn.result()
    await session.archive()
    await session.archive(False)

    updates = [event for event in await stored(session) if isinstance(event, agents.SessionUpdated)]
    assert [(event.status, event.title, event.archived) for event in updates] == [
        ("running", None, False),
        ("running", "alerts", False),
        ("waiting", "alerts", False),
        ("waiting", "alerts", True),
        ("waiting", "alerts", False),
    ]


async def test_a_change_of_the_session_belongs_to_no_turn(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    live: list[agents.Event] = []

    async def follow() -> None:
        async for event in session.iter_events():
            live.append(event)  # noqa: PERF401 - as it comes

    following = asyncio.create_task(follow())
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    await session.rename("while it runs")
    await session.archive()
    gate.open.set()
    await turn.result()
    await session.rename("between turns")
    await session.cancel()
    await following

    for read in (live, await stored(session)):
        updates = [event for event in read if isinstance(event, agents.SessionUpdated)]
        assert len(updates) == 6
        assert {event.turn_id for event in updates} == {None}


async def test_a_notice_never_reaches_the_model(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker's worker serves whatever is started here")
    model = StepModel()
    agent = agents.Agent(model=model, name="late")
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await home.serve(agent)
    await turn.result()

    (notice,) = [event for event in await stored(session) if isinstance(event, agents.Notice)]
    assert model.requests
    assert notice.message not in repr(model.requests)


async def test_a_notice_reads_the_same_every_time(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker's worker serves whatever is started here")
    session = await agents.Agent(model="scripted:echo", name="late").start_session()

    async def first_notice(after: str | None = None) -> agents.Event:
        return await anext(
            event async for event in session.iter_events(after=after) if isinstance(event, agents.Notice)
        )

    following = asyncio.create_task(first_notice())
    turn = started(await session.start_turn("hi"))
    live = await following
    log = await stored(session)

    assert live == log[-1] == await first_notice() == await first_notice(log[-2].id)
    assert live.turn_id == turn.id
    await session.cancel()
