"""Tool sources as an application sees them: real servers, their failures as events, and sign-ins as callbacks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents_for_tests import (
    Home,
    StepModel,
    blocked,
    done,
    entries_of,
    expect_pairs,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    seen,
    started,
    stored,
    words,
)
from sourcing import Vault, connector
from tool_servers import Case

import api_shim as agents
from workers.source_connection import Connection

NOTION = "connectors:notion"


def use(tool: str, **arguments: Any) -> agents.ScriptedCall:
    """A call of a tool by its full id."""
    return agents.ScriptedCall(tool, arguments)


async def notices(session: agents.Session) -> list[agents.Notice]:
    return [event for event in await stored(session) if isinstance(event, agents.Notice)]


async def messages(session: agents.Session) -> list[agents.ContextMessage]:
    return entries_of(await stored(session), agents.ContextMessage)


# Servers.


async def test_an_agent_uses_the_tools_of_a_server(home: Home, case: Case) -> None:
    agent = await home.agent(StepModel([use("mcp.box.add", a=1, b=2)]), mcps=[case.over_http()])
    session = await agent.start_session()
    state = done(await session.run("hi"))

    assert [call.name for call in state.tool_calls] == ["mcp.box.add"]
    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert (result.name, result.structured_content, result.is_error) == ("mcp.box.add", {"sum": 3}, False)
    assert result.meta["took"] == 3
    expect_pairs(await stored(session))


async def test_an_agent_uses_the_tools_of_a_program(home: Home, case: Case) -> None:
    agent = await home.agent(StepModel([use("mcp.box.whoami")]), mcps=[case.over_stdio(env={"MCP_TOKEN": "a"})])
    session = await agent.start_session()
    done(await session.run("hi"))

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.content == (agents.TextContentBlock(text="a"),)


async def test_a_call_asks_for_approval_under_its_full_id(home: Home, case: Case) -> None:
    asked: list[agents.ApprovalRequest] = []

    def allow(_ctx: object, request: agents.ApprovalRequest) -> agents.AllowApproval:
        asked.append(request)
        return agents.AllowApproval(scope="session")

    calls = [use("mcp.box.add", a=1, b=2)], [use("mcp.box.add", a=1, b=2)]
    agent = await home.agent(StepModel(*calls), mcps=[case.over_http()], permission_mode="ask")
    done(await (await agent.start_session(on_approval=allow)).run("hi"))

    (request,) = asked
    assert (request.tool.id, request.tool.name, request.from_hook) == ("mcp.box.add", "add", False)


REASONS: list[tuple[dict[str, Any], str | None]] = [
    ({"status": 401}, "credential_rejected"),
    ({"status": 403}, "credential_rejected"),
    ({"hang": "tools/list"}, "timeout"),
    ({"list": {"tools": [{"name": "a"}]}}, "invalid_catalog"),
    ({"status": 500}, "request_failed"),
    ({"gone": True}, "unreachable"),
    ({"broken": True}, None),
]


@pytest.mark.parametrize(("behaviour", "reason"), REASONS, ids=str)
async def test_a_server_that_cannot_be_used_is_a_notice_with_its_reason_and_the_turn_goes_on(
    home: Home, case: Case, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, Any], reason: str | None
) -> None:
    async def broken(*_: object) -> None:
        raise LookupError

    case.say(**behaviour)
    if "broken" in behaviour:
        monkeypatch.setattr(Connection, "_open", broken)
    if "gone" in behaviour:
        case.url = "http://127.0.0.1:1/mcp"
    agent = await home.agent(StepModel(), mcps=[case.over_http(timeout=0.5 if "hang" in behaviour else 10.0)])
    session = await agent.start_session()
    state = done(await session.run("hi"))

    assert state.output == "done"
    (notice,) = await notices(session)
    assert (notice.level, notice.source, notice.turn_id) == ("warning", "mcp:box", state.turn_id)
    assert notice.details.get("reason") == reason
    assert notice.details["status"] == "unavailable"
    assert ("reason" in notice.details) == (reason is not None)


async def test_a_connector_s_notice_says_which_and_why(home: Home, case: Case) -> None:
    agent = await home.agent(StepModel(), connectors=[connector(case, Vault(LookupError()).credentials)])
    session = await agent.start_session()
    done(await session.run("hi"))

    (notice,) = await notices(session)
    assert notice.source == NOTION
    assert notice.details == {
        "source_id": NOTION, "connector": "notion", "status": "unavailable", "reason": "credential_unavailable"
    }  # fmt: skip


async def test_the_model_is_told_when_a_source_goes_and_when_it_comes_back_and_only_then(
    home: Home, case: Case
) -> None:
    model = StepModel()
    agent = await home.agent(model, mcps=[case.over_http()])
    session = await agent.start_session()
    case.say(status=503)
    done(await session.run("one"))
    done(await session.run("two"))
    case.say()
    done(await session.run("three"))
    done(await session.run("four"))

    assert len(await notices(session)) == 2
    gone, back = await messages(session)
    assert (gone.role, gone.kind, gone.source) == ("context", "capability_source", "mcp:box")
    assert (back.role, back.kind, back.source) == ("context", "capability_source", "mcp:box")
    assert "cannot be used now" in gone.text
    assert "can be used again" in back.text
    turns = [turn.id for turn in await session.turns()]
    assert [gone.turn_id, back.turn_id] == [turns[0], turns[2]]
    notes = [message for message in model.requests[-1].messages if isinstance(message, agents.ContextNote)]
    assert [note.content for note in notes] == [gone.content, back.content]
    assert {"mcp.box.add"} <= {spec.id for spec in model.requests[-1].tools}
    expect_pairs(await stored(session))
    assert [entry async for entry in session.history() if entry == gone] == [gone]


async def test_no_event_holds_a_credential(home: Home, case: Case) -> None:
    case.say(token="s3cret-a")  # noqa: S106 - of a test
    servers = [
        case.over_http(headers={"Authorization": "Bearer s3cret-b"}),
        case.over_stdio("bad", env={"A": "s3cret-c"}),
    ]
    agent = await home.agent(
        StepModel([use("connectors.notion.add", a=1, b=2)]),
        mcps=servers,
        connectors=[connector(case, Vault("s3cret-a").credentials)],
    )
    session = await agent.start_session()
    done(await session.run("hi"))

    assert len(await notices(session)) == 1
    assert "s3cret" not in repr(await stored(session))


# Sign-ins.


async def test_a_sign_in_handler_answers_and_the_turn_goes_on(home: Home, case: Case) -> None:
    asked: list[tuple[agents.SignInRequest, ...]] = []

    async def sign_in(_ctx: agents.HandlerContext, requests: tuple[agents.SignInRequest, ...]) -> agents.SignInAnswer:
        asked.append(requests)
        return agents.SignInAnswer(connected=tuple(request.source_id for request in requests))

    sources = [connector(case, Vault(None, "a").credentials), connector(case, Vault(None, "b").credentials, "git")]
    agent = await home.agent(StepModel([use("connectors.git.whoami")]), connectors=sources)
    session = await agent.start_session(on_sign_in=sign_in)
    done(await session.run("hi"))

    (requests,) = asked
    assert [request.source_id for request in requests] == [NOTION, "connectors:git"]
    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.content == (agents.TextContentBlock(text="Bearer b"),)
    said = words(await stored(session))
    assert "session running | CallbackOpened | turn blocked | CallbackResolved | turn running | +call" in said
    expect_pairs(await stored(session))


async def test_a_turn_that_waits_for_a_sign_in_is_blocked_until_someone_answers(home: Home, case: Case) -> None:
    agent = await home.agent(StepModel(), connectors=[connector(case, Vault(None).credentials)])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    (callback,) = blocked(await turn.result()).callbacks

    assert isinstance(callback, agents.OpenSignIn)
    assert callback.title == "Sign in to notion"
    answered = await turn.answer(callback.id, agents.SignInAnswer(denied=(NOTION,)))
    assert answered == agents.Answered(None, session.id)
    assert done(await turn.result()).output == "done"
    assert [notice.details["reason"] for notice in await notices(session)] == ["credential_unavailable"]


@pytest.mark.parametrize("way", ["run", "result"])
async def test_a_sign_in_handler_s_time_counts(home: Home, case: Case, way: str) -> None:
    cancelled = asyncio.Event()

    async def slow(_ctx: object, _requests: object) -> agents.SignInAnswer:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return agents.SignInAnswer(connected=(NOTION,))

    agent = await home.agent(StepModel(), connectors=[connector(case, Vault(None).credentials)])
    session = await agent.start_session(on_sign_in=slow)
    if way == "run":
        blocked(await session.run("hi", timeout=0.3))
    else:
        turn = started(await session.start_turn("hi"))
        await seen(session, "turn blocked")
        blocked(await turn.result(timeout=0.1))
    assert cancelled.is_set()


async def test_a_subagent_s_sign_in_is_its_root_s_to_answer(home: Home, case: Case) -> None:
    def sign_in(_ctx: object, requests: tuple[agents.SignInRequest, ...]) -> agents.SignInAnswer:
        return agents.SignInAnswer(connected=tuple(request.source_id for request in requests))

    notion = connector(case, Vault(None, "a").credentials)
    child = agents.Subagent(
        name="clerk", description="Looks things up.", model=StepModel([use("connectors.notion.whoami")]),
        connectors=[notion],
    )  # fmt: skip
    model = StepModel([agents.ScriptedCall("agents.spawn", {"agent": "clerk", "task": "who am I?"})])
    agent = await home.agent(model, subagents=[child])
    session = await agent.start_session()
    (callback,) = blocked(await session.run("hi")).callbacks
    assert isinstance(callback, agents.OpenSignIn)
    assert callback.session_id != session.id

    turn = (await session.turns())[0]
    state = done(await agent.session(session.id, on_sign_in=sign_in).turn(turn.id).result())
    assert state.output == "done"
    (result,) = entries_of(await stored(agent.session(callback.session_id)), agents.ToolResultEntry)
    assert result.content == (agents.TextContentBlock(text="Bearer a"),)
