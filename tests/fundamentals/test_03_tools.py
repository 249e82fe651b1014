"""3. Tools.

A tool is a function that the model may call. Its call is an entry, its result is an entry, and the model reads the result. A tool
that fails does not fail the turn: the model reads that too.
"""

from __future__ import annotations

import asyncio

from homes import Home

import api_shim as agents


@agents.tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@agents.tool
def fail() -> str:
    """Fail."""
    raise agents.ToolError("the printer is on fire")


def calling(*calls: agents.ScriptedCall) -> agents.ScriptedModel:
    """A model that makes these calls in one reply, and then says what it read."""

    def script(request: agents.ModelRequest) -> agents.ScriptedReply:
        results = [message.text for message in request.messages if isinstance(message, agents.ToolMessage)]
        return agents.ScriptedReply(text=" | ".join(results)) if results else agents.ScriptedReply(calls=calls)

    return agents.ScriptedModel(script)


async def test_the_model_calls_a_tool_and_reads_its_result(home: Home) -> None:
    agent = await home.agent(calling(agents.ScriptedCall("client.add", {"a": 2, "b": 3})), tools=[add])
    state = await agent.run("2 + 3?")

    assert isinstance(state, agents.Completed)
    assert state.text == "5"
    assert state.tool_calls == (agents.ToolCall(name="client.add", arguments={"a": 2, "b": 3}),)


async def test_a_call_and_its_result_are_entries_of_the_history(home: Home) -> None:
    """`structured_content` is what the tool returned; `content` is what the model reads of it."""
    model = calling(agents.ScriptedCall("client.add", {"a": 2, "b": 3}))
    session = await (await home.agent(model, tools=[add])).start_session()
    await session.run("2 + 3?")
    call, result = [
        entry async for entry in session.history() if isinstance(entry, agents.ToolCallEntry | agents.ToolResultEntry)
    ]

    assert isinstance(call, agents.ToolCallEntry)
    assert isinstance(result, agents.ToolResultEntry)
    assert call.tool_call_id == result.tool_call_id
    assert (result.structured_content, result.text, result.is_error) == (5, "5", False)


async def test_what_goes_wrong_is_for_the_model_to_read(home: Home) -> None:
    """Its own failure, arguments that do not fit, a tool that does not exist: three errors, and the turn goes on."""
    model = calling(
        agents.ScriptedCall("client.fail", {}),
        agents.ScriptedCall("client.add", {"a": "two", "b": 3}),
        agents.ScriptedCall("client.subtract", {}),
    )
    state = await (await home.agent(model, tools=[add, fail])).run("Try.")
    failed, misfit, unknown = state.text.split(" | ")

    assert isinstance(state, agents.Completed)
    assert failed == "the printer is on fire"
    assert misfit.startswith("The arguments do not fit client.add: a: ")
    assert "two" not in misfit
    assert "client.subtract" in unknown


async def test_calls_of_one_reply_run_side_by_side_and_keep_their_order(home: Home) -> None:
    """Each waits for the other here: one after the other, they would wait for ever."""
    met = asyncio.Barrier(2)

    @agents.tool(timeout=20)
    async def meet(name: str) -> str:
        await met.wait()
        return name

    model = calling(*(agents.ScriptedCall("client.meet", {"name": name}) for name in ("Ada", "Bob")))
    state = await (await home.agent(model, tools=[meet])).run("Meet.")

    assert state.text == "Ada | Bob"


async def test_a_tool_that_takes_too_long_is_stopped(home: Home) -> None:
    @agents.tool(timeout=0.05)
    async def sleep() -> str:
        await asyncio.sleep(3600)
        return "rested"

    state = await (await home.agent(calling(agents.ScriptedCall("client.sleep", {})), tools=[sleep])).run("Sleep.")

    assert isinstance(state, agents.Completed)
    assert state.text == "client.sleep did not end within 0.05 s and was stopped."
