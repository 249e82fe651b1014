"""4. Callbacks and parking.

When a turn needs a person or a client, it opens a callback and parks: no worker holds it, nothing runs, for as long as it takes.
Whoever has the session's id can answer, from any process; the first answer counts, and wakes the turn.
"""

from __future__ import annotations

import asyncio

import pytest
from homes import Home

import api_shim as agents


@agents.tool
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


@agents.client_tool
def pick(of: str) -> str:  # type: ignore[empty-body] # a stub: it runs at the client
    """Let the person pick one."""


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Make the call that was asked for, and then say what it read."""
    last = request.messages[-1]
    if isinstance(last, agents.ToolMessage):
        return agents.ScriptedReply(text=last.text)
    calls = {
        "pay": agents.ScriptedCall("client.pay", {"euros": 9}),
        "pick": agents.ScriptedCall("client.pick", {"of": "tea"}),
    }
    return agents.ScriptedReply(calls=[calls[last.text]])


ASKS = agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.pay"], decision="ask")])


async def shop(home: Home) -> agents.Session:
    agent = await home.agent(agents.ScriptedModel(script), tools=[pay, pick], permission_policy=ASKS)
    return await agent.start_session()


async def waiting(session: agents.Session, text: str) -> tuple[agents.Turn, agents.Blocked]:
    turn = await session.send_message(text)
    state = await turn.result()
    assert isinstance(state, agents.Blocked)
    return turn, state


async def test_a_turn_that_needs_an_approval_is_blocked_until_it_is_answered(home: Home) -> None:
    session = await shop(home)
    turn, state = await waiting(session, "pay")
    (callback,) = state.callbacks
    assert isinstance(callback, agents.OpenApproval)
    assert (callback.request.tool.name, callback.request.arguments) == ("pay", {"euros": 9})

    # Elsewhere: nothing is needed but the ids.
    elsewhere = agents.session(session.id).turn(turn.id)
    assert isinstance(await elsewhere.answer(callback.id, agents.AllowApproval()), agents.Answered)
    assert (await turn.result(after=state)).text == "paid 9"


async def test_a_denied_call_does_not_run_and_the_model_reads_the_reason(home: Home) -> None:
    session = await shop(home)
    turn, state = await waiting(session, "pay")
    await turn.answer(state.callbacks[0].id, agents.DenyApproval("too expensive"))

    assert (await turn.result(after=state)).text == "client.pay was not run: a person denied it: too expensive."


async def test_the_first_answer_counts_and_everyone_learns_which_it_was(home: Home) -> None:
    session = await shop(home)
    turn, state = await waiting(session, "pay")
    answers = [agents.AllowApproval(), agents.DenyApproval("no")]
    got = await asyncio.gather(*(turn.answer(state.callbacks[0].id, answer) for answer in answers))
    ended = await turn.result(after=state)

    counted = [each.answer for each in got if isinstance(each, agents.Answered)]
    assert counted
    assert len(set(counted)) == 1, "both are told the same answer"
    assert (ended.text == "paid 9") == (counted[0] == agents.AllowApproval())
    assert isinstance(await turn.answer(state.callbacks[0].id, agents.AllowApproval()), agents.AlreadySettled)


async def test_a_client_tool_s_answer_is_its_result(home: Home) -> None:
    """The worker only asks; what the client answers is checked against the stub, and the model reads it."""
    session = await shop(home)
    turn, state = await waiting(session, "pick")
    (callback,) = state.callbacks
    assert isinstance(callback, agents.OpenClientToolCall)
    await turn.answer(callback.id, "Darjeeling")

    assert (await turn.result(after=state)).text == "Darjeeling"


async def test_a_handler_answers_while_someone_waits(home: Home) -> None:
    """With `on_approval` a wait does not return for a question: it has it answered."""
    session = await shop(home)
    asked: list[str] = []

    def approve(ctx: agents.HandlerContext, request: agents.ApprovalRequest) -> agents.AllowApproval:
        asked.append(f"{ctx.title} {request.arguments}")
        return agents.AllowApproval()

    handled = agents.session(session.id, on_approval=approve)
    state = await handled.run("pay")

    assert isinstance(state, agents.Completed)
    assert (asked, state.text) == (["Allow pay? {'euros': 9}"], "paid 9")


async def test_a_parked_turn_holds_no_worker(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that runs one turn at a time has two turns wait, and runs a third."""
    monkeypatch.setenv("TURNSTREAM_SLOTS", "1")
    agent = await home.agent(agents.ScriptedModel(script), tools=[pay, pick], permission_policy=ASKS)
    parked = [await waiting(await agent.start_session(), "pay") for _ in range(2)]
    third = await agent.run("pick", on_client_tool=lambda _call: "Oolong", timeout=10)

    assert third.text == "Oolong"
    assert [type(await turn.get()) for turn, _ in parked] == [agents.Blocked, agents.Blocked]
