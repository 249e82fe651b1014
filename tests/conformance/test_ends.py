"""How turns and sessions end: interrupt, cancel, failure; and that what they leave can be gone on from."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator

import pytest
from agents_for_tests import (
    Gate,
    Home,
    StepModel,
    add,
    ask_color,
    blocked,
    call,
    done,
    entries_of,
    expect_pairs,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    opened,
    seen,
    started,
    stored,
    words,
)
from eventually import eventually

import api_shim as agents
from broker.protocol.content import content_text
from workers.models import AssistantMessage, ModelReasoning, ToolMessage

STAGES = ["before the reply", "reasoning", "text", "tool", "approval", "client tool", "answered client tool", "all"]


def expect_well_formed(request: agents.ModelRequest) -> None:
    """What every provider asks of a history: each call of a reply is followed by its result, and no result stands alone."""
    waiting: list[str] = []
    for message in request.messages:
        if isinstance(message, ToolMessage):
            assert message.call_id == waiting.pop(0)
        else:
            assert waiting == []
            if isinstance(message, AssistantMessage):
                waiting = [asked.id for asked in message.calls]
    assert waiting == []


async def stopped_at(home: Home, stage: str) -> tuple[agents.Turn, StepModel, Gate]:
    """A turn that stands at one of the stages."""
    gate = Gate()

    @agents.tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "slept"

    steps: dict[str, list[object]] = {
        "before the reply": [gate],
        "reasoning": [ModelReasoning("hm"), gate],
        "text": ["Hel", gate],
        "tool": ["Now", call("slow")],
        "approval": ["May I?", call("add", a=1, b=2)],
        "client tool": [call("ask_color", of="sky")],
        "answered client tool": [call("ask_color", of="sky"), call("add", a=1, b=2)],
        "all": ["All", call("slow"), call("ask_color", of="sky"), call("add", a=1, b=2)],
    }
    model = StepModel(steps[stage], ["fine"])
    rules = [agents.PermissionRule(tools=["client.add"], decision="ask")]
    policy = agents.PermissionPolicy(rules=rules)
    agent = await home.agent(model, tools=[add, slow, ask_color], permission_policy=policy)
    turn = started(await (await agent.start_session()).start_turn("hi"))
    if stage in ("before the reply", "reasoning", "text", "tool", "all"):
        await gate.reached.wait()
    if stage in ("approval", "client tool", "answered client tool", "all"):
        await seen(turn._session, "CallbackOpened")
    if stage in ("reasoning", "text"):
        await seen(turn._session, {"reasoning": "+reasoning", "text": "+assistant"}[stage])
    if stage == "answered client tool":
        callback = await opened(turn)
        await turn.answer(callback.id, "blue")
    return turn, model, gate


# Interrupt.


@pytest.mark.parametrize("stage", STAGES)
async def test_an_interrupted_turn_ends_at_once_and_the_session_goes_on(home: Home, stage: str) -> None:
    turn, model, gate = await stopped_at(home, stage)
    session = turn._session
    told = await turn.interrupt()
    state = await turn.get()

    assert told is turn
    assert isinstance(state, agents.Interrupted)
    assert state.cause == "interrupted"
    log = await stored(session)
    expect_pairs(log)
    assert words(log[-3:]) == "turn terminated | ended Interrupted | session waiting"
    assert await turn.interrupt() == agents.TurnConflict(None)

    gate.open.set()
    done(await session.run("go on"))
    expect_well_formed(model.requests[-1])
    assert model.user_texts() == ["hi", "go on"]


async def test_what_was_written_until_the_interrupt_stays(home: Home) -> None:
    turn, model, gate = await stopped_at(home, "text")
    await turn.interrupt()
    state = await turn.get()

    assert isinstance(state, agents.Interrupted)
    assert state.text == "Hel"
    assert entries_of(await stored(turn._session), agents.MessageEntry)[-1].text == "Hel"
    gate.open.set()
    await turn._session.run("go on")
    replies = [message.text for message in model.requests[-1].messages if isinstance(message, AssistantMessage)]
    assert replies == ["Hel"]


async def test_interrupt_keeps_the_handle_s_own_started(home: Home) -> None:
    turn, _, _ = await stopped_at(home, "approval")
    handle = turn._session.turn(turn.id)
    told = await handle.interrupt()

    assert isinstance(told, agents.Turn)
    assert told.started is None
    assert turn.started is True


async def test_a_queued_turn_can_be_interrupted(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker's worker takes a turn up at once")
    agent = agents.Agent(model=StepModel(), name="late")
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    assert await turn.interrupt() == turn
    await home.serve(agent)

    assert isinstance(await turn.result(), agents.Interrupted)
    done(await session.run("next"))


async def test_calls_that_were_cut_tell_what_is_known_of_them(home: Home) -> None:
    turn, _, gate = await stopped_at(home, "all")
    await turn.interrupt()
    results = {entry.name: entry for entry in entries_of(await stored(turn._session), agents.ToolResultEntry)}

    assert all(entry.is_error for entry in results.values())
    assert "while it ran" in content_text(results["client.slow"].content)
    assert "before it started" in content_text(results["client.add"].content)
    gate.open.set()


async def test_a_client_s_answer_that_came_before_the_interrupt_is_kept(home: Home) -> None:
    turn, _, _ = await stopped_at(home, "answered client tool")
    await turn.interrupt()
    results = {entry.name: entry for entry in entries_of(await stored(turn._session), agents.ToolResultEntry)}

    assert content_text(results["client.ask_color"].content) == "blue"
    assert not results["client.ask_color"].is_error


async def test_a_running_tool_is_cancelled_and_a_stubborn_one_writes_nothing(home: Home) -> None:
    told: list[str] = []
    ready, go = threading.Event(), threading.Event()
    waiting = Gate()

    @agents.tool
    async def polite() -> str:
        """Wait, until cancelled."""
        try:
            await waiting.wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        return ""

    @agents.tool
    def stubborn() -> str:
        """Go on in its thread, whatever happens."""
        ready.set()
        go.wait(5)
        told.append("over")
        return "too late"

    agent = await home.agent(StepModel([call("polite"), call("stubborn")]), tools=[polite, stubborn])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await waiting.reached.wait()
    await eventually(ready.is_set, "the tool in its thread runs")
    await turn.interrupt()
    await eventually(lambda: told == ["cancelled"], "the tool was cancelled")
    ended = await stored(session)
    go.set()
    await eventually(lambda: told == ["cancelled", "over"], "the thread is over")

    assert isinstance(await turn.get(), agents.Interrupted)
    done(await session.run("next"))
    assert (await stored(session))[: len(ended)] == ended
    assert "too late" not in repr(await stored(session))


# Cancel.


@pytest.mark.parametrize("stage", STAGES)
async def test_cancel_ends_the_session_and_its_turn(home: Home, stage: str) -> None:
    turn, _, gate = await stopped_at(home, stage)
    session = turn._session
    reading = asyncio.create_task(_read(session))
    await session.cancel()
    state = await turn.result()

    assert isinstance(state, agents.Interrupted)
    assert state.cause == "cancelled"
    log = await stored(session)
    expect_pairs(log)
    assert words(log[-3:]) == "turn terminated | ended Interrupted | session terminated"
    assert words(await reading) == words(log)
    assert (await session.info()).status == "terminated"
    assert await turn.get() == state
    with pytest.raises(agents.SessionTerminatedError):
        await session.start_turn("more")
    assert await turn.interrupt() == agents.TurnConflict(None)
    gate.open.set()


async def _read(session: agents.Session) -> list[agents.Event]:
    return [event async for event in session.iter_events()]


async def test_a_session_that_has_ended_stays_as_it_is(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    state = done(await session.run("hi"))
    await session.cancel()
    log = await stored(session)
    await session.cancel()

    assert await stored(session) == log
    assert words(log[-1:]) == "session terminated"
    assert await session.turn(state.turn_id).result() == state, "a turn that was done stays done"
    assert [entry.id async for entry in session.history()] == [
        event.entry.id for event in log if isinstance(event, agents.EntryCompleted)
    ]


# Failure.


async def test_after_a_failed_turn_the_next_one_gets_a_history_that_is_whole(home: Home) -> None:
    model = StepModel([call("add", a=1, b=2)], ["Hel", agents.ModelError("gone")], ["fine"])
    session = await (await home.agent(model, tools=[add])).start_session()
    assert isinstance(await session.run("hi"), agents.Failed)
    done(await session.run("again"))

    expect_well_formed(model.requests[-1])
    assert model.user_texts() == ["hi", "again"]


async def test_a_model_that_raises_anything_else_fails_the_turn_without_telling_its_words(home: Home) -> None:
    class Broken:
        async def stream(self, request: agents.ModelRequest) -> AsyncIterator[str]:
            if request.messages:
                raise RuntimeError("secret of the model")
            yield ""

    session = await (await home.agent(Broken())).start_session()
    state = await session.run("hi")

    assert isinstance(state, agents.Failed)
    assert state.error.code == "internal_error"
    assert "secret" not in state.error.message
    expect_pairs(await stored(session))


# Tools that fail are the model's to read.


@agents.tool
async def fails(how: str) -> str:
    """Fail in some way."""
    match how:
        case "said":
            raise agents.ToolError("out of stock")
        case "raised":
            raise KeyError("shelf")
        case "slow":
            await asyncio.Event().wait()
    return how


@agents.tool(timeout=0.05)
async def hurried() -> None:
    """Never end."""
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (call("fails", how="said"), "out of stock"),
        (call("fails", how="raised"), "KeyError"),
        (call("fails", when="now"), "how"),
        (call("fails", how=7), "how"),
        (call("hurried"), "0.05 s"),
        (call("unknown"), "There is no tool"),
    ],
)
async def test_a_tool_call_that_fails_is_an_error_the_model_reads_and_the_turn_goes_on(
    home: Home, asked: agents.ScriptedCall, said: str
) -> None:
    model = StepModel([asked])
    session = await (await home.agent(model, tools=[fails, hurried])).start_session()
    done(await session.run("hi"))

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.is_error
    assert said in content_text(result.content)
    message = model.requests[1].messages[-1]
    assert isinstance(message, ToolMessage)
    assert message.is_error
    assert message.content == result.content


async def test_synchronous_tools_run_in_threads_beside_each_other(home: Home) -> None:
    meet = threading.Barrier(2)
    threads: set[int] = set()

    @agents.tool
    def meeting(who: str) -> str:
        """Meet the other call."""
        threads.add(threading.get_ident())
        meet.wait(5)
        return who

    model = StepModel([call("meeting", who="a"), call("meeting", who="b")])
    session = await (await home.agent(model, tools=[meeting])).start_session()
    done(await session.run("hi"))

    assert len(threads - {threading.get_ident()}) == 2
    results = entries_of(await stored(session), agents.ToolResultEntry)
    assert sorted(content_text(entry.content) for entry in results) == ["a", "b"]


async def test_a_tool_call_id_that_repeats_is_replaced(home: Home) -> None:
    twice = agents.ScriptedCall("client.add", {"a": 1, "b": 2}, id="same")
    model = StepModel([twice, twice], [twice])
    session = await (await home.agent(model, tools=[add])).start_session()
    done(await session.run("hi"))

    log = await stored(session)
    ids = [entry.tool_call_id for entry in entries_of(log, agents.ToolCallEntry)]
    assert len(set(ids)) == 3
    assert sorted(ids) == sorted(entry.tool_call_id for entry in entries_of(log, agents.ToolResultEntry))
    expect_well_formed(model.requests[-1])


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_a_callback_that_closes_unanswered_is_resolved(home: Home, how: str) -> None:
    session = await (await home.asking([call("add", a=1, b=2), call("add", a=3, b=4)])).start_session()
    turn = started(await session.start_turn("hi"))
    asked = blocked(await turn.result()).callbacks
    await (turn.interrupt() if how == "interrupt" else session.cancel())
    log = await stored(session)

    resolved = [event for event in log if isinstance(event, agents.CallbackResolved)]
    assert {event.callback_id for event in resolved} == {callback.id for callback in asked}
    assert len(resolved) == len(asked) == 2
    assert {event.turn_id for event in resolved} == {turn.id}
    appended = {event.id.rpartition("-")[2] for event in (*resolved, *log[-3:])}
    assert len(appended) == 1
    for callback in asked:
        assert await turn.answer(callback.id, agents.AllowApproval()) == agents.AlreadySettled()


def test_a_session_of_this_process_ends_with_its_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNSTREAM_REDIS_URL", raising=False)
    agent = agents.Agent(model=StepModel(["ok"], [call("add", a=1, b=2)]), tools=[add], permission_mode="ask")

    async def first() -> str:
        session = await agent.start_session()
        done(await session.run("hi"))
        blocked(await session.run("more"))
        return session.id

    async def second(session_id: str) -> None:
        with pytest.raises(agents.SessionNotFoundError):
            await agents.session(session_id).info()
        with pytest.raises(agents.SessionNotFoundError):
            await anext(agents.session(session_id).iter_events())

    asyncio.run(second(asyncio.run(first())))


def test_an_event_loop_that_has_ended_is_forgotten_with_all_its_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have one for each request."""
    monkeypatch.delenv("TURNSTREAM_REDIS_URL", raising=False)
    agent = agents.Agent(model=StepModel())

    async def request() -> weakref.ref[asyncio.AbstractEventLoop]:
        done(await agent.run("hi"))
        return weakref.ref(asyncio.get_running_loop())

    *before, last = [asyncio.run(request()) for _ in range(4)]

    gc.collect()
    assert [loop() for loop in before] == [None] * 3
    asyncio.run(request())
    gc.collect()
    assert last() is None
