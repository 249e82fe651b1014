"""9. Sources.

Tools may come from servers: MCP servers, and connectors, which are servers that want a person's own credentials. A source is
connected when a turn needs it. One that cannot be used is noticed, and the turn goes on without it.
"""

from __future__ import annotations

from homes import Home
from tool_servers import Case

import api_shim as agents


def told_tools(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Say which tools there are."""
    return agents.ScriptedReply(text=", ".join(tool.id for tool in request.tools) or "none")


def calls(tool: str, **arguments: agents.JsonValue) -> agents.ScriptedModel:
    """A model that calls a tool, and then says what it read."""

    def script(request: agents.ModelRequest) -> agents.ScriptedReply:
        last = request.messages[-1]
        if isinstance(last, agents.ToolMessage):
            return agents.ScriptedReply(text=last.text)
        return agents.ScriptedReply(calls=[agents.ScriptedCall(tool, arguments)])

    return agents.ScriptedModel(script)


async def test_a_server_s_tools_are_the_model_s(home: Home, case: Case) -> None:
    """Their ids say where they come from: policies and hooks know them by these. `tools` takes only some of them."""
    box = case.over_http("box", tools=["add", "who*"])
    state = await (await home.agent(agents.ScriptedModel(told_tools), mcps=[box])).run("What have you?")

    assert state.text == "mcp.box.whoami, mcp.box.add"


async def test_a_result_has_the_server_s_structure_and_what_is_not_for_the_model(home: Home, case: Case) -> None:
    agent = await home.agent(calls("mcp.box.add", a=2, b=3), mcps=[case.over_stdio("box")])
    session = await agent.start_session()
    await session.run("2 + 3?")
    (result,) = [entry async for entry in session.history() if isinstance(entry, agents.ToolResultEntry)]

    assert (result.structured_content, result.text, result.meta["took"]) == ({"sum": 5}, '{"sum": 5}', 3)


async def test_a_server_that_is_away_is_noticed_and_the_turn_goes_on(home: Home) -> None:
    """The application reads a Notice, with a reason; the model reads a context message: neither is a failure of the turn."""
    nowhere = agents.MCPServer("nowhere", url="http://127.0.0.1:9/mcp", timeout=5)
    session = await (await home.agent(agents.ScriptedModel(told_tools), mcps=[nowhere])).start_session()
    seen: list[agents.Event] = []
    state = await session.run("What have you?", on_event=seen.append)
    (notice,) = [event for event in seen if isinstance(event, agents.Notice)]
    kinds = [entry.kind async for entry in session.history() if isinstance(entry, agents.ContextMessage)]

    assert isinstance(state, agents.Completed)
    assert state.text == "none"
    assert isinstance(notice.details, dict)
    assert (notice.source, notice.details["reason"]) == ("mcp:nowhere", "unreachable")
    assert kinds == ["capability_source"]


async def test_a_connector_parks_the_turn_until_the_person_has_signed_in(home: Home, case: Case) -> None:
    """`credentials` is asked whenever a turn connects; None means that the person must sign in first."""
    vault: dict[str, str] = {}

    def credentials(ctx: agents.ConnectorContext) -> str | None:
        return vault.get(ctx.source_id)

    notion = agents.Connector(
        "notion", url=f"{case.url}?case={case.path}", sign_in_url="https://notion.example", credentials=credentials
    )
    session = await (await home.agent(calls("connectors.notion.whoami"), connectors=[notion])).start_session()
    turn = await session.send_message("Who am I?")
    state = await turn.result()
    assert isinstance(state, agents.Blocked)
    (callback,) = state.callbacks
    assert isinstance(callback, agents.OpenSignIn)
    assert [(request.source_id, request.url) for request in callback.requests] == [
        ("connectors:notion", "https://notion.example")
    ]

    vault["connectors:notion"] = "token-of-ada"  # the person signed in, at the application's page
    await turn.answer(callback.id, agents.SignInAnswer(connected=("connectors:notion",)))
    assert (await turn.result(after=state)).text == "Bearer token-of-ada"


async def test_a_person_may_refuse_to_sign_in(home: Home, case: Case) -> None:
    """The turn goes on without the source, and the model is told."""
    notion = agents.Connector(
        "notion", url=case.url, sign_in_url="https://notion.example", credentials=lambda _ctx: None
    )
    session = await (await home.agent(agents.ScriptedModel(told_tools), connectors=[notion])).start_session()
    turn = await session.send_message("What have you?")
    state = await turn.result()
    assert isinstance(state, agents.Blocked)
    await turn.answer(state.callbacks[0].id, agents.SignInAnswer(denied=("connectors:notion",)))
    ended = await turn.result(after=state)

    assert isinstance(ended, agents.Completed)
    assert ended.text == "none"
