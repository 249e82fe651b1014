"""Subagents: sessions of their own that a turn starts, waits for without a worker, and whose questions its root answers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

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
    expect_pairs,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    started,
    stored,
    words,
)
from eventually import eventually

import api_shim as agents
from broker.protocol.content import content_text

ALLOW = agents.AllowApproval()
HELPER = "helper"


def spawn(task: str, agent: str = HELPER) -> agents.ScriptedCall:
    """A call that starts a subagent."""
    return agents.ScriptedCall("agents.spawn", {"agent": agent, "task": task})


def helper(*replies: Any, name: str = HELPER, **options: Any) -> agents.Subagent:
    """A subagent that follows a script."""
    return agents.Subagent(name=name, description="helps", model=StepModel(*replies), **{"tools": [], **options})


async def boss(home: Home, *replies: Any, subagents: list[agents.Subagent], **options: Any) -> agents.Session:
    """A session of an agent that follows a script and has subagents."""
    agent = await home.agent(StepModel(*replies), subagents=subagents, **options)
    return await agent.start_session()


async def only_child(session: agents.Session) -> agents.Session:
    """The one subagent's session, once it is there."""
    (child,) = await eventually(session.subagents, "a subagent's session", until=lambda found: len(found) == 1)
    return child


async def results(session: agents.Session) -> list[agents.ToolResultEntry]:
    return entries_of(await stored(session), agents.ToolResultEntry)


def asking(name: str = HELPER, **options: Any) -> agents.Subagent:
    """A subagent whose call must be allowed."""
    replies = ([call("add", a=1, b=2)], ["three"])
    return helper(*replies, name=name, **{"tools": [add], "permission_mode": "ask", **options})


# One child.


async def test_a_subagents_answer_is_its_calls_result(home: Home) -> None:
    session = await boss(home, ["let me ask", spawn("What is it?")], subagents=[helper(["It is blue."])])
    state = done(await session.run("hi"))

    assert state.output == "done"
    assert state.tool_calls == (
        agents.ToolCall(name="agents.spawn", arguments={"agent": HELPER, "task": "What is it?"}),
    )
    (result,) = await results(session)
    child = await only_child(session)
    assert (content_text(result.content), result.is_error, result.meta) == (
        "It is blue.",
        False,
        {"session_id": child.id},
    )
    events = await stored(session)
    expect_pairs(events)
    assert words(events).endswith(
        "=call | +result | =result | +assistant | TextDelta | =assistant | turn terminated | ended Completed | session waiting"
    )


async def test_a_childs_log_is_that_of_a_session_whose_message_has_a_sender(home: Home) -> None:
    session = await boss(home, [spawn("What is it?")], subagents=[helper(["It is blue."])])
    await session.run("hi")
    child = await only_child(session)
    events = await stored(child)

    assert words(events) == (
        "+message | =message | TurnStarted | session running | +assistant | TextDelta | =assistant | turn terminated | "
        "ended Completed | session waiting"
    )
    (task,) = entries_of(events, agents.UnknownEntry)
    assert task.type == "message"
    assert task.raw["sender"] == {"session_id": session.id, "agent": "agent1"}
    assert task.raw["content"] == [{"type": "text", "text": "What is it?"}]
    info = await child.info()
    assert (info.agent_name, info.parent_id, info.root_id, info.status) == (HELPER, session.id, session.id, "waiting")


async def test_the_model_is_told_of_subagents_and_the_child_of_its_task_alone(home: Home) -> None:
    model, below = StepModel([spawn("What is it?")]), StepModel(["blue"])
    child = agents.Subagent(name=HELPER, description="knows colors", model=below, instructions="Be brief.")
    agent = await home.agent(model, instructions="Be kind.", tools=[add], subagents=[child])
    await (await agent.start_session()).run("hi")

    (spec,) = [tool for tool in model.requests[0].tools if tool.id == "agents.spawn"]
    assert "helper: knows colors" in spec.description
    assert spec.parameters["properties"]["agent"]["enum"] == [HELPER]
    (asked,) = below.requests
    assert below.user_texts() == ["What is it?"]
    assert asked.instructions == "Be brief."
    assert [tool.id for tool in asked.tools] == ["client.add", "agents.spawn"]


async def test_a_subagent_inherits_what_it_leaves_unset(home: Home) -> None:
    model = StepModel([spawn("one")], [call("add", a=1, b=2)], ["three"])

    def script(request: agents.ModelRequest) -> agents.ScriptedReply:
        return agents.ScriptedReply(text=f"{request.instructions} {request.temperature} {request.reasoning_effort}")

    inherits = agents.Subagent(name=HELPER, description="helps", model=agents.ScriptedModel(script))
    options: dict[str, Any] = {"instructions": "Be kind.", "temperature": 0.5, "reasoning_effort": "low"}
    session = await boss(home, [spawn("one")], subagents=[inherits], **options)
    await session.run("hi")
    assert [content_text(result.content) for result in await results(session)] == ["Be kind. 0.5 low"]
    assert model.requests == []


async def test_a_session_input_reaches_a_subagents_tools(home: Home) -> None:
    class Org(agents.SessionInput):
        input_id: ClassVar[str] = "org"
        name: str

    @agents.tool
    async def org_name(org: Annotated[Org, agents.Depends()]) -> str:
        """Name it."""
        return org.name

    below = helper([call("org_name")], ["ok"], tools=[org_name])
    agent = await home.agent(StepModel([spawn("go")]), subagents=[below])
    session = await agent.start_session(session_inputs={"org": {"name": "Acme"}})
    await session.run("hi")
    (result,) = await results(await only_child(session))
    assert content_text(result.content) == "Acme"


async def test_a_subagent_with_an_output_type_gives_structured_content(home: Home) -> None:
    from pydantic import BaseModel

    class Color(BaseModel):
        name: str

    session = await boss(home, [spawn("go")], subagents=[helper(['{"name": "blue"}'], output_type=Color)])
    await session.run("hi")
    (result,) = await results(session)
    assert result.structured_content == {"name": "blue"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"agent": "nobody", "task": "go"}, "There is no subagent 'nobody'. Known: helper."),
        ({"agent": HELPER}, "The arguments do not fit agents.spawn: task: Field required."),
        ({"agent": HELPER, "task": " "}, "The arguments do not fit agents.spawn: task: it is empty."),
        (None, "The arguments do not fit agents.spawn"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_error_that_the_model_reads(
    home: Home, arguments: Any, said: str
) -> None:
    session = await boss(home, [agents.ScriptedCall("agents.spawn", arguments)], subagents=[helper(["x"])])
    assert done(await session.run("hi")).output == "done"
    (result,) = await results(session)
    assert result.is_error
    assert said in content_text(result.content)
    assert await session.subagents() == []


async def test_a_subagent_that_fails_is_a_failed_call(home: Home) -> None:
    failing = helper([agents.ModelError("no such model", code="bad_request")])
    session = await boss(home, [spawn("go")], subagents=[failing])
    assert done(await session.run("hi")).output == "done"
    (result,) = await results(session)
    assert (result.is_error, content_text(result.content)) == (True, "The subagent helper failed: no such model")


@pytest.mark.parametrize("text", ["", "so far"])
async def test_a_subagent_that_stopped_at_its_limit_says_so(home: Home, text: str) -> None:
    limited = helper([*([text] if text else []), call("add", a=1, b=2)], ["never"], tools=[add], max_iterations=1)
    session = await boss(home, [spawn("go")], subagents=[limited])
    done(await session.run("hi"))

    (result,) = await results(session)
    said = "The subagent helper stopped at its limit of replies, before it had finished."
    assert [content_text([block]) for block in result.content] == [*([text] if text else []), said]


async def test_a_long_answer_comes_whole(home: Home) -> None:
    text = "long " * 40_000
    session = await boss(home, [spawn("go")], subagents=[helper([text])])
    await session.run("hi")
    (result,) = await results(session)
    assert content_text(result.content) == text


# Many children.


async def test_children_of_one_reply_work_side_by_side_and_the_parent_holds_no_worker(home: Home) -> None:
    gate = Gate()
    one, two = helper([gate, "one"], name="one"), helper([gate, "two"], name="two")
    session = await boss(home, [spawn("go", "one"), spawn("go", "two")], subagents=[one, two])
    turn = started(await session.start_turn("hi"))

    async def parked() -> str:
        return str(await home.broker.reads.command("HGET", home.broker.keys.of("session", session.id), "job"))

    await eventually(parked, "the parent is parked", until=lambda job: "parked" in job)
    gate.open.set()
    assert done(await turn.result()).output == "done"
    assert sorted(content_text(result.content) for result in await results(session)) == ["one", "two"]


async def test_over_the_limit_a_spawn_waits_for_another_to_end(home: Home) -> None:
    gates = [Gate() for _ in range(5)]
    running, most = 0, 0

    @agents.tool
    async def work(at: int) -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await gates[at].wait()
        running -= 1
        return "ok"

    below = [helper([call("work", at=at)], [str(at)], name=f"h{at}", tools=[work]) for at in range(5)]
    policy = agents.SubagentPolicy(concurrent_child_turn_limit=2)
    replies = [spawn("go", f"h{at}") for at in range(5)]
    session = await boss(home, replies, subagents=below, subagent_policy=policy)
    turn = started(await session.start_turn("hi"))
    await gates[0].reached.wait()
    await gates[1].reached.wait()
    assert not any(gate.reached.is_set() for gate in gates[2:])
    for gate in gates:
        await gate.reached.wait()
        assert running <= 2
        gate.open.set()
    done(await turn.result())
    assert most == 2
    assert [content_text(result.content) for result in await results(session)] == ["0", "1", "2", "3", "4"]


async def test_the_lowest_level_cannot_spawn(home: Home) -> None:
    lowest = StepModel(["low"])
    inner = agents.Subagent(name="inner", description="i", model=lowest)
    outer = agents.Subagent(name="outer", description="o", model=StepModel([spawn("go", "inner")]), subagents=[inner])
    session = await boss(home, [spawn("go", "outer")], subagents=[outer])
    done(await session.run("hi"))
    assert [tool.id for tool in lowest.requests[0].tools] == []
    (child,) = await session.subagents()
    (grandchild,) = await child.subagents()
    info = await grandchild.info()
    assert (info.parent_id, info.root_id) == (child.id, session.id)
    assert [found.id async for found in agents.list_sessions(scope="tree", root=session.id)] == [
        grandchild.id,
        child.id,
        session.id,
    ]
    assert [found.id async for found in agents.list_sessions()] == [session.id]


async def test_subagents_are_listed_newest_first(home: Home) -> None:
    session = await boss(home, [spawn("one")], [spawn("two")], subagents=[helper(["ok"])])
    await session.run("hi")
    newest, oldest = await session.subagents()
    assert [(await child.info()).preview for child in (newest, oldest)] == ["two", "one"]
    assert newest == agents.session(newest.id)


async def test_subagents_of_one_reply_are_in_the_order_of_their_calls(home: Home) -> None:
    session = await boss(home, [spawn(f"task {n}") for n in range(5)], subagents=[helper(["ok"])])
    await session.run("hi")
    previews = [(await child.info()).preview for child in await session.subagents()]
    assert previews == [f"task {n}" for n in (4, 3, 2, 1, 0)]


# Ends.


async def test_what_a_subagents_handle_refuses(home: Home) -> None:
    agent = await home.agent(StepModel([spawn("go")]), subagents=[asking()])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    (callback,) = blocked(await turn.result()).callbacks
    (listed,) = await session.subagents()
    for child in (listed, agent.session(listed.id), agents.session(listed.id)):
        (below,) = await child.turns()
        for refused in (
            child.send_message("x"),
            child.start_turn("x"),
            child.run("x"),
            child.cancel(),
            below.steer("x"),
        ):
            with pytest.raises(agents.UnsupportedSessionProcedureError, match=child.id):
                await refused
    await turn.answer(callback.id, ALLOW)
    done(await turn.result())


async def test_interrupting_a_childs_turn_fails_its_call_and_the_parent_goes_on(home: Home) -> None:
    session = await boss(home, [spawn("go")], subagents=[asking()])
    turn = started(await session.start_turn("hi"))
    blocked(await turn.result())
    (child,) = await session.subagents()
    (below,) = await child.turns()
    assert await below.interrupt() is below
    assert done(await turn.result()).output == "done"
    (result,) = await results(session)
    assert result.is_error
    assert "was stopped" in content_text(result.content)
    assert words(await stored(session)).count("turn blocked | turn running") == 1
    assert isinstance(await below.get(), agents.Interrupted)


async def test_an_interrupt_ends_the_turns_below_and_leaves_the_sessions_open(home: Home) -> None:
    outer = helper([spawn("go", "inner")], name="outer", subagents=[asking("inner")])
    session = await boss(home, [spawn("go", "outer")], ["again"], subagents=[outer])
    turn = started(await session.start_turn("hi"))
    (callback,) = blocked(await turn.result()).callbacks
    await turn.interrupt()
    (child,) = await session.subagents()
    (grandchild,) = await child.subagents()
    for each in (session, child, grandchild):
        events = await stored(each)
        expect_pairs(events)
        (last,) = await each.turns()
        state = await last.get()
        assert isinstance(state, agents.Interrupted)
        assert state.cause == "interrupted"
        assert (await each.info()).status == "waiting"
    assert await turn.answer(callback.id, ALLOW) == agents.NotFound()
    assert done(await session.run("go on")).output == "again"


async def test_a_cancel_ends_every_session_below(home: Home) -> None:
    outer = helper([spawn("go", "inner")], name="outer", subagents=[asking("inner")])
    session = await boss(home, [spawn("go", "quick")], [spawn("go", "outer")], subagents=[outer, helper(name="quick")])
    turn = started(await session.start_turn("hi"))
    blocked(await turn.result())
    await session.cancel()
    children = await session.subagents()
    everyone = [session, *children, *await children[0].subagents()]
    assert len(everyone) == 4
    for each in everyone:
        assert (await each.info()).status == "terminated"
        assert words(await stored(each)).endswith("session terminated")
        assert [event async for event in each.iter_events()] == await stored(each)
    state = await turn.get()
    assert isinstance(state, agents.Interrupted)
    assert state.cause == "cancelled"
    expect_pairs(await stored(session))


async def test_a_session_of_one_turn_ends_with_its_subagents(home: Home) -> None:
    agent = await home.agent(StepModel([spawn("go")]), subagents=[helper(["ok"])])
    state = done(await agent.run("hi"))
    (child,) = await agent.session(state.session_id).subagents()
    assert (await child.info()).status == "terminated"


async def test_a_full_broker_starts_no_subagent_and_the_turn_goes_on(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker has no limit of memory")
    full = Gate()
    session = await boss(home, ["wait", full, spawn("go")], ["sorry"], subagents=[helper(["x"])])
    turn = started(await session.start_turn("hi"))
    await full.reached.wait()
    await home.broker.commands.command("CONFIG", "SET", "maxmemory", "1")
    try:
        full.open.set()
        assert done(await turn.result()).output == "sorry"
    finally:
        await home.broker.commands.command("CONFIG", "SET", "maxmemory", "0")
    (result,) = await results(session)
    assert "takes no new work" in content_text(result.content)
    assert await session.subagents() == []
