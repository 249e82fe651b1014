"""Subagents: the model hands work to other agents, each in a session of its own. The parent's turn parks meanwhile.

What a subagent has to ask comes up to the root: whoever waits there can answer it there.

    python examples/subagents.py

It prints:

    asked below, answered at the root: Allow publish? {'title': 'Otters'}
    researcher: Otters hold hands.
    publisher: published: Otters
    editor: The piece on otters is out.
    sessions of subagents: publisher, researcher
"""

from __future__ import annotations

import asyncio

import api_shim as agents


@agents.tool
def publish(title: str) -> str:
    """Publish a piece."""
    return f"published: {title}"


def spawn(agent: str, task: str) -> agents.ScriptedCall:
    return agents.ScriptedCall("agents.spawn", {"agent": agent, "task": task})


researcher = agents.Subagent(
    name="researcher",
    description="Finds out facts.",
    model=agents.ScriptedModel([agents.ScriptedReply(text="Otters hold hands.")]),
)

publisher = agents.Subagent(
    name="publisher",
    description="Publishes what is ready.",
    tools=[publish],
    permission_mode="ask",  # what is left out is inherited: instructions, model, tools, permissions, hooks, sources
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(calls=[agents.ScriptedCall("client.publish", {"title": "Otters"})]),
            agents.ScriptedReply(text="published: Otters"),
        ]
    ),
)

editor = agents.Agent(
    name="editor",
    subagents=[researcher, publisher],
    subagent_policy=agents.SubagentPolicy(concurrent_child_turn_limit=2, max_depth=1),
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(calls=[spawn("researcher", "A fact about otters.")]),
            agents.ScriptedReply(calls=[spawn("publisher", "Publish it.")]),
            agents.ScriptedReply(text="The piece on otters is out."),
        ]
    ),
)


async def main() -> None:
    session = await editor.start_session()
    state = await session.run("Publish a fact about otters.")
    assert isinstance(state, agents.Blocked)
    [callback] = state.callbacks
    assert isinstance(callback, agents.OpenApproval)
    assert callback.session_id != session.id  # it is the child's
    print("asked below, answered at the root:", callback.title, callback.request.arguments)
    turn = session.turn(state.turn_id)
    await turn.answer(callback.id, agents.AllowApproval())
    state = await turn.result(after=state)

    calls: dict[str, str] = {}
    async for entry in session.history():
        match entry:
            case agents.ToolCallEntry(name="agents.spawn", arguments={"agent": str(agent)}, tool_call_id=call):
                calls[call] = agent
            case agents.ToolResultEntry(text=text, tool_call_id=call):
                print(f"{calls[call]}: {text}")
    print("editor:", state.text)
    children = [(await child.info()).agent_name for child in await session.subagents()]  # newest first
    print("sessions of subagents:", ", ".join(children))
    await session.cancel()  # ends theirs too


if __name__ == "__main__":
    asyncio.run(main())
