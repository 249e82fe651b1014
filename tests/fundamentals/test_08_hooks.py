"""8. Hooks.

A hook is an application's own code at six points of a turn. What it decides is written into the log with the step that it is
about, so a turn that goes on elsewhere does not ask it twice. Its `State` is kept with the session. Guardrails are hooks that run
first.
"""

from __future__ import annotations

from typing import Any

from homes import Home
from pydantic import BaseModel

import api_shim as agents


@agents.tool
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros} from account 4711"


def pays(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Pay 250, then say what came of it."""
    last = request.messages[-1]
    if isinstance(last, agents.ToolMessage):
        return agents.ScriptedReply(text=last.text)
    return agents.ScriptedReply(calls=[agents.ScriptedCall("client.pay", {"euros": 250})])


async def told(home: Home, *hooks: agents.Hook) -> str:
    """What the model reads of its payment with these hooks."""
    agent = await home.agent(agents.ScriptedModel(pays), tools=[pay], hooks=hooks)
    state = await agent.run("Pay 250.")
    assert isinstance(state, agents.Completed), state
    return state.text


async def test_a_hook_changes_what_a_tool_gets_and_what_the_model_reads(home: Home) -> None:
    class Careful(agents.Hook):
        def pre_tool_call(self, ctx: Any, call: agents.HookCall) -> dict[str, agents.JsonValue]:
            return {"euros": 100}

        def post_tool_call(self, ctx: Any, call: agents.HookCall, result: agents.ToolResult) -> str:
            return result.text.replace("4711", "…")

    assert await told(home, Careful()) == "paid 100 from account …"


async def test_a_hook_leaves_a_call_out_and_the_model_reads_why(home: Home) -> None:
    class Closed(agents.Hook):
        async def pre_tool_call(self, ctx: Any, call: agents.HookCall) -> agents.Skip:
            return agents.skip("the bank is closed")

    assert await told(home, Closed()) == "client.pay was not run: a hook skipped it: the bank is closed."


async def test_a_hook_has_a_person_asked(home: Home) -> None:
    """The question says that it is a hook's; it is answered once, for this call only."""

    class FourEyes(agents.Hook):
        def pre_tool_call(self, ctx: Any, call: agents.HookCall) -> agents.RequestApproval:
            return agents.request_approval("over 100")

    session = await (await home.agent(agents.ScriptedModel(pays), tools=[pay], hooks=[FourEyes()])).start_session()
    turn = await session.send_message("Pay 250.")
    state = await turn.result()
    assert isinstance(state, agents.Blocked)
    (callback,) = state.callbacks
    assert isinstance(callback, agents.OpenApproval)
    assert callback.request.from_hook
    await turn.answer(callback.id, agents.AllowApproval())

    assert (await turn.result(after=state)).text == "paid 250 from account 4711"


async def test_a_hook_sends_a_reply_back(home: Home) -> None:
    """The model reads its draft and the feedback; readers see one message, and in the end its last version."""

    class Polite(agents.Hook):
        def post_llm_call(self, ctx: Any, reply: agents.HookReply) -> agents.Retry | None:
            return None if reply.text.endswith("please.") else agents.retry("Say please.")

    def script(request: agents.ModelRequest) -> agents.ScriptedReply:
        asked = isinstance(request.messages[-1], agents.ContextNote)
        return agents.ScriptedReply(text="Sit down, please." if asked else "Sit down.")

    session = await (await home.agent(agents.ScriptedModel(script), hooks=[Polite()])).start_session()
    state = await session.run("Where do I wait?")
    said = [e.text async for e in session.history() if isinstance(e, agents.MessageEntry) and e.role == "assistant"]

    assert isinstance(state, agents.Completed)
    assert state.text == "Sit down, please."
    assert said == ["Sit down, please."]


async def test_a_guardrail_keeps_a_turn_from_starting(home: Home) -> None:
    """No model is called: the turn is completed, skipped, and has nothing to say."""

    class Closed(agents.Hook):
        def pre_agent_turn(self, ctx: Any) -> agents.Skip:
            return agents.skip("closed")

    state = await (await home.agent("scripted:echo", guardrails=[Closed()])).run("Hello?")

    assert isinstance(state, agents.Completed)
    assert (state.stop_reason, state.output, state.text) == ("skipped", None, "")


async def test_a_hook_s_state_is_kept_with_the_session(home: Home) -> None:
    """It is not an attribute of the hook: another session starts afresh, and another worker goes on with it."""

    class ThreeTurns(agents.Hook):
        class State(BaseModel):
            turns: int = 0

        def pre_agent_turn(self, ctx: agents.HookContext[State]) -> agents.Skip | None:
            ctx.state.turns += 1
            return agents.skip("enough") if ctx.state.turns > 3 else None

    agent = await home.agent("scripted:echo", hooks=[ThreeTurns()])
    one, other = await agent.start_session(), await agent.start_session()
    texts = [(await (await session.send_message("Hi.")).result()).text for session in (one, one, other, one, one)]

    assert texts == ["Hi.", "Hi.", "Hi.", "Hi.", ""]


async def test_a_hook_that_raises_fails_the_turn_and_is_named(home: Home) -> None:
    class Broken(agents.Hook):
        def pre_llm_call(self, ctx: Any) -> None:
            raise RuntimeError("secret of the hook")

    match await (await home.agent("scripted:echo", hooks=[Broken()])).run("Hello?"):
        case agents.Failed(error):
            assert error.code == "hook_failed"
            assert "Broken" in error.message
        case other:
            raise AssertionError(other)
