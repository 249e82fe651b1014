"""7. Subagents.

An agent's model may start other agents, with `agents.spawn`. Each works in a session of its own, a child; the parent's turn parks
until the child's has ended, and reads its answer as the call's result. People see one conversation: the root's.
"""

from __future__ import annotations

import pytest
from homes import Home

import api_shim as agents


@agents.tool
def publish(title: str) -> str:
    """Publish."""
    return f"{title} is out"


def spawn(agent: str, task: str) -> agents.ScriptedCall:
    return agents.ScriptedCall("agents.spawn", {"agent": agent, "task": task})


def repeats(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Say what the last message says."""
    return agents.ScriptedReply(text=request.messages[-1].text)


def publishes(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Publish first, then say what came of it."""
    if isinstance(request.messages[-1], agents.ToolMessage):
        return agents.ScriptedReply(text=request.messages[-1].text)
    return agents.ScriptedReply(calls=[agents.ScriptedCall("client.publish", {"title": "Otters"})])


STAFF = [
    agents.Subagent(name="writer", description="Writes.", model=agents.ScriptedModel(repeats), tools=[]),
    agents.Subagent(
        name="printer", description="Publishes.", model=agents.ScriptedModel(publishes), permission_mode="ask"
    ),
]


async def editor(home: Home, *calls: agents.ScriptedCall) -> agents.Session:
    """A session of an editor whose model makes these calls, and then says what it read."""

    def script(request: agents.ModelRequest) -> agents.ScriptedReply:
        results = [message.text for message in request.messages if isinstance(message, agents.ToolMessage)]
        return agents.ScriptedReply(text=" | ".join(results)) if results else agents.ScriptedReply(calls=calls)

    agent = await home.agent(agents.ScriptedModel(script), tools=[publish], subagents=STAFF)
    return await agent.start_session()


async def asked(session: agents.Session) -> tuple[agents.Turn, agents.Blocked]:
    turn = await session.send_message("Publish.")
    state = await turn.result()
    assert isinstance(state, agents.Blocked)
    return turn, state


async def test_a_subagent_s_answer_is_the_result_of_the_call_that_started_it(home: Home) -> None:
    session = await editor(home, spawn("writer", "otters"), spawn("writer", "herons"))
    state = await session.run("Write.")

    assert isinstance(state, agents.Completed)
    assert state.text == "otters | herons"


async def test_a_subagent_works_in_a_session_of_its_own(home: Home) -> None:
    """Its work is not in the parent's log; the child can be read like any session, and is listed under its root."""
    session = await editor(home, spawn("writer", "otters"))
    await session.run("Write.")
    (child,) = await session.subagents()
    info = await child.info()

    assert (info.agent_name, info.parent_id, info.root_id) == ("writer", session.id, session.id)
    replies = [entry.text async for entry in child.history() if isinstance(entry, agents.MessageEntry)]
    assert replies == ["otters"], "its task is no user's message"
    assert [each.id async for each in agents.list_sessions(scope="children", parent=session.id)] == [child.id]


async def test_a_question_from_below_is_the_root_s_and_is_answered_there(home: Home) -> None:
    """What is not set is inherited: the printer has the editor's tool, and a permission mode of its own."""
    session = await editor(home, spawn("printer", "Otters, please."))
    turn, state = await asked(session)
    (child,) = await session.subagents()
    assert [callback.session_id for callback in state.callbacks] == [child.id]
    answered = await turn.answer(state.callbacks[0].id, agents.AllowApproval())

    assert isinstance(answered, agents.Answered)
    assert answered.session_id == child.id
    assert (await turn.result(after=state)).text == "Otters is out"


async def test_a_child_is_led_by_its_parent_only(home: Home) -> None:
    """Its handle reads. To redirect it, talk to its parent; to stop it, interrupt or cancel from the root."""
    session = await editor(home, spawn("printer", "Otters, please."))
    await asked(session)
    (child,) = await session.subagents()

    with pytest.raises(agents.UnsupportedSessionProcedureError):
        await child.send_message("Herons instead.")
    with pytest.raises(agents.UnsupportedSessionProcedureError):
        await child.cancel()


async def test_an_interrupt_of_the_root_ends_what_works_below(home: Home) -> None:
    session = await editor(home, spawn("printer", "Otters, please."))
    turn, _ = await asked(session)
    await turn.interrupt()
    (child,) = await session.subagents()
    (below,) = await child.turns()

    assert isinstance(await turn.get(), agents.Interrupted)
    assert isinstance(await below.get(), agents.Interrupted)
