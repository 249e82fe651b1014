"""A turn's records: how it stands, how it ended, what waiting for it gives."""

from __future__ import annotations

import asyncio
import uuid

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
    opened,
    seen,
    started,
    stored,
)
from leaks import drop_keys
from pydantic import BaseModel

import api_shim as agents

UNKNOWN = "00000000-0000-4000-8000-000000000000"


# How it stands.


async def test_a_running_turn_is_read_at_once_with_its_text_so_far(home: Home) -> None:
    early, gate = Gate(), Gate()
    session = await (await home.agent(StepModel([early, "Hel", gate, "lo"]))).start_session()
    turn = started(await session.start_turn("hi"))
    await early.reached.wait()
    assert (await turn.get()).text == ""
    early.open.set()
    await gate.reached.wait()
    await seen(session, "+assistant")
    state = await turn.get()

    assert isinstance(state, agents.Running)
    assert (state.session_id, state.turn_id, state.text) == (session.id, turn.id, "Hel")
    assert state.cursor == (await stored(session))[-1].id
    gate.open.set()
    assert done(await turn.result()).text == "Hello"


async def test_the_text_is_that_of_the_last_message_of_the_turn(home: Home) -> None:
    session = await (await home.asking(["May I?", call("add", a=1, b=2)], ["Three"])).start_session()
    turn = started(await session.start_turn("hi"))
    asked = blocked(await turn.result())
    assert asked.text == "May I?"
    await turn.answer(asked.callbacks[0].id, agents.AllowApproval())
    assert done(await turn.result()).text == "Three"

    again = started(await session.start_turn("again"))
    assert done(await again.result()).text == "done"


async def test_a_queued_turn_is_running(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker's worker takes a turn up at once")
    session = await agents.Agent(model="scripted:echo", name="unserved").start_session()
    turn = started(await session.start_turn("hi"))

    assert isinstance(await turn.get(), agents.Running)
    assert isinstance(await turn.result(timeout=0.05), agents.Running)


async def test_a_blocked_turn_lists_what_it_waits_for_until_it_is_answered(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    state = blocked(await turn.result())
    (callback,) = state.callbacks

    assert isinstance(callback, agents.OpenApproval)
    assert str(uuid.UUID(callback.id)) == callback.id
    assert (callback.session_id, callback.turn_id) == (session.id, turn.id)
    assert callback.title
    assert "\n" not in callback.title
    assert callback.opened_at.tzinfo is not None
    assert callback.request.tool == agents.ApprovalTool(id="client.add", name="add", description="Add two numbers.")
    assert callback.request.arguments == {"a": 1, "b": 2}
    assert callback.request.from_hook is False
    (asked,) = [event for event in await stored(session) if isinstance(event, agents.CallbackOpened)]
    assert asked.callback == callback
    (entry,) = entries_of(await stored(session), agents.ToolCallEntry)
    assert callback.request.tool_call_id == entry.tool_call_id
    assert await turn.get() == state


async def test_a_turn_is_blocked_also_while_other_calls_run(home: Home) -> None:
    gate = Gate()

    @agents.tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "slept"

    rules = [agents.PermissionRule(tools=["client.add"], decision="ask")]
    agent = await home.agent(
        StepModel([call("slow"), call("add", a=1, b=2)]),
        tools=[slow, add],
        permission_policy=agents.PermissionPolicy(rules=rules),
    )
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    asked = blocked(await turn.get())
    await turn.answer(asked.callbacks[0].id, agents.AllowApproval())
    assert isinstance(await turn.get(), agents.Running)
    gate.open.set()

    state = done(await turn.result())
    assert state.tool_calls == (
        agents.ToolCall(name="client.slow", arguments={}),
        agents.ToolCall(name="client.add", arguments={"a": 1, "b": 2}),
    )


async def test_a_turn_of_a_session_that_ended_is_never_running(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    await session.cancel()

    state = await turn.get()
    assert isinstance(state, agents.Interrupted)
    assert state.cause == "cancelled"


# How it ended.


async def test_a_completed_turn_tells_output_calls_and_usage(home: Home) -> None:
    usage = agents.TokenUsage(input_tokens=10, output_tokens=2, total_tokens=12, cached_input_tokens=4)
    model = StepModel([call("add", a=1, b=2), call("nothing"), usage], ["Three", usage])
    session = await (await home.agent(model, tools=[add])).start_session()
    state = done(await session.run("hi"))

    assert state.output == state.text == "Three"
    assert state.tool_calls == (
        agents.ToolCall(name="client.add", arguments={"a": 1, "b": 2}),
        agents.ToolCall(name="client.nothing", arguments={}),
    )
    assert state.stop_reason is None
    assert state.usage == usage + usage


async def test_denied_and_refused_calls_are_among_the_calls(home: Home) -> None:
    @agents.tool
    def forbidden() -> None:
        """Never runs."""
        raise AssertionError("it ran")

    model = StepModel([call("add", a=1, b=2), call("forbidden")])
    rules = [
        agents.PermissionRule(tools=["client.add"], decision="ask"),
        agents.PermissionRule(tools=["client.forb*"], decision="deny"),
    ]
    agent = await home.agent(model, tools=[add, forbidden], permission_policy=agents.PermissionPolicy(rules=rules))
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await turn.answer((await opened(turn)).id, agents.DenyApproval())

    assert [each.name for each in done(await turn.result()).tool_calls] == ["client.add", "client.forbidden"]
    assert [entry.is_error for entry in entries_of(await stored(session), agents.ToolResultEntry)] == [True, True]


async def test_max_iterations_stops_the_turn_and_says_so(home: Home) -> None:
    model = StepModel(*([call("add", a=n, b=1)] for n in range(9)))
    session = await (await home.agent(model, tools=[add], max_iterations=2)).start_session()
    state = done(await session.run("hi"))

    assert state.stop_reason == "iteration_limit"
    assert len(model.requests) == len(state.tool_calls) == 2
    assert len(entries_of(await stored(session), agents.ToolResultEntry)) == 2


async def test_a_model_that_fails_for_good_fails_the_turn(home: Home) -> None:
    model = StepModel(["Hel", agents.ModelError("over quota", code="quota")])
    session = await (await home.agent(model)).start_session()
    state = await session.run("hi")

    assert isinstance(state, agents.Failed)
    assert (state.error.message, state.error.code, state.text) == ("over quota", "quota", "Hel")
    assert await session.turn(state.turn_id).get() == state


async def test_a_model_call_is_tried_three_times(home: Home) -> None:
    failing = agents.ModelError("overloaded", retryable=True, retry_after=0)
    model = StepModel([[failing]])
    session = await (await home.agent(model)).start_session()
    state = await session.run("hi")

    assert isinstance(state, agents.Failed)
    assert len(model.requests) == 3
    good = StepModel([[failing], [failing], ["Hello"]])
    other = await (await home.agent(good)).start_session()
    assert done(await other.run("hi")).text == "Hello"


# Output types.


class Sum(BaseModel):
    total: int


async def test_an_agent_s_output_type_is_asked_of_the_model_and_parsed_everywhere(home: Home) -> None:
    model = StepModel(['{"total": 3}'])
    session = await (await home.agent(model, output_type=Sum)).start_session()
    got: list[agents.Event] = []
    state = done(await session.run("hi", on_event=got.append))
    turn = session.turn(state.turn_id)

    assert model.requests[0].output_schema == Sum.model_json_schema()
    assert state.output == Sum(total=3)
    assert state.text == '{"total": 3}'
    assert await turn.get() == await turn.result() == state
    ended = got[-1]
    assert isinstance(ended, agents.TurnEnded)
    assert done(ended.state).output == '{"total": 3}', "the event's record is never parsed"
    assert ended.state.cursor == state.cursor


async def test_an_output_type_of_a_call_only_parses(home: Home) -> None:
    model = StepModel(['{"total": 3}'])
    session = await (await home.agent(model)).start_session()
    state = done(await session.run("hi", output_type=Sum))
    turn = session.turn(state.turn_id)

    assert model.requests[0].output_schema is None
    assert state.output == Sum(total=3)
    assert done(await turn.result(output_type=Sum)).output == Sum(total=3)
    assert done(await turn.get()).output == '{"total": 3}'


async def test_a_text_of_another_shape_is_an_invalid_output_and_no_exception(home: Home) -> None:
    session = await (await home.agent(StepModel(['{"total": "many"}']), output_type=Sum)).start_session()
    state = done(await session.run("hi"))

    assert isinstance(state.output, agents.InvalidOutput)
    assert state.output.text == state.text == '{"total": "many"}'
    assert "total" in state.output.error


# Turns that are not there.


async def test_a_turn_that_never_was_is_not_found(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    turn = session.turn(UNKNOWN)

    for reading in (turn.get, turn.result):
        with pytest.raises(agents.TurnNotFoundError, match=UNKNOWN):
            await reading()
    with pytest.raises(agents.TurnNotFoundError, match=UNKNOWN):
        await turn.result(timeout=0, on_event=print)


async def test_a_sent_turn_that_the_broker_lost_is_lost_and_never_runs_for_ever(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    busy = await session.start_turn("other")
    assert isinstance(busy, agents.Busy)
    await gate.reached.wait()
    await drop_keys(home.broker.client, home.broker.settings.prefix)

    for sent in (turn, busy.turn):
        for reading in (sent.get, sent.result):
            async with asyncio.timeout(5):
                with pytest.raises(agents.ObservationLost, match=turn.id):
                    await reading()
        with pytest.raises(agents.ObservationLost, match=turn.id):
            await anext(sent.iter_events())
    with pytest.raises(agents.SessionNotFoundError):
        await session.turn(turn.id).get()
    gate.open.set()
