"""Answering callbacks through `Turn.answer`: what fits, what counts, what comes too late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents_for_tests import (
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
    opened,
    started,
    stored,
)
from leaks import drop_keys
from pydantic import BaseModel

import api_shim as agents
from broker.protocol.content import content_text
from workers.models import ToolMessage

UNKNOWN = "00000000-0000-4000-8000-000000000000"
ALLOW = agents.AllowApproval()


async def asked(home: Home, *replies: list[Any], **options: Any) -> tuple[agents.Turn, agents.OpenCallback]:
    """A turn that waits for an approval of `add`, and its callback."""
    session = await (await home.asking(*replies, **options)).start_session()
    turn = started(await session.start_turn("hi"))
    return turn, await opened(turn)


async def asked_client(home: Home, tool: agents.ClientTool = ask_color) -> tuple[agents.Turn, agents.OpenCallback]:
    """A turn that waits for a client tool, and its callback."""
    agent = await home.agent(StepModel([call(tool.name, of="sky")]), tools=[tool])
    turn = started(await (await agent.start_session()).start_turn("hi"))
    return turn, await opened(turn)


async def results(turn: agents.Turn) -> list[agents.ToolResultEntry]:
    return entries_of(await stored(turn._session), agents.ToolResultEntry)


# Approvals.


async def test_an_allowed_call_runs_once_and_the_turn_goes_on(home: Home) -> None:
    turn, callback = await asked(home)
    answered = await turn.answer(callback.id, ALLOW)

    assert answered == agents.Answered(ALLOW, callback.session_id)
    done(await turn.result())
    (result,) = await results(turn)
    assert (content_text(result.content), result.is_error) == ("3", False)


async def test_a_denied_call_does_not_run_and_the_model_reads_the_reason(home: Home) -> None:
    ran: list[int] = []

    @agents.tool
    def pay(amount: int) -> None:
        """Pay."""
        ran.append(amount)

    model = StepModel([call("pay", amount=9800)])
    session = await (await home.agent(model, tools=[pay], permission_mode="ask")).start_session()
    turn = started(await session.start_turn("hi"))
    deny = agents.DenyApproval("too much money")
    assert await turn.answer((await opened(turn)).id, deny) == agents.Answered(deny, session.id)
    done(await turn.result())

    assert ran == []
    message = model.requests[1].messages[-1]
    assert isinstance(message, ToolMessage)
    assert message.is_error
    assert "too much money" in content_text(message.content)


async def test_refused_denied_and_unanswered_calls_read_differently(home: Home) -> None:
    rules = [agents.PermissionRule(tools=["client.add"], decision="ask")]
    policy = agents.PermissionPolicy(default="deny", rules=rules)
    model = StepModel([call("add", a=1, b=2), call("other")])

    @agents.tool
    def other() -> None:
        """Never allowed."""

    agent = await home.agent(model, tools=[add, other], permission_policy=policy)
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await turn.answer((await opened(turn)).id, agents.DenyApproval())
    done(await turn.result())

    texts = {entry.name: content_text(entry.content) for entry in await results(turn)}
    assert "denied" in texts["client.add"]
    assert "policy" in texts["client.other"]


async def test_mode_deny_refuses_each_call_and_asks_nobody(home: Home) -> None:
    agent = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], permission_mode="deny")
    session = await agent.start_session()
    done(await session.run("hi"))

    log = await stored(session)
    assert not [event for event in log if isinstance(event, agents.CallbackOpened)]
    assert [entry.is_error for entry in entries_of(log, agents.ToolResultEntry)] == [True]


async def test_a_session_wide_answer_allows_later_calls_of_the_tool_in_this_session_only(home: Home) -> None:
    replies = [[call("add", a=n, b=1)] for n in range(2)]
    agent = await home.asking(*replies, ["ok"], [call("add", a=5, b=1)])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    grant = agents.AllowApproval(scope="session")
    assert await turn.answer((await opened(turn)).id, grant) == agents.Answered(grant, session.id)

    assert len(done(await turn.result()).tool_calls) == 2
    assert len(done(await session.run("again")).tool_calls) == 1
    other = await agent.start_session()
    blocked(await other.run("hi"))


async def test_an_answer_once_does_not_allow_the_next_call(home: Home) -> None:
    turn, callback = await asked(home, [call("add", a=1, b=1)], [call("add", a=2, b=1)])
    state = blocked(await turn.get())
    await turn.answer(callback.id, ALLOW)

    assert blocked(await turn.result(after=state)).callbacks[0].id != callback.id


@pytest.mark.parametrize(
    "answer",
    [
        True,
        False,
        None,
        {"type": "allow"},
        "yes",
        agents.KeepCallbackOpen(),
        agents.SignInAnswer(),
        agents.AllowApproval,
    ],
)
async def test_what_is_no_answer_of_an_approval_is_refused_and_nothing_is_sent(home: Home, answer: object) -> None:
    turn, callback = await asked(home)
    before = await stored(turn._session)

    with pytest.raises(agents.SdkError):
        await turn.answer(callback.id, answer)
    assert await stored(turn._session) == before
    assert blocked(await turn.get()).callbacks == (callback,)


@pytest.mark.parametrize("callback_id", ["", "nonsense", "42", f"{UNKNOWN}x", None, 7])
async def test_an_id_that_is_no_uuid_is_refused(home: Home, callback_id: Any) -> None:
    turn, _ = await asked(home)

    with pytest.raises(ValueError, match="callback_id"):
        await turn.answer(callback_id, ALLOW)


async def test_a_callback_that_was_never_opened_is_not_found(home: Home) -> None:
    turn, _ = await asked(home)

    assert await turn.answer(UNKNOWN, ALLOW) == agents.NotFound()


async def test_a_settled_callback_says_so_whoever_settled_it(home: Home) -> None:
    turn, callback = await asked(home, [call("add", a=1, b=1), call("add", a=2, b=1)])
    other = blocked(await turn.get()).callbacks[1]
    await turn.answer(callback.id, ALLOW)

    assert await turn.answer(callback.id, agents.DenyApproval()) == agents.AlreadySettled()
    await turn.interrupt()
    assert await turn.answer(other.id, ALLOW) == agents.AlreadySettled(), "closed with its turn"


async def test_the_turn_s_id_is_not_used(home: Home) -> None:
    turn, callback = await asked(home)

    assert await turn._session.turn("any id").answer(callback.id, ALLOW) == agents.Answered(ALLOW, callback.session_id)
    done(await turn.result())


async def test_fifty_that_answer_at_once_all_learn_which_answer_counted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    from api_shim import answers

    ran: list[int] = []

    @agents.tool
    def count(a: int) -> int:
        """Count."""
        ran.append(a)
        return a

    agent = await home.agent(StepModel([call("count", a=1)]), tools=[count], permission_mode="ask")
    turn = started(await (await agent.start_session()).start_turn("hi"))
    callback = await opened(turn)
    barrier = asyncio.Barrier(50)
    find = answers.find_callback

    async def find_then_wait(*arguments: Any) -> Any:
        found = await find(*arguments)
        await barrier.wait()
        return found

    monkeypatch.setattr(answers, "find_callback", find_then_wait)
    mine = [agents.AllowApproval() if n % 2 else agents.DenyApproval(f"no {n}") for n in range(50)]
    told = await asyncio.gather(*(turn.answer(callback.id, answer) for answer in mine))
    monkeypatch.setattr(answers, "find_callback", find)

    (winner,) = {repr(each) for each in told}
    assert isinstance(told[0], agents.Answered)
    assert told[0].answer in mine, winner
    done(await turn.result())
    assert len(ran) == isinstance(told[0].answer, agents.AllowApproval)
    assert await turn.answer(callback.id, ALLOW) == agents.AlreadySettled()
    log = await stored(turn._session)
    assert len([event for event in log if isinstance(event, agents.CallbackResolved)]) == 1


async def test_a_handle_without_an_agent_answers_too(home: Home) -> None:
    turn, callback = await asked(home)

    observer = agents.session(callback.session_id).turn(turn.id)
    assert await observer.answer(callback.id, ALLOW) == agents.Answered(ALLOW, callback.session_id)
    done(await observer.result())


# Client tools.


async def test_a_client_tool_is_answered_with_its_result(home: Home) -> None:
    turn, callback = await asked_client(home)
    assert isinstance(callback, agents.OpenClientToolCall)
    assert (callback.call.name, callback.call.arguments) == ("client.ask_color", {"of": "sky"})
    told = await turn.answer(callback.id, "blue")

    assert told == agents.Answered(None, callback.session_id)
    done(await turn.result())
    (result,) = await results(turn)
    assert result.tool_call_id == callback.call.tool_call_id
    assert (result.name, content_text(result.content), result.is_error) == ("client.ask_color", "blue", False)
    assert await turn.answer(callback.id, "red") == agents.AlreadySettled()


@pytest.mark.parametrize("answer", [7, None, {"color": "blue"}, ["blue"], ALLOW, agents.DenyApproval()])
async def test_a_result_that_breaks_the_stub_s_type_is_refused_and_nothing_is_sent(home: Home, answer: object) -> None:
    turn, callback = await asked_client(home)
    before = await stored(turn._session)

    with pytest.raises(agents.SdkError):
        await turn.answer(callback.id, answer)
    assert await stored(turn._session) == before
    await turn.answer(callback.id, "blue")
    done(await turn.result())


class Color(BaseModel):
    name: str


@agents.client_tool
def color_of(of: str) -> Color:  # type: ignore[empty-body] # a stub: the client answers
    """The color of something."""


@pytest.mark.parametrize("answer", [Color(name="blue"), {"name": "blue"}])
async def test_a_model_or_a_mapping_of_it_becomes_structured_content(home: Home, answer: object) -> None:
    turn, callback = await asked_client(home, color_of)
    await turn.answer(callback.id, answer)
    done(await turn.result())

    (result,) = await results(turn)
    assert result.structured_content == {"name": "blue"}
    assert content_text(result.content) == '{"name":"blue"}'


async def test_a_tool_result_is_taken_in_full(home: Home) -> None:
    turn, callback = await asked_client(home)
    answer = agents.ToolResult("failed", structured_content={"code": 1}, meta={"seen": True}, is_error=True)
    await turn.answer(callback.id, answer)
    done(await turn.result())

    (result,) = await results(turn)
    assert content_text(result.content) == "failed"
    assert (result.structured_content, result.meta, result.is_error) == ({"code": 1}, {"seen": True}, True)


@pytest.mark.parametrize("answer", [None, 7, {"any": ["thing"]}, "text", True])
async def test_with_an_output_schema_a_result_is_sent_as_json_unchecked(home: Home, answer: object) -> None:
    stub = agents.client_tool(name="free", input_schema={"type": "object"}, output_schema={"type": "object"})
    turn, callback = await asked_client(home, stub)
    await turn.answer(callback.id, answer)
    done(await turn.result())

    (result,) = await results(turn)
    assert not result.is_error
    assert result.structured_content == (None if answer is None or isinstance(answer, str) else answer)


async def test_a_handle_of_load_from_sends_a_result_unchecked(home: Home) -> None:
    turn, callback = await asked_client(home)
    loaded = agents.Agent.load_from(agent_name="agent1")
    told = await loaded.session(callback.session_id).turn(turn.id).answer(callback.id, 7)

    assert told == agents.Answered(None, callback.session_id)
    done(await turn.result())
    (result,) = await results(turn)
    assert result.structured_content == 7


async def test_an_id_that_two_stubs_share_is_unchecked(home: Home) -> None:
    @agents.client_tool(name="ask_color")
    def other(of: str) -> int:  # type: ignore[empty-body] # a stub: the client answers
        """Ask for a number."""

    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[ask_color, other])
    turn = started(await (await agent.start_session()).start_turn("hi"))
    await turn.answer((await opened(turn)).id, {"neither": "text nor number"})
    done(await turn.result())

    assert [result.structured_content for result in await results(turn)] == [{"neither": "text nor number"}]


async def test_what_json_cannot_hold_is_refused(home: Home) -> None:
    stub = agents.client_tool(name="free", input_schema={"type": "object"})
    turn, callback = await asked_client(home, stub)

    for answer in (object(), float("nan"), {1: "one"}, b"bytes"):
        with pytest.raises(agents.SdkError):
            await turn.answer(callback.id, answer)
    blocked(await turn.get())


async def test_a_client_tool_under_ask_is_approved_first_and_then_asked_of_the_client(home: Home) -> None:
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[ask_color], permission_mode="ask")
    turn = started(await (await agent.start_session()).start_turn("hi"))
    state = blocked(await turn.result())
    assert isinstance(state.callbacks[0], agents.OpenApproval)
    await turn.answer(state.callbacks[0].id, ALLOW)
    state = blocked(await turn.result(after=state))
    assert isinstance(state.callbacks[0], agents.OpenClientToolCall)
    await turn.answer(state.callbacks[0].id, "blue")

    done(await turn.result())
    assert [content_text(result.content) for result in await results(turn)] == ["blue"]


async def test_a_result_sent_while_the_turn_is_cut_is_kept_or_was_too_late_and_never_an_error(home: Home) -> None:
    gate = Gate()

    @agents.tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return ""

    agent = await home.agent(StepModel([call("slow"), call("ask_color", of="sky")]), tools=[slow, ask_color])
    turn = started(await (await agent.start_session()).start_turn("hi"))
    callback = await opened(turn)
    told, _ = await asyncio.gather(turn.answer(callback.id, "blue"), turn.interrupt())

    assert isinstance(told, agents.Answered | agents.AlreadySettled)
    texts = [content_text(result.content) for result in await results(turn) if result.name == "client.ask_color"]
    assert ("blue" in texts) is isinstance(told, agents.Answered)
    gate.open.set()


async def test_an_answer_where_nothing_can_be_read_is_lost(home: Home) -> None:
    turn, callback = await asked(home)
    await drop_keys(home.broker.client, home.broker.settings.prefix)

    for callback_id in (callback.id, UNKNOWN):
        with pytest.raises(agents.ObservationLost, match=turn._session.id):
            await turn.answer(callback_id, ALLOW)
        with pytest.raises(agents.SessionNotFoundError):
            await turn._session.turn(turn.id).answer(callback_id, ALLOW)
    assert not await home.broker.client.exists(home.broker.keys.of("session", turn._session.id))
