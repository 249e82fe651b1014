"""Hooks and guardrails as an application sees them: through `api_shim`, on both brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

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
    expect_pairs,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    opened,
    spelled,
    started,
    stored,
    words,
)
from pydantic import BaseModel, field_validator

import api_shim as agents
from broker.protocol.content import content_text

Ctx = agents.HookContext


def results(events: Sequence[agents.Event]) -> list[str]:
    return [content_text(entry.content) for entry in entries_of(events, agents.ToolResultEntry)]


# Calls.


class Doubled(agents.Hook):
    """Doubles the arguments of `add`."""

    def pre_tool_call(self, ctx: Ctx, call: agents.HookCall) -> dict[str, Any]:
        return {name: value * 2 for name, value in call.arguments.items()}


async def test_a_call_shows_the_arguments_that_a_hook_set(home: Home) -> None:
    agent = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], hooks=[Doubled()])
    session = await agent.start_session()
    state = done(await session.run("go"))

    (made,) = entries_of(await stored(session), agents.ToolCallEntry)
    assert made.arguments == {"a": 2, "b": 4}
    assert state.tool_calls == (agents.ToolCall(name="client.add", arguments={"a": 2, "b": 4}),)
    assert results(await stored(session)) == ["6"]


async def test_a_skipped_call_shows_the_model_s_own_arguments(home: Home) -> None:
    class Never(agents.Hook):
        async def pre_tool_call(self, ctx: Ctx, call: agents.HookCall) -> agents.Skip:
            return agents.skip("we do not add")

    agent = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], hooks=[Doubled(), Never()])
    session = await agent.start_session()
    state = done(await session.run("go"))
    events = await stored(session)

    (made,) = entries_of(events, agents.ToolCallEntry)
    assert made.arguments == {"a": 1, "b": 2}
    assert state.tool_calls == (agents.ToolCall(name="client.add", arguments={"a": 1, "b": 2}),)
    assert results(events) == ["client.add was not run: a hook skipped it: we do not add."]
    assert words(events).count("+result | =result") == 1


class Asks(agents.Hook):
    """Asks before each call."""

    async def pre_tool_call(self, ctx: Ctx, call: agents.HookCall) -> agents.RequestApproval:
        return agents.request_approval("a hook wants to know")


async def test_a_hook_s_question_is_answered_once_and_for_no_session(home: Home) -> None:
    model = StepModel([call("add", a=1, b=2)], [call("add", a=3, b=4)])
    agent = await home.agent(model, tools=[add], hooks=[Asks()])
    session = await agent.start_session()
    turn = started(await session.start_turn("go"))
    callback = await opened(turn)
    assert isinstance(callback, agents.OpenApproval)
    assert callback.request.from_hook
    assert callback.title == "Allow add? a hook wants to know"
    with pytest.raises(agents.SdkError, match="session-wide"):
        await turn.answer(callback.id, agents.AllowApproval(scope="session"))

    await turn.answer(callback.id, agents.AllowApproval())
    again = blocked(await turn.result()).callbacks[0]
    assert again.id != callback.id
    await turn.answer(again.id, agents.DenyApproval("enough"))
    done(await turn.result())

    assert results(await stored(session)) == ["3", "client.add was not run: a person denied it: enough."]
    expect_pairs(await stored(session))


async def test_an_approval_handler_is_told_that_a_hook_asks(home: Home) -> None:
    asked: list[agents.ApprovalRequest] = []

    def allow(_ctx: agents.HandlerContext, request: agents.ApprovalRequest) -> agents.AllowApproval:
        asked.append(request)
        return agents.AllowApproval()

    agent = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], hooks=[Asks()])
    done(await agent.run("go", on_approval=allow))

    assert [request.from_hook for request in asked] == [True]


async def test_an_application_follows_progress_through_a_hook(home: Home) -> None:
    progress: list[str] = []

    class Progress(agents.Hook):
        async def post_tool_call(self, ctx: Ctx, call: agents.HookCall, result: agents.ToolResult) -> None:
            progress.append(f"{call.name} {result.structured_content}")

    agent = await home.agent(StepModel([call("add", a=1, b=2), call("add", a=3, b=4)]), tools=[add], hooks=[Progress()])
    done(await agent.run("go"))

    assert sorted(progress) == ["client.add 3", "client.add 7"]


# A hook's own tools.


@pytest.mark.parametrize("answer", ["blue", 7, None, {"any": ["thing"]}, agents.ToolResult("seen", is_error=True)])
async def test_an_answer_to_a_hook_s_client_tool_is_not_checked(home: Home, answer: object) -> None:
    """The stub says that it returns a text."""

    class Colors(agents.Hook):
        tools = (ask_color,)

    agent = await home.agent(StepModel([call("ask_color", of="sky")]), hooks=[Colors()])
    session = await agent.start_session()
    turn = started(await session.start_turn("go"))
    callback = await opened(turn)
    assert isinstance(callback, agents.OpenClientToolCall)
    assert isinstance(await turn.answer(callback.id, answer), agents.Answered)
    done(await turn.result())

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.structured_content == (answer if isinstance(answer, int | dict) else None)
    assert result.is_error == isinstance(answer, agents.ToolResult)


async def test_a_wait_answers_a_hook_s_client_tool_with_its_own_function(home: Home) -> None:
    @agents.client_tool
    def pick(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
        """Pick."""

    @pick.answer
    def _pick(of: str) -> object:
        return {"picked": of}

    class Picks(agents.Hook):
        tools = (pick,)

    agent = await home.agent(StepModel([call("pick", of="these")]), hooks=[Picks()])
    session = await agent.start_session()
    done(await session.run("go"))

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.structured_content == {"picked": "these"}


# Replies and turns.


async def test_a_reply_that_is_written_again_keeps_its_entry(home: Home) -> None:
    """Its deltas start afresh under the same id; the completed entry has the text that counts."""
    live: list[agents.Event] = []
    first, second = Gate(), Gate()

    class Polite(agents.Hook):
        async def post_llm_call(self, ctx: Ctx, reply: agents.HookReply) -> agents.Retry | None:
            return agents.retry("be polite") if "damn" in reply.text else None

    model = StepModel(["well ", first, "damn"], ["good ", second, "day"])
    agent = await home.agent(model, guardrails=[Polite()])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    async for event in turn.iter_events():
        live.append(event)
        if isinstance(event, agents.TextDelta):
            {"well ": first, "good ": second}.get(event.text, first).open.set()

    (entry,) = [e for e in entries_of(live, agents.MessageEntry) if e.role == "assistant"]
    assert entry.text == "good day"
    deltas = [event for event in live if isinstance(event, agents.TextDelta)]
    assert {event.entry_id for event in deltas} == {entry.id}
    assert "".join(event.text for event in deltas) == "well damngood day"
    (checkpoint,) = entries_of(live, agents.UnknownEntry)
    assert checkpoint.raw["details"] == {"retry": "be polite", "text": "well damn"}
    assert words(live).endswith(
        spelled("+checkpoint", "=checkpoint", "TextDelta", "=assistant", "turn terminated", "ended Completed")
    )
    assert "well damn" not in model.user_texts()
    assert isinstance(model.requests[1].messages[-2], agents.AssistantMessage)
    assert isinstance(model.requests[1].messages[-1], agents.ContextNote)


@pytest.mark.parametrize("typed", [False, True])
async def test_a_skipped_turn_has_no_output(home: Home, *, typed: bool) -> None:
    class City(BaseModel):
        name: str

    class Closed(agents.Hook):
        async def pre_agent_turn(self, ctx: Ctx) -> agents.Skip:
            return agents.skip("closed on Sundays")

    model = StepModel()
    agent = await home.agent(model, guardrails=[Closed()], output_type=City if typed else None)
    session = await agent.start_session()
    state = done(await session.run("hi"))
    events = await stored(session)

    assert (state.output, state.stop_reason, state.text, state.tool_calls) == (None, "skipped", "", ())
    assert model.requests == []
    assert words(events) == spelled(
        *("+user", "=user", "TurnStarted", "session running"),
        *("+checkpoint", "=checkpoint", "Notice"),
        *("turn terminated", "ended Completed", "session waiting"),
    )
    (notice,) = [event for event in events if isinstance(event, agents.Notice)]
    assert (notice.level, notice.message, notice.source) == ("info", "closed on Sundays", "hook:Closed")
    assert done(await session.run("hello?")).stop_reason == "skipped"


async def test_a_rejected_message_is_completed_without_content(home: Home) -> None:
    class Secrets(agents.Hook):
        async def post_llm_call(self, ctx: Ctx, reply: agents.HookReply) -> agents.Reject | None:
            return agents.reject("it told a secret") if "secret" in reply.text else None

    agent = await home.agent(StepModel(["the secret is", call("add", a=1, b=2)]), tools=[add], guardrails=[Secrets()])
    session = await agent.start_session()
    state = done(await session.run("tell"))
    events = await stored(session)

    assert (state.output, state.stop_reason, state.text, state.tool_calls) == (None, "skipped", "", ())
    (message,) = [e for e in entries_of(events, agents.MessageEntry) if e.role == "assistant"]
    assert (message.content, message.text) == ((), "")
    assert words(events).endswith(
        spelled(
            *("+assistant", "TextDelta", "=assistant", "+checkpoint", "=checkpoint", "Notice"),
            *("turn terminated", "ended Completed", "session waiting"),
        )
    )
    expect_pairs(events)


async def test_a_hook_that_raises_fails_the_turn_and_says_which(home: Home) -> None:
    class Broken(agents.Hook):
        def pre_llm_call(self, ctx: Ctx) -> None:
            raise RuntimeError("what nobody must read")

    agent = await home.agent(StepModel(), hooks=[Broken()])
    session = await agent.start_session()
    state = await session.run("hi")

    assert isinstance(state, agents.Failed)
    assert state.error == agents.ProtocolError(
        message="hook Broken raised RuntimeError at pre_llm_call", code="hook_failed", details=None
    )


# What a hook keeps.


class Turns(agents.Hook):
    """Counts the turns of a session."""

    class State(BaseModel):
        count: int = 0

    def __init__(self) -> None:
        self.counted: list[int] = []

    async def pre_agent_turn(self, ctx: agents.HookContext[State]) -> None:
        ctx.state.count += 1
        self.counted.append(ctx.state.count)


async def test_what_a_hook_keeps_goes_with_the_session(home: Home) -> None:
    hook = Turns()
    agent = await home.agent(StepModel(), hooks=[hook])
    session, other = await agent.start_session(), await agent.start_session()
    for each in (session, other, session):
        done(await each.run("hi"))
    if home.url is not None:  # another process goes on where this one stopped
        await home.stop_workers()
        await home.serve(agent)
    done(await session.run("hi"))

    assert hook.counted == [1, 1, 2, 3]
    (*_, last) = entries_of(await stored(session), agents.UnknownEntry)
    assert (last.type, last.raw["message"]) == ("checkpoint", "hook:Turns:pre_agent_turn")
    assert last.raw["details"] == {"state": {"count": 3}}


async def test_hooks_change_no_order_of_events(home: Home) -> None:
    """A checkpoint stands in the append of its step: before the questions, after the calls."""
    agent = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], hooks=[Asks(), Counts()])
    session = await agent.start_session()
    turn = started(await session.start_turn("go"))
    callback = await opened(turn)
    await turn.answer(callback.id, agents.AllowApproval())
    done(await turn.result())

    kept = "+checkpoint | =checkpoint"
    assert words(await stored(session)) == spelled(
        *("+user", "=user", "TurnStarted", "session running"),
        *("+call", "=call", kept, "CallbackOpened", "turn blocked"),
        *("CallbackResolved", "turn running", "+result", "=result", kept),
        *("+assistant", "TextDelta", "=assistant", kept),
        *("turn terminated", "ended Completed", "session waiting"),
    )


class Counts(agents.Hook):
    """Counts what comes by."""

    class State(BaseModel):
        calls: int = 0
        replies: int = 0

    async def post_llm_call(self, ctx: agents.HookContext[State], reply: agents.HookReply) -> None:
        ctx.state.replies += 1

    async def post_tool_call(self, ctx: Ctx, call: agents.HookCall, result: agents.ToolResult) -> None:
        ctx.state.calls += 1


# Session inputs.


class Tenant(agents.SessionInput):
    input_id: ClassVar[str] = "tenant"
    name: str

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != "acme":
            raise ValueError("unknown tenant")
        return name


class Reads(agents.Hook):
    """Reads the session's tenant at each point."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def pre_llm_call(self, ctx: Ctx, tenant: Annotated[Tenant, agents.Depends()]) -> None:
        self.read.append(tenant.name)

    def post_tool_call(
        self,
        ctx: Ctx,
        call: agents.HookCall,
        result: agents.ToolResult,
        tenant: Annotated[Tenant, agents.Depends()],
    ) -> str:
        return f"{tenant.name}: {content_text(tuple(result.content))}"  # type: ignore[arg-type] # blocks


async def test_a_hook_reads_the_session_s_input_in_every_turn(home: Home) -> None:
    hook = Reads()
    agent = await home.agent(StepModel([call("add", a=1, b=2)]), tools=[add], hooks=[hook])
    session = await agent.start_session(session_inputs={"tenant": {"name": "acme"}})
    done(await session.run("go"))
    done(await session.run("again"))

    assert hook.read == ["acme"] * 3
    assert results(await stored(session)) == ["acme: 3"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "session input 'tenant' was not given when the session started"),
        ({"tenant": {"name": "evil-secret"}}, "session input tenant.name: Value error, unknown tenant"),
    ],
)
async def test_an_input_that_is_refused_fails_the_hook_s_turn(home: Home, given: Any, said: str) -> None:
    agent = await home.agent(StepModel(), hooks=[Reads()])
    state = await (await agent.start_session(session_inputs=given)).run("go")

    assert isinstance(state, agents.Failed)
    assert (state.error.code, state.error.message) == ("hook_failed", f"hook Reads cannot run at pre_llm_call: {said}")


async def test_an_input_outlives_a_deployment_whose_class_accepts_it(home: Home) -> None:
    agent = await home.agent(StepModel(), hooks=[Reads()])
    session = await agent.start_session(session_inputs={"tenant": {"name": "acme"}})
    done(await session.run("go"))

    class Larger(agents.SessionInput):
        input_id: ClassVar[str] = "tenant"
        name: str
        region: str = "eu"

    seen: list[str] = []

    class Later(agents.Hook):
        async def pre_llm_call(self, ctx: Ctx, tenant: Annotated[Larger, agents.Depends()]) -> None:
            seen.append(f"{tenant.name} {tenant.region}")

    await home.stop_workers()
    later = await home.agent(StepModel(), name=agent.name, hooks=[Later()])
    done(await later.session(session.id).run("again"))

    assert seen == ["acme eu"]
