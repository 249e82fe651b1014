"""Limits: on iterations, on tools, on waits, and on how long a question stays open.

    python examples/time_limits.py

With workers, a question's time is their setting: TURNSTREAM_CALLBACK_TIMEOUT=2 turnstream worker examples.time_limits:clock

It prints:

    after 3 model calls: iteration_limit, 3 calls made
    the model read: client.slow did not end within 0.2 s and was stopped.
    a wait of 0.05 s that is over: Blocked
    nobody answered in time; the model read: client.launch was not run: nobody answered in time.
"""

from __future__ import annotations

import asyncio
import os

import api_shim as agents

os.environ.setdefault("TURNSTREAM_CALLBACK_TIMEOUT", "2")  # seconds; without it, a question stays open for ever


@agents.tool
async def tick() -> str:
    """Tick."""
    return "tock"


@agents.tool(timeout=0.2)
async def slow() -> str:
    """Take an hour."""
    await asyncio.sleep(3600)
    return "done"


@agents.tool
def launch() -> str:
    """Launch."""
    return "launched"


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    asked = next(message.text for message in request.messages if isinstance(message, agents.UserMessage))
    last = request.messages[-1]
    if isinstance(last, agents.ToolMessage) and asked != "tick":
        return agents.ScriptedReply(text=last.text)
    return agents.ScriptedReply(calls=[agents.ScriptedCall(f"client.{asked}", {})])


clock = agents.Agent(
    name="clock",
    tools=[tick, slow, launch],
    max_iterations=3,  # model calls in one turn
    permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.launch"], decision="ask")]),
    model=agents.ScriptedModel(script),
)


async def main() -> None:
    match await clock.run("tick"):
        case agents.Completed(tool_calls=calls, stop_reason=reason):
            print(f"after 3 model calls: {reason}, {len(calls)} calls made")
    print("the model read:", (await clock.run("slow")).text)

    session = await clock.start_session()
    turn = await session.send_message("launch")
    state = await turn.result()  # Blocked: a question is open
    state = await turn.result(after=state, timeout=0.05)  # a wait's timeout stops the wait, never the turn
    print("a wait of 0.05 s that is over:", type(state).__name__)
    state = await turn.result(after=state)
    print("nobody answered in time; the model read:", state.text)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
