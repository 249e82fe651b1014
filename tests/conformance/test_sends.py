"""Sending: starts, joins, steers; keys; who is busy and what is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from agents_for_tests import (
    ASKED,
    ENDED,
    REPLIED,
    STARTED,
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
    spelled,
    started,
    stored,
    words,
)
from real_server import serving

import api_shim as agents
from workers.models import AssistantMessage, ToolMessage, UserMessage

UNKNOWN = "00000000-0000-4000-8000-000000000000"


async def running_turn(home: Home) -> tuple[agents.Session, agents.Turn, Gate, StepModel]:
    """A session whose turn waits in its first model call."""
    gate = Gate()
    model = StepModel([gate, "Hello"])
    session = await (await home.agent(model)).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    return session, turn, gate, model


# send_message.


async def test_a_message_starts_a_turn_or_joins_the_active_one(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    first = await session.send_message("one")
    second = await session.send_message("two")
    gate.open.set()
    await first.result()
    third = await session.send_message("three")

    assert (first.started, second.started, third.started) == (True, False, True)
    assert first == second != third
    done(await third.result())


async def test_a_joined_message_is_an_entry_of_the_turn_and_the_model_gets_it_after_the_reply(home: Home) -> None:
    session, turn, gate, model = await running_turn(home)
    await session.send_message("more")
    gate.open.set()
    done(await turn.result())
    log = await stored(session)

    assert words(log) == spelled(STARTED, "+user | =user", REPLIED, REPLIED, ENDED)
    assert [entry.turn_id for entry in entries_of(log, agents.MessageEntry)] == [turn.id] * 4
    assert model.user_texts(0) == ["hi"]
    assert [type(message) for message in model.requests[1].messages] == [UserMessage, AssistantMessage, UserMessage]
    assert model.user_texts(1) == ["hi", "more"]


async def test_twenty_messages_at_once_give_one_turn(home: Home) -> None:
    gate = Gate()
    model = StepModel([gate])
    session = await (await home.agent(model)).start_session()
    turns = await asyncio.gather(*(session.send_message(f"message {n}") for n in range(20)))

    assert len({turn.id for turn in turns}) == 1
    assert [turn.started for turn in turns].count(True) == 1
    gate.open.set()
    done(await turns[0].result())
    assert sorted(model.user_texts()) == sorted(f"message {n}" for n in range(20))


# start_turn.


async def test_twenty_starts_at_once_give_one_turn_and_nineteen_busy(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    results = await asyncio.gather(*(session.start_turn("hi") for _ in range(20)))

    (turn,) = [result for result in results if isinstance(result, agents.Turn)]
    busy = [result for result in results if isinstance(result, agents.Busy)]
    assert [each.turn for each in busy] == [turn] * 19
    assert turn.started is True
    assert words(await stored(session)) == STARTED
    gate.open.set()
    await turn.result()


async def test_busy_names_the_active_turn_and_applies_nothing(home: Home) -> None:
    session, turn, gate, _ = await running_turn(home)
    before = await stored(session)
    busy = await session.start_turn("other")
    busy_run = await session.run("other")

    assert isinstance(busy, agents.Busy)
    assert isinstance(busy_run, agents.Busy)
    assert busy.turn == busy_run.turn == turn
    assert busy.turn.started is None
    assert await stored(session) == before
    gate.open.set()
    done(await busy.turn.result())


async def test_a_parked_turn_is_busy_too(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    await opened(turn)

    assert await session.start_turn("other") == agents.Busy(turn)


# Keys.


async def test_the_same_key_gives_the_same_turn_while_it_runs_and_after_it(home: Home) -> None:
    session, _, gate, _ = await running_turn(home)
    gate.open.set()
    await (await session.send_message("join")).result()
    first = started(await session.start_turn("two", idempotency_key="k"))
    again = started(await session.start_turn("two", idempotency_key="k"))
    await first.result()
    later = started(await session.start_turn("two", idempotency_key="k"))
    sent = await session.send_message("two", idempotency_key="k")

    assert first == again == later == sent
    assert again.started is later.started is sent.started is True
    assert await session.run("two", idempotency_key="k") == await first.result()
    assert len(await session.turns()) == 2


async def test_a_key_that_joined_gives_the_turn_it_joined(home: Home) -> None:
    session, turn, gate, model = await running_turn(home)
    joined = await session.send_message("more", idempotency_key="k")
    again = await session.send_message("more", idempotency_key="k")

    assert turn == joined == again
    assert joined.started is again.started is False
    gate.open.set()
    await turn.result()
    assert model.user_texts() == ["hi", "more"]


Send = Callable[[agents.Session, str], Awaitable[object]]


async def by_send(session: agents.Session, text: str) -> object:
    return await session.send_message(text, idempotency_key="k")


async def by_start(session: agents.Session, text: str) -> object:
    return await session.start_turn(text, idempotency_key="k")


async def by_run(session: agents.Session, text: str) -> object:
    return await session.run(text, idempotency_key="k")


SENDS = [by_send, by_start, by_run]


@pytest.mark.parametrize("send", SENDS)
async def test_a_key_for_another_message_is_a_conflict(home: Home, send: Send) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.run("one", idempotency_key="k")
    before = await stored(session)

    with pytest.raises(agents.SessionIdempotencyConflictError) as conflict:
        await send(session, "other")
    assert conflict.value.idempotency_key == "k"
    assert await stored(session) == before


@pytest.mark.parametrize("send", [by_start, by_run])
async def test_a_start_with_a_key_that_joined_is_a_conflict(home: Home, send: Send) -> None:
    session, turn, gate, _ = await running_turn(home)
    await session.send_message("more", idempotency_key="k")

    with pytest.raises(agents.SessionIdempotencyConflictError):
        await send(session, "more")
    gate.open.set()
    await turn.result()


async def test_a_key_refused_with_busy_starts_a_turn_later(home: Home) -> None:
    session, turn, gate, _ = await running_turn(home)
    assert isinstance(await session.start_turn("two", idempotency_key="k"), agents.Busy)
    gate.open.set()
    await turn.result()
    second = started(await session.start_turn("two", idempotency_key="k"))

    assert second != turn
    done(await second.result())


async def test_a_text_and_one_text_block_are_the_same_content_in_either_case(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    first = await session.send_message("hi", idempotency_key="text")
    block = await session.send_message([agents.TextContentBlock(text="hi")], idempotency_key="text")
    mapping = await session.send_message([{"type": "text", "text": "hi"}], idempotency_key="text")
    await first.result()
    image = {"type": "image", "uri": "data:image/png;base64,AA=="}
    snake = await session.send_message([{**image, "media_type": "image/png"}], idempotency_key="image")
    camel = await session.send_message([{**image, "mediaType": "image/png"}], idempotency_key="image")

    assert first == block == mapping
    assert snake == camel
    await snake.result()


@pytest.mark.parametrize("key", ["", "k" * 513])
async def test_a_key_that_is_no_key_is_refused_by_name(home: Home, key: str) -> None:
    session = await (await home.agent(StepModel())).start_session()

    with pytest.raises(ValueError, match="idempotency_key"):
        await session.start_turn("hi", idempotency_key=key)
    assert await stored(session) == []


# After the session's end.


@pytest.mark.parametrize("send", SENDS)
async def test_after_the_end_a_new_message_is_refused(home: Home, send: Send) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.cancel()
    before = await stored(session)

    with pytest.raises(agents.SessionTerminatedError, match=session.id):
        await send(session, "hi")
    assert await stored(session) == before


async def test_after_the_end_the_same_key_and_message_still_give_their_turn_and_all_else_is_refused(home: Home) -> None:
    session, turn, gate, _ = await running_turn(home)
    joined = await session.send_message("more", idempotency_key="j")
    gate.open.set()
    await turn.result()
    second = started(await session.start_turn("two", idempotency_key="k"))
    await second.result()
    await session.cancel()

    assert await session.start_turn("two", idempotency_key="k") == second
    assert await session.send_message("more", idempotency_key="j") == joined
    for content, key in (("other", "k"), ("other", "j"), ("two", "new"), ("two", None)):
        with pytest.raises(agents.SessionTerminatedError):
            await session.start_turn(content, idempotency_key=key)
    with pytest.raises(agents.SessionTerminatedError):
        await session.start_turn("more", idempotency_key="j")


async def test_a_session_that_never_was_is_not_found(home: Home) -> None:
    agent = await home.agent(StepModel())
    for session_id in ("nonsense", f"0-{UNKNOWN}"):
        for send in SENDS:
            with pytest.raises(agents.SessionNotFoundError, match=session_id):
                await send(agent.session(session_id), "hi")


# steer.


async def test_a_steer_joins_the_running_turn(home: Home) -> None:
    session, turn, gate, model = await running_turn(home)
    steered = await session.turn(turn.id).steer("mind the time")

    assert steered == turn
    assert isinstance(steered, agents.Turn)
    assert steered.started is False
    gate.open.set()
    done(await turn.result())
    assert model.user_texts() == ["hi", "mind the time"]
    assert [entry.role for entry in entries_of(await stored(session), agents.MessageEntry)][:2] == ["user", "user"]


async def test_a_steer_during_a_reply_comes_to_the_model_after_the_results_of_its_calls(home: Home) -> None:
    gate = Gate()
    model = StepModel(["Adding", gate, call("add", a=1, b=2)])
    session = await (await home.agent(model, tools=[add])).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    await turn.steer([{"type": "text", "text": "quick"}, {"type": "context", "text": "late"}])
    gate.open.set()
    done(await turn.result())

    kinds = [type(message).__name__ for message in model.requests[1].messages]
    assert kinds == ["UserMessage", "AssistantMessage", "ToolMessage", "ContextNote", "UserMessage"]
    assert len(model.requests) == 2, "the call was not cut, nor made again"


async def test_a_steer_of_a_parked_turn_is_accepted_and_its_callbacks_stay_open(home: Home) -> None:
    model = StepModel([call("add", a=1, b=2)])
    session = await (await home.agent(model, tools=[add], permission_mode="ask")).start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    assert await turn.steer("hurry") == turn
    joined = await session.send_message("please")

    assert joined == turn
    assert joined.started is False
    assert blocked(await turn.get()).callbacks == (callback,)
    await turn.answer(callback.id, agents.AllowApproval())
    done(await turn.result())
    assert [type(message) for message in model.requests[1].messages][2] is ToolMessage
    assert model.user_texts() == ["hi", "hurry", "please"]
    entries = "+user | =user"
    assert words(await stored(session)).startswith(spelled(STARTED, ASKED, entries, entries, "CallbackResolved"))


async def test_a_steer_of_a_queued_turn_is_accepted(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker's worker takes a turn up at once")
    agent = agents.Agent(model=StepModel(), name="late")
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    assert await turn.steer("more") == turn
    assert isinstance(await session.start_turn("other"), agents.Busy)
    await home.serve(agent)

    done(await turn.result())


@pytest.mark.parametrize("verb", ["steer", "interrupt"])
async def test_a_turn_that_is_not_the_active_one_is_a_conflict_and_nothing_is_added(home: Home, verb: str) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["one"], [gate]))).start_session()

    async def tried(turn: agents.Turn) -> object:
        return await turn.steer("more") if verb == "steer" else await turn.interrupt()

    assert await tried(session.turn(UNKNOWN)) == agents.TurnConflict(None)
    first = session.turn(done(await session.run("one")).turn_id)
    assert await tried(first) == agents.TurnConflict(None)
    second = started(await session.start_turn("two"))
    await gate.reached.wait()
    before = await stored(session)
    assert await tried(first) == agents.TurnConflict(second.id)
    assert await tried(session.turn(UNKNOWN)) == agents.TurnConflict(second.id)
    assert await stored(session) == before
    await session.cancel()
    assert await tried(second) == agents.TurnConflict(None)
    await seen(session, "session terminated")


# Full.


async def test_a_full_broker_takes_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path) as server:
        home = Home(server.url)
        monkeypatch.setenv("TURNSTREAM_PREFIX", "full:")
        agents.connect(server.url)
        try:
            session = await (await home.agent(StepModel())).start_session()
            await home.broker.client.config_set("maxmemory", "1")
            for send in SENDS:
                with pytest.raises(agents.SessionBusyError):
                    await send(session, "hi")
            await home.broker.client.config_set("maxmemory", "0")
            assert await stored(session) == []
            done(await by_run(session, "hi"))
        finally:
            await home.stop_workers()
            await home.place.close()
            agents.connect(None)
