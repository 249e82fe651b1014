"""Handlers: functions of the client that answer while a wait is under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents_for_tests import (
    Gate,
    Home,
    StepModel,
    add,
    blocked,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    seen,
    started,
    stored,
    words,
)
from eventually import eventually

import api_shim as agents
from broker.protocol.content import content_text

ALLOW = agents.AllowApproval()


def color_stub() -> agents.ClientTool:
    """A stub that nothing is bound to yet."""

    @agents.client_tool
    def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
        """Ask the person for a color."""

    return ask_color


async def result_texts(session: agents.Session) -> list[str]:
    return [content_text(entry.content) for entry in entries_of(await stored(session), agents.ToolResultEntry)]


# Approvals.


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_approval_handler_answers_and_the_wait_goes_on(home: Home, kind: str) -> None:
    asked: list[tuple[Any, agents.ApprovalRequest]] = []

    def allow(ctx: agents.HandlerContext, request: agents.ApprovalRequest) -> agents.AllowApproval:
        asked.append((ctx, request))
        return ALLOW

    async def allow_async(ctx: agents.HandlerContext, request: agents.ApprovalRequest) -> agents.AllowApproval:
        await asyncio.sleep(0)
        return allow(ctx, request)

    agent = await home.asking([call("add", a=1, b=2), call("add", a=3, b=4)], [call("add", a=5, b=6)])
    session = await agent.start_session(on_approval=allow if kind == "sync" else allow_async)
    done(await session.run("hi"))

    assert [request.arguments for _, request in asked] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 5, "b": 6}]
    assert sorted(await result_texts(session)) == ["11", "3", "7"]
    assert {ctx.session_id for ctx, _ in asked} == {session.id}


async def test_a_denying_handler_tells_the_model_why(home: Home) -> None:
    agent = await home.asking()
    session = await agent.start_session(on_approval=lambda _ctx, _request: agents.DenyApproval("not today"))
    done(await session.run("hi"))

    (text,) = await result_texts(session)
    assert "not today" in text


async def test_the_event_comes_before_its_handler_runs(home: Home) -> None:
    order: list[str] = []

    def allow(_ctx: object, _request: object) -> agents.AllowApproval:
        order.append("handler")
        return ALLOW

    def show(event: agents.Event) -> None:
        if isinstance(event, agents.CallbackOpened | agents.CallbackResolved):
            order.append(type(event).__name__)

    session = await (await home.asking()).start_session(on_approval=allow)
    done(await session.run("hi", on_event=show))

    assert order == ["CallbackOpened", "handler", "CallbackResolved"]


async def test_events_are_handed_over_while_a_handler_thinks(home: Home) -> None:
    gate, waits = Gate(), Gate()

    @agents.tool
    async def slow() -> str:
        """Wait."""
        await waits.wait()
        return "slept"

    async def allow(_ctx: object, _request: object) -> agents.AllowApproval:
        await gate.wait()
        return ALLOW

    rules = [agents.PermissionRule(tools=["client.add"], decision="ask")]
    agent = await home.agent(
        StepModel([call("add", a=1, b=2), call("slow")]),
        tools=[add, slow],
        permission_policy=agents.PermissionPolicy(rules=rules),
    )
    session = await agent.start_session(on_approval=allow)
    got: list[agents.Event] = []
    running = asyncio.create_task(session.run("hi", on_event=got.append))
    await gate.reached.wait()
    await waits.reached.wait()
    waits.open.set()
    await eventually(lambda: "=result" in words(got), "the other tool's result is shown meanwhile")
    gate.open.set()

    done(await running)


async def test_handlers_run_only_inside_a_wait(home: Home) -> None:
    asked: list[object] = []

    def allow(_ctx: object, request: agents.ApprovalRequest) -> agents.AllowApproval:
        asked.append(request)
        return ALLOW

    session = await (await home.asking()).start_session(on_approval=allow)
    turn = started(await session.start_turn("hi"))
    await seen(session, "turn blocked")
    assert isinstance(await turn.get(), agents.Blocked)
    events = session.iter_events()
    assert await anext(events) == (await stored(session))[0]
    await events.aclose()  # type: ignore[attr-defined] # a generator, though the reference promises an iterator only
    assert asked == []

    done(await turn.result())
    assert len(asked) == 1


async def test_a_wait_hands_its_handler_only_what_was_opened_after_its_record(home: Home) -> None:
    asked: list[Any] = []

    def allow(_ctx: object, request: agents.ApprovalRequest) -> agents.AllowApproval:
        asked.append(request.arguments)
        return ALLOW

    agent = await home.asking([call("add", a=1, b=1)], [call("add", a=2, b=2)])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    state = blocked(await turn.result())
    handled = agent.session(session.id, on_approval=allow).turn(turn.id)
    waiting = asyncio.create_task(handled.result(after=state))
    assert isinstance(await turn.result(after=state, timeout=0.05), agents.Blocked)
    assert asked == []
    await turn.answer(state.callbacks[0].id, ALLOW)

    done(await waiting)
    assert asked == [{"a": 2, "b": 2}]


async def test_keep_callback_open_leaves_it_to_someone_else(home: Home) -> None:
    session = await (await home.asking()).start_session(on_approval=lambda _ctx, _request: agents.KeepCallbackOpen())
    state = blocked(await session.run("hi"))
    turn = session.turn(state.turn_id)

    assert isinstance(await turn.answer(state.callbacks[0].id, ALLOW), agents.Answered)
    done(await turn.result(after=state))


async def test_a_handler_that_raises_leaves_its_callback_open_and_its_exception_leaves_the_wait(home: Home) -> None:
    def broken(_ctx: object, _request: object) -> agents.AllowApproval:
        raise RuntimeError("no person here")

    agent = await home.asking()
    session = await agent.start_session(on_approval=broken)
    turn = started(await session.start_turn("hi"))
    with pytest.raises(RuntimeError, match="no person here"):
        await turn.result()
    state = await turn.get()

    callback = blocked(state).callbacks[0]
    plain = agent.session(session.id).turn(turn.id)
    await plain.answer(callback.id, ALLOW)
    done(await plain.result())


@pytest.mark.parametrize("value", [True, None, "yes", {"type": "allow"}, agents.SignInAnswer()])
async def test_a_handler_that_returns_something_else_is_an_error_and_the_callback_stays_open(
    home: Home, value: object
) -> None:
    session = await (await home.asking()).start_session(on_approval=lambda _ctx, _request: value)
    turn = started(await session.start_turn("hi"))
    with pytest.raises(agents.SdkError):
        await turn.result()

    assert len(blocked(await turn.get()).callbacks) == 1


async def test_at_the_timeout_a_running_handler_is_cancelled(home: Home) -> None:
    told: list[str] = []

    async def think(_ctx: object, _request: object) -> agents.AllowApproval:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        return ALLOW

    session = await (await home.asking()).start_session(on_approval=think)
    state = await session.run("hi", timeout=0.1)

    assert len(blocked(state).callbacks) == 1
    assert told == ["cancelled"]


async def test_a_handler_is_cancelled_when_someone_else_settles_its_callback(home: Home) -> None:
    gate = Gate()
    told: list[str] = []

    async def think(_ctx: object, _request: object) -> agents.AllowApproval:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        return ALLOW

    session = await (await home.asking()).start_session(on_approval=think)
    turn = started(await session.start_turn("hi"))
    waiting = asyncio.create_task(turn.result())
    await gate.reached.wait()
    state = blocked(await turn.get())
    await turn.answer(state.callbacks[0].id, agents.DenyApproval("other"))

    done(await waiting)
    assert told == ["cancelled"]
    (text,) = await result_texts(session)
    assert "other" in text


async def test_a_handle_s_handlers_serve_run_and_result_of_its_turns_and_no_other_handle(home: Home) -> None:
    agent = await home.asking([call("add", a=1, b=2)], ["ok"], [call("add", a=3, b=4)])
    session = await agent.start_session()
    with_handler = agent.session(session.id, on_approval=lambda _ctx, _request: ALLOW)

    done(await with_handler.run("hi"))
    state = blocked(await session.run("again"))
    done(await with_handler.turn(state.turn_id).result())


# Client tools.


async def test_a_function_bound_to_the_stub_answers_with_the_call_s_arguments(home: Home) -> None:
    stub = color_stub()
    asked: list[str] = []

    @stub.answer
    async def answer(of: str) -> str:
        asked.append(of)
        return "blue"

    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[stub])
    session = await agent.start_session()
    done(await session.run("hi"))

    assert asked == ["sky"]
    assert await result_texts(session) == ["blue"]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_on_client_tool_gets_the_call_and_its_value_is_the_result(home: Home, kind: str) -> None:
    asked: list[agents.ClientToolCall] = []

    def answer(asked_for: agents.ClientToolCall) -> str:
        asked.append(asked_for)
        return "blue"

    async def answer_async(asked_for: agents.ClientToolCall) -> str:
        return answer(asked_for)

    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[color_stub()])
    session = await agent.start_session(on_client_tool=answer if kind == "sync" else answer_async)
    done(await session.run("hi"))

    (entry,) = entries_of(await stored(session), agents.ToolCallEntry)
    assert asked == [
        agents.ClientToolCall(tool_call_id=entry.tool_call_id, name="client.ask_color", arguments={"of": "sky"})
    ]
    assert await result_texts(session) == ["blue"]


async def test_client_tool_answers_takes_the_stubs_it_is_given_and_leaves_the_others_open(home: Home) -> None:
    stub = color_stub()
    other = agents.client_tool(name="other", input_schema={"type": "object"})
    stub.answer(lambda of: f"{of} is blue")
    agent = await home.agent(StepModel([call("ask_color", of="sky"), call("other")]), tools=[stub, other])
    session = await agent.start_session(on_client_tool=agents.ClientToolAnswers(stub))
    turn = started(await session.start_turn("hi"))
    state = blocked(await turn.result())
    await eventually(lambda: _open_names(turn), "one stays open", until=lambda names: names == ["client.other"])

    assert {callback.id for callback in state.callbacks} >= {blocked(await turn.get()).callbacks[0].id}
    with pytest.raises(agents.SdkError, match="other"):
        agents.ClientToolAnswers(other)
    await session.cancel()


async def _open_names(turn: agents.Turn) -> list[str]:
    callbacks = blocked(await turn.get()).callbacks
    return [callback.call.name for callback in callbacks if isinstance(callback, agents.OpenClientToolCall)]


async def test_without_an_answering_function_a_client_tool_blocks(home: Home) -> None:
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[color_stub()])
    session = await agent.start_session()

    assert isinstance(blocked(await session.run("hi")).callbacks[0], agents.OpenClientToolCall)


async def test_a_client_tool_handler_may_keep_the_call_open(home: Home) -> None:
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[color_stub()])
    session = await agent.start_session(on_client_tool=lambda _call: agents.KeepCallbackOpen())
    state = blocked(await session.run("hi"))
    await session.turn(state.turn_id).answer(state.callbacks[0].id, "blue")

    assert isinstance(state.callbacks[0], agents.OpenClientToolCall)
    plain = agent.session(session.id).turn(state.turn_id)
    done(await plain.result())


def failing(where: str) -> tuple[agents.ClientTool, Any]:
    """A stub whose answer raises, bound to it or given as a handler."""
    stub = color_stub()

    def fail(**_arguments: object) -> str:
        raise agents.ToolError("the person left")

    def fail_call(_call: object) -> str:
        raise agents.ToolError("the person left")

    if where == "stub":
        stub.answer(fail)
        return stub, None
    return stub, fail_call


@pytest.mark.parametrize("where", ["stub", "handler"])
async def test_by_default_the_model_is_told_that_an_answer_failed_and_the_wait_goes_on(home: Home, where: str) -> None:
    stub, handler = failing(where)
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[stub])
    session = await agent.start_session(on_client_tool=handler)
    done(await session.run("hi"))

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.is_error
    assert content_text(result.content) == "the person left"


@pytest.mark.parametrize("where", ["stub", "handler"])
async def test_with_tool_errors_raise_the_exception_leaves_the_wait_and_the_call_stays_open(
    home: Home, where: str
) -> None:
    stub, handler = failing(where)
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[stub], tool_errors="raise")
    session = await agent.start_session(on_client_tool=handler)
    turn = started(await session.start_turn("hi"))
    with pytest.raises(agents.ToolError, match="the person left"):
        await turn.result()

    callback = blocked(await turn.get()).callbacks[0]
    await turn.answer(callback.id, "blue")
    done(await turn.result())


async def test_an_answer_that_cannot_be_sent_is_said_so_and_the_call_stays_open(home: Home) -> None:
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[color_stub()])
    session = await agent.start_session(on_client_tool=lambda _call: 7)
    turn = started(await session.start_turn("hi"))
    with pytest.raises(agents.ClientToolAnswerError):
        await turn.result()

    assert len(blocked(await turn.get()).callbacks) == 1


async def test_two_waits_in_one_loop_run_a_client_tool_s_answer_once(home: Home) -> None:
    gate = Gate()
    asked: list[object] = []

    async def answer(asked_for: agents.ClientToolCall) -> str:
        asked.append(asked_for)
        await gate.wait()
        return "blue"

    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[color_stub()])
    session = await agent.start_session(on_client_tool=answer)
    turn = started(await session.start_turn("hi"))
    shown: list[list[agents.Event]] = [[], []]
    waits = [asyncio.create_task(turn.result(on_event=events.append)) for events in shown]
    await gate.reached.wait()
    await eventually(lambda: all("turn blocked" in words(events) for events in shown), "both waits know of the call")
    gate.open.set()

    assert len({repr(await wait) for wait in waits}) == 1
    assert len(asked) == 1
    assert await result_texts(session) == ["blue"]


async def test_client_tool_time_is_not_counted_and_approval_time_is(home: Home) -> None:
    async def answer(_call: object) -> str:
        await asyncio.sleep(0.3)
        return "blue"

    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[color_stub()])
    session = await agent.start_session(on_client_tool=answer)
    done(await session.run("hi", timeout=0.25))

    async def think(_ctx: object, _request: object) -> agents.AllowApproval:
        await asyncio.sleep(0.3)
        return ALLOW

    other = await (await home.asking()).start_session(on_approval=think)
    blocked(await other.run("hi", timeout=0.15))


# agent.run.


async def test_agent_run_is_one_session_with_one_turn_that_ends_with_it(home: Home) -> None:
    got: list[agents.Event] = []
    agent = await home.asking()
    state = done(await agent.run("hi", on_approval=lambda _ctx, _request: ALLOW, on_event=got.append))
    session = agent.session(state.session_id)

    assert isinstance(got[-1], agents.TurnEnded)
    assert got[-1].state == state
    assert (await session.info()).status == "terminated"
    assert words([event async for event in session.iter_events()]).endswith("ended Completed | session terminated")
    with pytest.raises(agents.SessionTerminatedError):
        await session.start_turn("more")


async def test_agent_run_that_returns_blocked_or_running_leaves_both_alive(home: Home) -> None:
    gate = Gate()
    agent = await home.asking([call("add", a=1, b=2)], [gate])
    state = blocked(await agent.run("hi"))
    turn = agent.session(state.session_id).turn(state.turn_id)
    await turn.answer(state.callbacks[0].id, ALLOW)
    assert isinstance(await turn.result(after=state, timeout=0.05), agents.Running)
    gate.open.set()

    done(await turn.result())
    assert (await turn._session.info()).status == "terminated"


async def test_agent_run_never_raises_for_how_the_turn_ended(home: Home) -> None:
    agent = await home.agent(StepModel([agents.ModelError("gone")]))

    assert isinstance(await agent.run("hi"), agents.Failed)
    assert isinstance(await (await home.asking([Gate()])).run("hi", timeout=0.05), agents.Running)
