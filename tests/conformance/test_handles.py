"""Handles, sessions as they are opened, listed and described, and what a session gives its tools."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from typing import Annotated, Any, ClassVar

import pytest
from agents_for_tests import (
    Gate,
    Home,
    StepModel,
    add,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    opened,
    started,
    stored,
    words,
)
from pydantic import BaseModel, field_validator
from real_server import RealServer

import api_shim as agents
from broker.protocol.content import content_text

UNKNOWN = "00000000-0000-4000-8000-000000000000"


# Handles.


async def test_handles_of_one_session_in_one_place_are_equal(home: Home) -> None:
    agent, other = await home.agent(StepModel()), await home.agent(StepModel())
    session = await agent.start_session()
    same = [agent.session(session.id), other.session(session.id), agents.session(session.id)]
    if home.url is not None:
        same.append(agents.Agent.load_from(agent_name=agent.name).session(session.id))
        same.append(agents.Agent.load_from(agent_id="any", url=home.url).session(session.id))

    assert {session, *same} == {session}
    assert await agent.start_session() != session
    assert session != session.id
    elsewhere = agents.Agent.load_from(agent_name="a", url="redis://elsewhere:1/0").session(session.id)
    assert elsewhere != session


async def test_turn_handles_are_equal_by_session_and_id(home: Home) -> None:
    agent = await home.agent(StepModel())
    session, other = await agent.start_session(), await agent.start_session()
    turn = started(await session.start_turn("hi"))
    same = agent.session(session.id).turn(turn.id)

    assert turn == same
    assert (turn.started, same.started) == (True, None)
    assert {turn, same} == {turn}
    assert session.turn(UNKNOWN) != turn
    assert other.turn(turn.id) != turn
    await turn.result()


def test_making_a_handle_sends_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        url = f"redis://127.0.0.1:{listening.getsockname()[1]}/0"
        agents.connect(url)
        try:
            loaded = agents.Agent.load_from(agent_name="a")
            agent = agents.Agent(model="scripted:echo")
            for session in (agents.session("any"), agent.session("any"), loaded.session("any")):
                turn = session.turn("any turn")
                assert (session.id, turn.id, turn.started) == ("any", "any turn", None)
        finally:
            agents.connect(None)
        with pytest.raises(TimeoutError):
            listening.accept()
    with pytest.raises(ValueError, match="agent_name"):
        agents.Agent.load_from()
    with pytest.raises(ValueError, match="agent_name"):
        agents.Agent.load_from(agent_name="a", agent_id="a")


async def test_handles_of_one_id_in_two_places_differ(real_server: RealServer) -> None:
    places = (real_server.url, real_server.url.replace("/0", "/1"), None, real_server.url)
    handles = []
    for place in places:
        agents.connect(place)
        handles.append(agents.session("any"))
    agents.connect(None)

    first, other, embedded, again = handles
    assert first == again
    assert len({first, other, embedded}) == 3
    assert len({handle.turn("t") for handle in handles}) == 3


async def test_a_stored_id_gives_the_session_back(home: Home) -> None:
    agent = await home.agent(StepModel())
    session = await agent.start_session()
    done(await session.run("hi"))
    log = await stored(session)
    again, observer = agent.session(session.id), agents.session(session.id)

    assert again.id == observer.id == session.id
    assert await stored(again) == await stored(observer) == log
    done(await again.run("more"))


class Sum(BaseModel):
    total: int


async def test_both_ways_to_a_session_keep_the_agent_s_output_type(home: Home) -> None:
    text = '{"total": 3}'
    agent = await home.agent(StepModel([text], [text], [text]), output_type=Sum)
    session = await agent.start_session()

    for handle, output in (
        (session, Sum(total=3)),
        (agent.session(session.id), Sum(total=3)),
        (agents.session(session.id), text),
    ):
        state = done(await handle.run("hi"))
        turn = handle.turn(state.turn_id)
        assert state.output == done(await turn.get()).output == done(await turn.result()).output == output


async def test_a_turn_just_sent_is_never_not_found(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    busy = await session.start_turn("other")
    assert isinstance(busy, agents.Busy)
    steered = await turn.steer("more")
    assert isinstance(steered, agents.Turn)

    for sent in (turn, busy.turn, steered, await session.send_message("and more")):
        assert isinstance(await sent.get(), agents.Running)
        assert isinstance(await sent.result(timeout=0), agents.Running)
        assert (await anext(sent.iter_events())).turn_id == turn.id
    gate.open.set()
    new = await (await home.agent(StepModel())).start_session()
    first = await new.send_message("hi")
    assert isinstance(await first.get(), agents.Running | agents.Completed)
    done(await first.result())
    done(await turn.result())


async def test_a_handle_of_an_agent_that_workers_serve_opens_and_runs_sessions(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker's agents live in the same process")
    await home.agent(StepModel(["Hello"]), name="served")
    loaded = agents.Agent.load_from(agent_name="served")

    assert done(await loaded.run("hi")).output == "Hello"
    with pytest.raises(agents.SdkError):
        _ = loaded.definition


async def test_an_observer_without_an_agent_reads_steers_and_ends(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    observer = agents.session(session.id)

    assert isinstance(await observer.turn(turn.id).get(), agents.Running)
    assert await observer.turn(turn.id).steer("more") == turn
    assert await observer.turn(turn.id).interrupt() == turn
    await observer.cancel()
    assert words([event async for event in observer.iter_events()]).endswith("session terminated")


def test_a_program_that_only_observes_loads_no_worker() -> None:
    script = "import sys, api_shim as agents; agents.session('s').turn('t'); print([m for m in sys.modules if 'workers' in m])"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "[]"


async def test_a_session_without_subagents_has_none(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()

    assert await session.subagents() == []


# Opening.


async def test_opening_a_session_appends_no_event(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session(title="Alert 4711")

    assert await stored(session) == []
    assert (await session.info()).title == "Alert 4711"
    await session.run("hi")
    assert {event.title for event in await stored(session) if isinstance(event, agents.SessionUpdated)} == {
        "Alert 4711"
    }


async def test_the_same_key_opens_the_same_session_and_other_options_are_a_conflict(home: Home) -> None:
    agent = await home.agent(StepModel())
    session = await agent.start_session(idempotency_key="k", title="one")
    again = await agent.start_session(idempotency_key="k", title="one")

    assert again == session
    for options in ({"title": "two"}, {}, {"title": "one", "agent": {"additional_instructions": "x"}}):
        with pytest.raises(agents.SessionIdempotencyConflictError) as conflict:
            await agent.start_session(idempotency_key="k", **options)
        assert conflict.value.idempotency_key == "k"
    assert await agent.start_session(idempotency_key="other", title="one") != session
    assert await agent.start_session(title="one") != session


@pytest.mark.parametrize("kind", ["class", "mapping", "camelCase"])
async def test_a_session_s_customization_reaches_the_model(home: Home, kind: str) -> None:
    model = StepModel()
    agent = await home.agent(model, instructions="Be brief.", temperature=0.5, reasoning_effort="low")
    given = {"additional_instructions": "Speak French.", "reasoning_effort": "high"}
    camel = {"additionalInstructions": "Speak French.", "reasoningEffort": "high"}
    kinds = {"class": agents.SessionAgentCustomization(**given), "mapping": given, "camelCase": camel}
    changed: Any = kinds[kind]
    await (await agent.start_session(agent=changed)).run("hi")
    await (await agent.start_session()).run("hi")

    first, second = model.requests
    assert first.instructions is not None
    assert first.instructions.index("Be brief.") < first.instructions.index("Speak French.")
    assert (first.reasoning_effort, first.temperature) == ("high", 0.5)
    assert (second.instructions, second.reasoning_effort) == ("Be brief.", "low")
    with pytest.raises(ValueError, match="agent"):
        await agent.start_session(agent={"colour": "red"})


# Telling about sessions.


async def test_info_tells_status_title_preview_and_end(home: Home) -> None:
    gate = Gate()
    agent = await home.agent(StepModel([gate]))
    session = await agent.start_session()
    info = await session.info()
    assert (info.id, info.agent_name, info.status, info.title) == (session.id, agent.name, "waiting", None)
    assert (info.archived, info.parent_id, info.root_id, info.preview) == (False, None, session.id, None)
    assert info.termination is None
    assert info.created_at.tzinfo is not None

    turn = started(await session.start_turn("Review\nthis  alert"))
    assert (await session.info()).status == "running"
    gate.open.set()
    await turn.result()
    info = await session.info()
    assert (info.status, info.preview) == ("waiting", "Review this alert")
    assert info.updated_at >= info.created_at
    await session.cancel()
    info = await session.info()
    assert info.status == "terminated"
    assert info.termination
    with pytest.raises(agents.SessionNotFoundError):
        await agent.session(f"0-{UNKNOWN}").info()


async def test_sessions_are_listed_newest_first(home: Home) -> None:
    agent, other = await home.agent(StepModel()), await home.agent(StepModel())
    first = await agent.start_session()
    await asyncio.sleep(0.002)  # listings order by milliseconds
    second = await other.start_session()
    await asyncio.sleep(0.002)
    third = await agent.start_session()
    await first.cancel()
    await second.archive()

    async def ids(**options: Any) -> list[str]:
        return [info.id async for info in agents.list_sessions(**options)]

    assert await ids() == [third.id, first.id]
    assert await ids(limit=1) == [third.id]
    assert await ids(status="terminated") == [first.id]
    assert await ids(status="waiting", agent_name=agent.name) == [third.id]
    assert await ids(agent_name=other.name) == []
    assert await ids(archived=True) == [second.id]
    assert await ids(scope="tree", root=first.id) == [first.id]
    assert await ids(scope="children", parent=first.id) == []
    for options in ({"scope": "children"}, {"scope": "tree"}):
        with pytest.raises(ValueError, match="scope"):
            await ids(**options)


async def test_a_title_and_the_archive_are_events_of_the_session_even_while_a_turn_runs(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    await session.rename("Alert 4711")
    await session.rename("Alert 4711")
    await session.archive()
    log = await stored(session)

    assert [(event.status, event.title, event.archived, event.turn_id) for event in log[-2:]] == [  # type: ignore[attr-defined] # SessionUpdated
        ("running", "Alert 4711", False, None),
        ("running", "Alert 4711", True, None),
    ]
    assert words(log[-3:-2]) == "session running", "a title that stays is no change"
    gate.open.set()
    await turn.result()
    await session.archive(False)
    assert (await session.info()).archived is False
    with pytest.raises(TypeError, match="title"):
        await session.rename(7)  # type: ignore[arg-type] # that is the point


async def test_a_session_s_turns_come_oldest_first(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    ids = [done(await session.run(text)).turn_id for text in ("one", "two", "three")]

    turns = await session.turns()
    assert [turn.id for turn in turns] == ids
    assert [turn.started for turn in turns] == [None] * 3


async def test_history_gives_the_complete_entries_in_order(home: Home) -> None:
    session = await (await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add])).start_session()
    state = done(await session.run("one"))
    await session.run("two")
    log = await stored(session)
    entries = [event.entry for event in log if isinstance(event, agents.EntryCompleted)]

    assert [entry async for entry in session.history()] == entries
    assert [entry async for entry in session.history(limit=2)] == entries[:2]
    assert [entry async for entry in session.history(limit=0)] == []
    assert [entry async for entry in session.history(after=state)] == entries[4:]
    assert [entry async for entry in session.history(after=log[1].id)] == entries[1:]
    with pytest.raises(agents.InvalidCursorError):
        await anext(session.history(after="nonsense"))


# Session inputs.


class Repository(agents.SessionInput):
    input_id: ClassVar[str] = "repository"
    owner: str
    name: str

    @field_validator("owner")
    @classmethod
    def _known(cls, owner: str) -> str:
        if owner != "acme":
            raise ValueError("unknown owner")
        return owner


@agents.tool
def which(greeting: str, repository: Annotated[Repository, agents.Depends()]) -> str:
    """Say which repository this session is about."""
    return f"{greeting} {repository.owner}/{repository.name}"


@pytest.mark.parametrize("kind", ["class", "mapping"])
async def test_a_tool_reads_the_session_s_input_and_the_model_never_sees_it(home: Home, kind: str) -> None:
    model = StepModel([call("which", greeting="hi")])
    agent = await home.agent(model, tools=[which])
    value: Any = Repository(owner="acme", name="tools")
    given = {"repository": value if kind == "class" else value.model_dump()}
    assert "input_id" not in value.model_dump()
    session = await agent.start_session(session_inputs=given)
    done(await session.run("go"))

    assert "repository" not in repr(model.requests[0].tools[0].parameters)
    assert [content_text(entry.content) for entry in entries_of(await stored(session), agents.ToolResultEntry)] == [
        "hi acme/tools"
    ]
    state = done(await agent.run("go", session_inputs=given))
    assert state.tool_calls == (agents.ToolCall(name="client.which", arguments={"greeting": "hi"}),)


@pytest.mark.parametrize("given", [{}, {"repository": {"owner": "evil-secret", "name": "x"}}, {"repository": {}}])
async def test_an_input_that_is_refused_fails_its_use_and_never_tells_the_value(home: Home, given: Any) -> None:
    agent = await home.agent(StepModel([call("which", greeting="hi")]), tools=[which])
    session = await agent.start_session(session_inputs=given)
    done(await session.run("go"))

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.is_error
    assert "repository" in content_text(result.content)
    assert "evil-secret" not in content_text(result.content)
    if given.get("repository"):
        assert "unknown owner" in content_text(result.content)


async def test_a_mode_ask_turn_opened_elsewhere_is_answered_through_any_handle(home: Home) -> None:
    agent = await home.asking()
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    callback = await opened(turn)

    assert isinstance(
        await agents.session(session.id).turn(turn.id).answer(callback.id, agents.DenyApproval()), agents.Answered
    )
    done(await turn.result())
