"""Waiting for a turn: what it hands over, and what it returns."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents_for_tests import (
    ASKED,
    REPLIED,
    STARTED,
    Gate,
    Home,
    StepModel,
    add,
    ask_color,
    blocked,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    lasting,
    opened,
    seen,
    spelled,
    started,
    stored,
    words,
)

import api_shim as agents
from api_shim import sends
from broker import transitions

# What a wait hands over.


async def test_the_records_of_one_end_are_equal_and_point_at_the_session_s_update(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    got: list[agents.Event] = []
    ran = done(await session.run("hi", on_event=got.append))
    turn = session.turn(ran.turn_id)
    log = await stored(session)

    assert isinstance(got[-1], agents.TurnEnded)
    assert got[-1].state == ran == await turn.result() == await turn.get()
    assert ran.cursor == log[-1].id
    assert words(log[-2:]) == "ended Completed | session waiting"


async def test_an_ended_turn_s_cursor_is_the_same_in_every_wait_and_get_tells_where_the_session_is(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    ran = done(await session.run("one"))
    turn = session.turn(ran.turn_id)
    await session.run("two")

    assert (await turn.result()).cursor == ran.cursor
    assert (await turn.get()).cursor == (await stored(session))[-1].id


async def test_a_wait_hands_over_the_turn_from_its_message_to_its_end(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.run("one")
    got: list[agents.Event] = []
    state = done(await session.run("two", on_event=got.append))
    again: list[agents.Event] = []
    await session.turn(state.turn_id).result(on_event=again.append)

    assert words(got) == words(again) == spelled(STARTED, REPLIED, "turn terminated | ended Completed")
    assert lasting(got) == lasting(again)
    assert {event.turn_id for event in got} == {state.turn_id, None}


async def test_a_wait_from_an_older_cursor_hands_over_nothing_of_earlier_turns(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    first = done(await session.run("one"))
    await session.run("two")
    await session.rename("sums")
    third = started(await session.start_turn("three"))
    got: list[agents.Event] = []
    await third.result(after=first, on_event=got.append)
    again: list[agents.Event] = []
    await third.result(after=first, on_event=again.append)

    assert words(got) == words(again) == spelled(STARTED, REPLIED, "turn terminated | ended Completed")
    assert {event.turn_id for event in got} == {third.id, None}


async def test_a_turn_that_already_runs_is_handed_over_from_its_start(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["Hel", gate, "lo"]))).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    await seen(session, "+assistant")
    got: list[agents.Event] = []
    waiting = asyncio.create_task(turn.result(on_event=got.append))
    gate.open.set()
    await waiting

    assert words(got) == spelled(STARTED, REPLIED, "turn terminated | ended Completed")


async def test_blocked_and_expired_waits_hand_over_everything_up_to_the_cursor_they_return(home: Home) -> None:
    gate = Gate()
    agent = await home.asking([call("add", a=1, b=2)], ["Hel", gate, "lo"])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    got: list[agents.Event] = []
    asked = blocked(await turn.result(on_event=got.append))
    assert words(got) == spelled(STARTED, ASKED)
    assert got[-1].id == asked.cursor

    still = blocked(await turn.result(after=asked, timeout=0.05, on_event=got.append))
    assert still.cursor == asked.cursor
    await turn.answer(asked.callbacks[0].id, agents.AllowApproval())
    await gate.reached.wait()
    await seen(session, "+assistant")
    running = await turn.result(after=still, timeout=0.05, on_event=got.append)
    assert isinstance(running, agents.Running)
    assert lasting(got)[-1].id == running.cursor

    gate.open.set()
    await turn.result(after=running, on_event=got.append)
    log = await stored(session)
    assert lasting(got) == lasting(log)[:-1], "no event twice, none missing"


@pytest.mark.parametrize("stage", ["running", "blocked"])
async def test_a_wait_without_time_hands_over_everything_up_to_its_cursor_too(home: Home, stage: str) -> None:
    gate = Gate()
    step = gate if stage == "running" else call("add", a=1, b=2)
    session = await (await home.asking(["Hel", step])).start_session()
    turn = started(await session.start_turn("hi"))
    await seen(session, "+assistant" if stage == "running" else "turn blocked")
    got: list[agents.Event] = []

    state = await turn.result(timeout=0, on_event=got.append)

    assert isinstance(state, agents.Running if stage == "running" else agents.Blocked)
    log = lasting(await stored(session))
    assert lasting(got) == log[: [event.id for event in log].index(state.cursor) + 1]
    assert words(got).startswith(spelled(STARTED, "+assistant"))
    gate.open.set()
    await session.cancel()


async def test_a_wait_after_a_record_passes_what_was_handled_before_it(home: Home) -> None:
    session = await (await home.asking([call("add", a=1, b=2)], [call("add", a=3, b=4)])).start_session()
    turn = started(await session.start_turn("hi"))
    first = blocked(await turn.result())
    assert blocked(await turn.result()).callbacks == first.callbacks, "without `after`: at once, again"

    waiting = asyncio.create_task(turn.result(after=first))
    await turn.answer(first.callbacks[0].id, agents.AllowApproval())
    second = blocked(await waiting)
    assert second.callbacks != first.callbacks

    waiting = asyncio.create_task(turn.result(after=second.cursor))
    await turn.answer(second.callbacks[0].id, agents.AllowApproval())
    done(await waiting)


async def test_a_wait_that_others_must_answer_returns_when_its_own_handlers_are_done(home: Home) -> None:
    """Leaving at once would cancel a handler that a person is answering, and show callbacks that are about to close."""
    both = [call("add", a=1, b=2), call("ask_color", of="sky")]
    agent = await home.agent(
        StepModel(both),
        tools=[add, ask_color],
        permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.add"], decision="ask")]),
    )
    person, asked = Gate(), 0

    async def approve(_ctx: agents.HandlerContext, _request: agents.ApprovalRequest) -> agents.AllowApproval:
        nonlocal asked
        asked += 1
        await person.wait()
        return agents.AllowApproval()

    session = await agent.start_session(on_approval=approve)
    turn = started(await session.start_turn("hi"))
    waiting = asyncio.create_task(turn.result())
    await person.reached.wait()
    assert len(blocked(await turn.get()).callbacks) == 2
    person.open.set()
    state = blocked(await waiting)

    (left,) = state.callbacks
    assert isinstance(left, agents.OpenClientToolCall)
    await turn.answer(left.id, "blue")
    assert len(done(await turn.result(after=state)).tool_calls) == 2
    assert asked == 1


async def test_an_earlier_turn_s_callbacks_do_not_count(home: Home) -> None:
    session = await (await home.asking([call("add", a=1, b=2)], ["ok"], [call("add", a=3, b=4)])).start_session()
    turn = started(await session.start_turn("hi"))
    await turn.answer((await opened(turn)).id, agents.AllowApproval())
    before = done(await turn.result())
    second = started(await session.start_turn("more"))

    asked = blocked(await second.result(after=before))
    assert asked == blocked(await second.result())
    await session.cancel()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_events_are_handed_over_one_after_another(home: Home, kind: str) -> None:
    session = await (await home.agent(StepModel(["a", "b", "c"]))).start_session()
    got: list[agents.Event] = []
    busy = 0

    async def slow(event: agents.Event) -> None:
        nonlocal busy
        assert busy == 0
        busy += 1
        await asyncio.sleep(0)
        got.append(event)
        busy -= 1

    state = done(await session.run("hi", on_event=got.append if kind == "sync" else slow))
    assert words(got) == spelled(STARTED, REPLIED, "turn terminated | ended Completed")
    assert isinstance(got[-1], agents.TurnEnded)
    assert got[-1].state == state


async def test_a_function_that_raises_leaves_the_wait_and_the_turn_goes_on(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))

    def broken(_event: agents.Event) -> None:
        raise RuntimeError("no screen")

    with pytest.raises(RuntimeError, match="no screen"):
        await turn.result(on_event=broken)
    gate.open.set()
    done(await turn.result())


# Waiting.


async def test_at_its_timeout_a_wait_returns_how_the_turn_stands(home: Home) -> None:
    gate = Gate()
    session = await (await home.asking([gate, call("add", a=1, b=2)])).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    assert isinstance(await turn.result(timeout=0.05), agents.Running)
    assert isinstance(await turn.result(timeout=0), agents.Running)
    gate.open.set()
    asked = blocked(await turn.result())

    assert blocked(await turn.result(after=asked, timeout=0.05)).callbacks == asked.callbacks
    assert isinstance(await session.run("other", timeout=0.05), agents.Busy)


async def test_a_run_returns_at_its_timeout_and_the_turn_goes_on(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    state = await session.run("hi", timeout=0.05)
    assert isinstance(state, agents.Running)
    gate.open.set()

    done(await session.turn(state.turn_id).result())


async def test_an_ended_turn_is_returned_at_once(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    state = done(await session.run("hi"))
    turn = session.turn(state.turn_id)
    await session.run("next")

    async with asyncio.timeout(2):
        assert await turn.result() == state
        assert await turn.result(after=state, timeout=0) == state
        assert await turn.result(after=(await stored(session))[-1].id) == state
        got: list[agents.Event] = []
        assert await turn.result(after=state, on_event=got.append) == state
        assert got == []


async def test_a_cancelled_wait_says_how_to_stop_the_turn_which_goes_on(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    waiting = asyncio.create_task(turn.result())
    await gate.reached.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await waiting

    (note,) = cancelled.value.__notes__
    assert turn.id in note
    assert session.id in note
    assert "interrupt()" in note
    gate.open.set()
    done(await turn.result())


async def test_under_wait_for_the_note_is_on_the_cause(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    with pytest.raises(TimeoutError) as late:
        await asyncio.wait_for(turn.result(on_event=lambda _: None), 0.1)

    assert isinstance(late.value.__cause__, asyncio.CancelledError)
    assert turn.id in late.value.__cause__.__notes__[0]
    gate.open.set()
    done(await turn.result())


async def test_many_waits_for_one_turn_get_the_same_record(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    waits = [asyncio.create_task(turn.result()) for _ in range(10)]
    await gate.reached.wait()
    gate.open.set()

    assert len({repr(await wait) for wait in waits}) == 1


# run is a start and a wait.


async def test_a_wait_after_another_turn_s_later_record_starts_there(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["one"], ["Hel", gate, "lo"]))).start_session()
    first = session.turn(done(await session.run("one")).turn_id)
    second = started(await session.start_turn("two"))
    await gate.reached.wait()
    await seen(session, "+assistant")
    record = await first.get()
    gate.open.set()
    got: list[agents.Event] = []
    state = done(await second.result(after=record, on_event=got.append))

    assert state == await second.result()
    log = await stored(session)
    assert lasting(got) == [event for event in log if event.id in {each.id for each in got}][: len(lasting(got))]
    assert words(lasting(got)).endswith("=assistant | turn terminated | ended Completed")
    assert "+user" not in words(got)


async def test_a_run_returns_blocked_as_a_wait_does(home: Home) -> None:
    session = await (await home.asking()).start_session()
    state = blocked(await session.run("hi"))
    turn = session.turn(state.turn_id)

    assert await turn.get() == state
    await turn.answer(state.callbacks[0].id, agents.AllowApproval())
    done(await turn.result(after=state))


async def test_a_run_that_is_left_does_not_stop_its_turn(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    running = asyncio.create_task(session.run("hi"))
    await gate.reached.wait()
    (turn,) = await session.turns()
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await running
    gate.open.set()

    (note,) = cancelled.value.__notes__
    assert turn.id in note
    assert session.id in note
    done(await turn.result())


async def test_a_run_s_timeout_does_not_count_its_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    start = transitions.start

    async def slow(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.3)
        return await start(*arguments, **options)

    gate = Gate()
    session = await (await home.agent(StepModel(["one"], [gate]))).start_session()
    monkeypatch.setattr(sends, "start", slow)
    done(await session.run("hi", timeout=0.2))

    state = await session.run("again", timeout=0)
    assert isinstance(state, agents.Running)
    assert state.turn_id in [turn.id for turn in await session.turns()]
    gate.open.set()
    done(await session.turn(state.turn_id).result())


def test_ctrl_c_in_a_wait_says_how_to_stop_the_turn(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import asyncio\n"
        "import api_shim as agents\n"
        "model = agents.ScriptedModel([agents.ScriptedReply(text='late', delay=60)])\n"
        "async def main():\n"
        "    session = await agents.Agent(model=model).start_session()\n"
        "    turn = await session.start_turn('hi')\n"
        "    waiting = asyncio.ensure_future(turn.result())\n"
        "    await turn.get()\n"
        "    print(session.id, turn.id, flush=True)\n"
        "    await waiting\n"
        "asyncio.run(main())\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNSTREAM_")}
    running = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    ids = running.stdout.readline().split()
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=20)

    assert running.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    for told in (*ids, "interrupt()"):
        assert told in errors


async def test_a_loop_of_timed_waits_shows_every_reply_once(home: Home) -> None:
    gates = [Gate(), Gate()]
    model = StepModel(["Hel", gates[0], "lo", call("add", a=1, b=2)], ["Good", gates[1], "bye"])
    session = await (await home.agent(model, tools=[add])).start_session()
    turn = started(await session.start_turn("hi"))
    got: list[agents.Event] = []
    expired = 0
    state = await turn.result(timeout=0.05, on_event=got.append)
    while isinstance(state, agents.Running):
        expired += 1
        for gate in gates:
            if gate.reached.is_set():
                gate.open.set()
        state = await turn.result(after=state, timeout=0.05, on_event=got.append)

    done(state)
    assert expired >= 2
    assert lasting(got) == lasting(await stored(session))[:-1]
    texts = [entry.text for entry in entries_of(got, agents.MessageEntry)]
    assert texts == ["hi", "Hello", "Goodbye"]
