"""Questions of subagents: each level above is blocked, and its root answers."""

from __future__ import annotations

import asyncio

import pytest
from agents_for_tests import (
    Home,
    StepModel,
    add,
    ask_color,
    blocked,
    call,
    done,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    started,
    stored,
    words,
)
from test_subagents import ALLOW, asking, boss, helper, only_child, results, spawn

import api_shim as agents
from broker.protocol.content import content_text


async def test_a_childs_question_blocks_its_root_and_is_answered_through_it(home: Home) -> None:
    session = await boss(home, [spawn("go")], subagents=[asking()])
    turn = started(await session.start_turn("hi"))
    state = blocked(await turn.result())
    child = await only_child(session)

    (callback,) = state.callbacks
    (own,) = [event.callback for event in await stored(child) if isinstance(event, agents.CallbackOpened)]
    assert callback == own
    assert callback.session_id == child.id
    assert blocked(await turn.get()).callbacks == (callback,)
    assert not any(isinstance(event, agents.CallbackOpened) for event in await stored(session))
    assert await turn.answer(callback.id, ALLOW) == agents.Answered(ALLOW, child.id)
    assert done(await turn.result()).output == "done"
    assert await turn.answer(callback.id, ALLOW) == agents.NotFound()
    assert await child.turn("any").answer(callback.id, ALLOW) == agents.AlreadySettled()
    assert words(await stored(session)).count("turn blocked | turn running") == 1


async def test_a_question_two_levels_down_blocks_each_level(home: Home) -> None:
    outer = helper([spawn("go", "inner")], ["outer done"], name="outer", subagents=[asking("inner")])
    session = await boss(home, [spawn("go", "outer")], subagents=[outer])
    turn = started(await session.start_turn("hi"))
    (callback,) = blocked(await turn.result()).callbacks
    (child,) = await session.subagents()
    (grandchild,) = await child.subagents()
    assert callback.session_id == grandchild.id
    (middle,) = await child.turns()
    assert blocked(await middle.get()).callbacks == (callback,)
    await turn.answer(callback.id, agents.DenyApproval(reason="no"))
    assert done(await turn.result()).output == "done"
    for each in (session, child):
        assert words(await stored(each)).count("turn blocked | turn running") == 1
    assert done(await middle.get()).output == "outer done"


async def test_of_two_childrens_questions_the_first_blocks_and_the_last_answer_lets_go(home: Home) -> None:
    session = await boss(home, [spawn("go", "one"), spawn("go", "two")], subagents=[asking("one"), asking("two")])
    turn = started(await session.start_turn("hi"))
    state = blocked(await turn.result())
    while len(state.callbacks) < 2:
        state = blocked(await turn.result(after=state))
    first, second = state.callbacks
    await turn.answer(second.id, ALLOW)
    assert blocked(await turn.get()).callbacks == (first,)
    await turn.answer(first.id, ALLOW)
    done(await turn.result())
    assert words(await stored(session)).count("turn blocked") == 1


async def test_a_wait_after_a_record_returns_at_the_childs_next_question(home: Home) -> None:
    twice = helper([call("add", a=1, b=2)], [call("add", a=3, b=4)], tools=[add], permission_mode="ask")
    session = await boss(home, [spawn("go")], subagents=[twice])
    turn = started(await session.start_turn("hi"))
    first = blocked(await turn.result())
    waiting = asyncio.create_task(turn.result(after=first))
    await turn.answer(first.callbacks[0].id, ALLOW)
    second = blocked(await waiting)
    assert second.callbacks[0].id != first.callbacks[0].id
    await turn.answer(second.callbacks[0].id, ALLOW)
    done(await turn.result(after=second))


async def test_the_roots_handlers_answer_for_its_subagents(home: Home) -> None:
    asked: list[str] = []

    async def allow(ctx: agents.HandlerContext, request: agents.ApprovalRequest) -> agents.AllowApproval:
        asked.append(f"{request.tool.id} of {ctx.session_id}")
        return ALLOW

    below = helper([call("ask_color", of="sky")], [call("add", a=1, b=2)], ["ok"], tools=[add, ask_color])
    policy = agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.add"], decision="ask")])
    agent = await home.agent(StepModel([spawn("go")]), subagents=[below], permission_policy=policy)
    session = await agent.start_session(on_approval=allow, on_client_tool=lambda _: "blue")
    done(await session.run("hi"))
    (child,) = await session.subagents()
    assert asked == [f"client.add of {child.id}"]
    assert [content_text(result.content) for result in await results(child)] == ["blue", "3"]


async def test_a_childs_handle_has_its_parents_handlers(home: Home) -> None:
    agent = await home.agent(StepModel([spawn("go")]), subagents=[asking()])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    blocked(await turn.result())

    async def allow(_ctx: object, _request: object) -> agents.AllowApproval:
        return ALLOW

    handle = agent.session(session.id, on_approval=allow)
    (child,) = await handle.subagents()
    (below,) = await child.turns()
    assert done(await below.result()).output == "three"
    done(await turn.result())


async def test_an_answer_to_a_subagents_stub_is_checked(home: Home) -> None:
    below = helper([call("ask_color", of="sky")], ["ok"], tools=[ask_color])
    session = await boss(home, [spawn("go")], subagents=[below])
    turn = started(await session.start_turn("hi"))
    (callback,) = blocked(await turn.result()).callbacks
    with pytest.raises(agents.SdkError, match=r"The answer does not fit what client\.ask_color returns"):
        await turn.answer(callback.id, 5)
    await turn.answer(callback.id, "blue")
    done(await turn.result())


async def test_two_subagents_with_a_callback_of_one_id_are_told_apart_by_their_sessions(home: Home) -> None:
    """Random ids never meet: the state is written by hand."""
    session = await boss(home, [spawn("go", "one"), spawn("go", "two")], subagents=[asking("one"), asking("two")])
    turn = started(await session.start_turn("hi"))
    state = blocked(await turn.result())
    while len(state.callbacks) < 2:
        state = blocked(await turn.result(after=state))
    key = home.broker.keys.of("asked", session.id)
    places = [await home.broker.reads.command("HGET", key, each.id) for each in state.callbacks]
    await home.broker.commands.command("HSET", key, state.callbacks[0].id, b"\n".join(places))
    with pytest.raises(agents.SdkError, match="Two subagents"):
        await turn.answer(state.callbacks[0].id, ALLOW)
    await session.cancel()


async def test_a_question_that_cannot_be_read_is_said(home: Home) -> None:
    session = await boss(home, [spawn("go")], subagents=[asking()])
    turn = started(await session.start_turn("hi"))
    blocked(await turn.result())
    (child,) = await session.subagents()
    home.spoilt = True
    await home.broker.commands.command("DEL", home.broker.keys.of("log", child.id))
    with pytest.raises(agents.ObservationLost, match=child.id):
        await turn.result()
    await session.cancel()


async def test_a_message_to_the_parent_is_read_with_its_subagents_result(home: Home) -> None:
    model = StepModel([spawn("go")], ["understood"])
    agent = await home.agent(model, subagents=[asking()])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    (callback,) = blocked(await turn.result()).callbacks
    joined = await session.send_message("And be quick.")
    assert (joined, joined.started) == (turn, False)
    await turn.answer(callback.id, ALLOW)
    assert done(await turn.result()).output == "understood"
    assert model.user_texts() == ["hi", "And be quick."]
