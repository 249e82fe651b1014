"""Limits as an application sees them: questions that nobody answers, sessions that nobody uses, turns that hang."""

from __future__ import annotations

import asyncio
from typing import Any

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
    blocked,
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
from api_shim.listing import list_sessions
from broker.deadlines import expire
from broker.protocol.content import content_text
from workers import housekeeping

DAY = 86_400


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look at once; what would be due in days is reached by the clock that only tests move."""
    monkeypatch.setattr(housekeeping, "LOOK_S", 0.05)


@pytest.fixture
def hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment whose questions stand for an hour."""
    monkeypatch.setenv("TURNSTREAM_CALLBACK_TIMEOUT", "3600")


async def later(home: Home, seconds: float) -> None:
    """Let so much time have passed since the test began."""
    await home.broker.commands.command("SET", f"{home.broker.keys.base(0)}clock", int(seconds * 1000))


async def look(home: Home) -> None:
    """Let everything that is due have happened."""
    while (await expire(home.broker, 0)).wait == 0:
        pass


async def record(turn: agents.Turn) -> object:
    """Wait until a turn has ended, and return its record."""
    return await eventually(
        turn.get, "the turn ends", until=lambda state: not isinstance(state, agents.Running | agents.Blocked), within=10
    )


async def ended(session: agents.Session) -> agents.SessionInfo:
    """Wait until a session has ended, read to its end; what is then told of it."""
    async with asyncio.timeout(10):
        async for _ in session.iter_events():
            pass
    return await session.info()


# Callbacks.


@pytest.mark.usefixtures("hour")
async def test_an_approval_that_expires_fails_its_call_and_the_turn_goes_on(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    await later(home, 3601)

    done(await record(turn))

    events = await stored(session)
    expect_pairs(events)
    result = "+result | =result"
    assert words(events) == spelled(STARTED, ASKED, ANSWERED, result, REPLIED, ENDED)
    (entry,) = entries_of(events, agents.ToolResultEntry)
    assert entry.is_error
    assert content_text(entry.content) == "client.add was not run: nobody answered in time."
    for answer in (agents.AllowApproval(), agents.DenyApproval("late")):
        assert await turn.answer(callback.id, answer) == agents.AlreadySettled()


@pytest.mark.usefixtures("hour")
async def test_expired_denied_and_refused_read_differently(home: Home) -> None:
    model = StepModel([call("add", a=1, b=2)], [call("add", a=1, b=2)])
    agent = await home.agent(model, tools=[add], permission_mode="ask")
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await turn.answer((await opened(turn)).id, agents.DenyApproval())
    await seen(session, "=result")
    await eventually(turn.get, "it asks again", until=lambda state: isinstance(state, agents.Blocked))
    await later(home, 3601)
    done(await record(turn))
    other = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], permission_mode="deny")
    refusing = await other.start_session()
    done(await refusing.run("hi"))

    texts = [
        content_text(entry.content)
        for each in (session, refusing)
        for entry in entries_of(await stored(each), agents.ToolResultEntry)
    ]
    assert len({text.partition(": ")[2] for text in texts}) == 3


@pytest.mark.usefixtures("hour")
async def test_a_client_tool_s_call_expires(home: Home) -> None:
    agent = await home.agent(StepModel([call("ask_color", of="sky")], ["never mind"]), tools=[ask_color])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    await later(home, 3601)

    state = done(await record(turn))

    assert (state.text, len(state.tool_calls)) == ("never mind", 1)
    assert await turn.answer(callback.id, "blue") == agents.AlreadySettled()
    (entry,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert "nobody answered in time" in content_text(entry.content)


@pytest.mark.usefixtures("hour")
async def test_a_handler_at_work_is_cancelled_when_its_callback_expires(home: Home) -> None:
    told: list[str] = []
    begun = asyncio.Event()

    async def handler(_ctx: object, _request: object) -> agents.AllowApproval:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append("cancelled")
        return agents.AllowApproval()

    session = await (await home.asking()).start_session(on_approval=handler)
    running = asyncio.create_task(session.run("hi"))
    await begun.wait()
    await later(home, 3601)

    done(await asyncio.wait_for(running, 10))
    assert told == ["cancelled"]


@pytest.mark.usefixtures("hour")
async def test_an_approved_client_tool_has_the_whole_time_for_its_result(home: Home) -> None:
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[ask_color], permission_mode="ask")
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    approval = await opened(turn)
    await later(home, 3000)
    await turn.answer(approval.id, agents.AllowApproval())
    await seen(session, "turn running")
    client = (await opened(turn)).id

    await later(home, 4000)
    await look(home)
    blocked(await turn.get())
    assert client != approval.id
    await later(home, 6700)
    done(await record(turn))


@pytest.mark.usefixtures("hour")
async def test_a_sign_in_that_expires_leaves_its_source_out(home: Home) -> None:
    wiki = agents.Connector(
        "wiki", url="https://wiki.example/mcp", sign_in_url="https://wiki.example/login", credentials=lambda _ctx: None
    )
    session = await (await home.agent(StepModel(["without"]), connectors=[wiki])).start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    await later(home, 3601)

    assert done(await record(turn)).text == "without"
    told = [event.details for event in await stored(session) if isinstance(event, agents.Notice)]
    assert [details["reason"] for details in told if isinstance(details, dict)] == ["credential_unavailable"]
    assert await turn.answer(callback.id, agents.SignInAnswer(denied=(wiki.id,))) == agents.AlreadySettled()


async def test_without_a_timeout_a_question_stands(home: Home) -> None:
    """For a week, and then takes its answer."""
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)
    await later(home, 7 * DAY)
    await look(home)
    blocked(await turn.get())

    assert await turn.answer(callback.id, agents.AllowApproval()) == agents.Answered(agents.AllowApproval(), session.id)
    done(await record(turn))


# Sessions.


async def test_a_session_that_nobody_uses_is_ended_after_30_days(home: Home) -> None:
    agent = await home.asking()
    unused, used = await agent.start_session(), await agent.start_session()
    turn = started(await used.start_turn("hi"))
    await opened(turn)
    await later(home, 30 * DAY - 60)
    assert (await unused.info()).termination is None

    await later(home, 30 * DAY + 60)

    for session in (unused, used):
        info = await ended(session)
        assert (info.status, info.termination) == ("terminated", "idle_limit")
        with pytest.raises(agents.SessionTerminatedError):
            await session.start_turn("more")
    state = await record(turn)
    assert isinstance(state, agents.Interrupted)
    assert state.cause == "idle_limit"
    assert words(await stored(unused)) == "session terminated"
    events = await stored(used)
    expect_pairs(events)
    assert words(events).endswith("turn terminated | ended Interrupted | session terminated")


async def test_a_session_s_lifetime_is_a_setting(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends whatever it does, here in the middle of a reply."""
    monkeypatch.setenv("TURNSTREAM_SESSION_LIFETIME", "600")
    gate = Gate()
    agent = await home.agent(StepModel(["half", gate, "never"]))
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    await seen(session, "+assistant")
    await later(home, 601)

    state = await record(turn)

    assert isinstance(state, agents.Interrupted)
    assert (state.cause, state.text) == ("lifetime_limit", "half")
    assert (await ended(session)).termination == "lifetime_limit"


async def test_the_listing_says_how_a_session_ended(home: Home) -> None:
    agent = await home.agent(StepModel())
    cancelled, alive = await agent.start_session(), await agent.start_session()
    await cancelled.cancel()
    done(await agent.run("hi"))

    told = {info.id: info.termination async for info in list_sessions(host=home.url)}

    assert (told.pop(cancelled.id), told.pop(alive.id)) == ("cancelled", None)
    assert list(told.values()) == ["ended"]


# Turns.


async def test_a_turn_that_hangs_fails_after_35_minutes_without_progress(home: Home) -> None:
    """Its tool has a limit of its own, longer than that; the worker lives, and renews its lease."""
    begun, stopped = asyncio.Event(), asyncio.Event()

    @agents.tool(timeout=7200)
    async def hang() -> None:
        """Hang."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    agent = await home.agent(StepModel([call("hang")], ["next"]), tools=[hang])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await begun.wait()
    await seen(session, "+result")
    await later(home, 34 * 60)
    await look(home)
    assert isinstance(await turn.get(), agents.Running)

    await later(home, 35 * 60 + 1)

    state = await record(turn)
    assert isinstance(state, agents.Failed)
    assert state.error.code == "no_progress"
    await asyncio.wait_for(stopped.wait(), 10)
    expect_pairs(await stored(session))
    done(await session.run("again", timeout=10))


async def test_a_turn_has_as_many_replies_as_its_agent_says_and_the_next_turn_as_many_again(home: Home) -> None:
    endless = StepModel(*([call("add", a=at, b=1)] for at in range(9)))
    session = await (await home.agent(endless, tools=[add], max_iterations=2)).start_session()

    for _ in range(2):
        state = done(await session.run("hi", timeout=10))
        assert (state.stop_reason, len(state.tool_calls)) == ("iteration_limit", 2)
    expect_pairs(await stored(session))
    assert len(endless.requests) == 4


async def test_the_limit_of_replies_counts_over_a_wait_for_an_answer(home: Home) -> None:
    """What the log holds counts, whichever worker took it up."""
    agent = await home.asking(*([call("add", a=at, b=1)] for at in range(9)), max_iterations=2)
    session = await agent.start_session(on_approval=lambda _ctx, _request: agents.AllowApproval())

    state = done(await session.run("hi", timeout=10))

    assert (state.stop_reason, len(state.tool_calls)) == ("iteration_limit", 2)


async def test_a_tool_past_the_limit_of_the_deployment_is_stopped_and_the_turn_goes_on(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTREAM_TOOL_TIMEOUT", "0.05")

    @agents.tool
    async def hang() -> None:
        """Hang."""
        await asyncio.Event().wait()

    session = await (await home.agent(StepModel([call("hang")], ["went on"]), tools=[hang])).start_session()

    assert done(await session.run("hi", timeout=10)).text == "went on"
    (entry,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert content_text(entry.content) == "client.hang did not end within 0.05 s and was stopped."


# Subagents.


def spawn(task: str) -> agents.ScriptedCall:
    """A call that starts the subagent."""
    return agents.ScriptedCall("agents.spawn", {"agent": "helper", "task": task})


async def tree(home: Home, *replies: Any, **options: Any) -> tuple[agents.Turn, agents.Session]:
    """A turn that waits for its subagent, which follows a script; and the subagent's session."""
    below = agents.Subagent(name="helper", description="helps", model=StepModel(*replies), **options)
    agent = await home.agent(StepModel([spawn("go")]), subagents=[below])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    (child,) = await eventually(session.subagents, "a subagent's session", until=lambda found: len(found) == 1)
    return turn, child


@pytest.mark.usefixtures("hour")
async def test_a_subagent_s_question_expires_and_both_turns_go_on(home: Home) -> None:
    turn, child = await tree(home, [call("add", a=1, b=2)], ["so be it"], tools=[add], permission_mode="ask")
    callback = await opened(turn)
    await later(home, 3601)

    done(await record(turn))

    assert "turn blocked | turn running" in words(await stored(turn._session))
    (entry,) = entries_of(await stored(child), agents.ToolResultEntry)
    assert "nobody answered in time" in content_text(entry.content)
    (result,) = entries_of(await stored(turn._session), agents.ToolResultEntry)
    assert content_text(result.content) == "so be it"
    assert (
        await child.turn(callback.turn_id or "").answer(callback.id, agents.AllowApproval()) == agents.AlreadySettled()
    )


async def test_a_session_is_not_idle_while_its_subagent_works(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_IDLE_LIMIT", "600")
    gate = Gate()
    turn, child = await tree(home, ["half", gate, "whole"])
    await gate.reached.wait()
    for minutes in (11, 22, 33):
        await later(home, minutes * 60)
        await look(home)
    assert isinstance(await turn.get(), agents.Running)

    gate.open.set()

    done(await record(turn))
    await later(home, 43 * 60 + 60)
    assert ((await ended(turn._session)).termination, (await child.info()).termination) == ("idle_limit", "idle_limit")


@pytest.mark.parametrize("limit", ["idle_limit", "lifetime_limit"])
async def test_a_tree_ends_with_its_root(home: Home, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    if limit == "lifetime_limit":
        monkeypatch.setenv("TURNSTREAM_SESSION_LIFETIME", "600")
    turn, child = await tree(home, [call("add", a=1, b=2)], tools=[add], permission_mode="ask")
    callback = await opened(turn)
    await later(home, 601 if limit == "lifetime_limit" else 30 * DAY + 60)

    for state in (await record(turn), await record(child.turn(callback.turn_id or ""))):
        assert isinstance(state, agents.Interrupted)
        assert state.cause == limit
    assert [(await ended(each)).termination for each in (turn._session, child)] == [limit, limit]
    for each in (turn._session, child):
        expect_pairs(await stored(each))


async def test_a_subagent_that_hangs_fails_and_its_parent_is_told(home: Home) -> None:
    begun = asyncio.Event()

    @agents.tool(timeout=7200)
    async def hang() -> None:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()

    turn, child = await tree(home, [call("hang")], tools=[hang])
    await begun.wait()
    await seen(child, "+result")
    await later(home, 35 * 60 + 1)

    done(await record(turn))

    (result,) = entries_of(await stored(turn._session), agents.ToolResultEntry)
    assert result.is_error
    assert words(await stored(child)).endswith("turn terminated | ended Failed | session waiting")


async def test_a_session_that_ends_by_itself_says_so_of_its_subagents_too(home: Home) -> None:
    below = agents.Subagent(name="helper", description="helps", model=StepModel(["yes"]))
    agent = await home.agent(StepModel([spawn("go")]), subagents=[below])
    session = agent.session(done(await agent.run("hi")).session_id)

    (child,) = await session.subagents()

    assert ((await session.info()).termination, (await child.info()).termination) == ("ended", "ended")
