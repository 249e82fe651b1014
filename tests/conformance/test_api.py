"""What API.md decides beside the seeds, where no other module has a place for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError
from typing import Annotated, Any, ClassVar

import pytest
from agents_for_tests import (
    Home,
    StepModel,
    add,
    ask_color,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    seen,
    started,
    stored,
)
from pydantic import BaseModel
from test_subagents import boss, helper, only_child, spawn

import api_shim as agents
from broker.protocol.content import content_text
from workers.models import ModelReasoning

# Values.


@agents.tool
def look(where: str) -> dict[str, Any]:
    """Look somewhere."""
    return {"found": [where], "deep": {"n": [1]}}


async def test_json_members_are_plain_dicts_and_lists(home: Home) -> None:
    def plain(value: object) -> bool:
        if isinstance(value, dict):
            return type(value) is dict and all(plain(each) for each in value.values())
        if isinstance(value, list):
            return type(value) is list and all(plain(each) for each in value)
        return not isinstance(value, tuple | set)

    model = StepModel([ModelReasoning("hm"), agents.ScriptedCall("client.look", {"where": "here"})])
    session = await (await home.agent(model, tools=[look])).start_session()
    state = done(await session.run("hi"))
    log = await stored(session)

    (made,) = entries_of(log, agents.ToolCallEntry)
    (result,) = entries_of(log, agents.ToolResultEntry)
    (reasoning,) = entries_of(log, agents.UnknownEntry)
    assert result.structured_content == {"found": ["here"], "deep": {"n": [1]}}
    members = (made.arguments, state.tool_calls[0].arguments, result.structured_content, result.meta, reasoning.raw)
    assert [type(member) for member in members] == [dict] * 5
    assert all(plain(member) for member in members)


async def test_an_entry_cannot_be_changed(home: Home) -> None:
    model = StepModel([ModelReasoning("hm"), "Adding", call("add", a=1, b=2)])
    session = await (await home.agent(model, tools=[add])).start_session()
    await session.run([{"type": "context", "text": "it rains"}, {"type": "text", "text": "hi"}])
    entries = [entry async for entry in session.history()]

    assert {type(entry).__name__ for entry in entries} == {
        "MessageEntry", "ContextMessage", "UnknownEntry", "ToolCallEntry", "ToolResultEntry",
    }  # fmt: skip
    for entry in entries:
        for name in ("id", "turn_id", *entry.__match_args__):
            with pytest.raises((FrozenInstanceError, AttributeError)):
                setattr(entry, name, "other")


async def test_a_model_of_one_s_own_reads_its_request_by_public_names(home: Home) -> None:
    class Listener:
        """Says what it was told, by nothing but public names."""

        async def stream(self, request: agents.ModelRequest) -> AsyncIterator[agents.ModelDelta]:
            told = []
            for message in request.messages:
                match message:
                    case agents.UserMessage(content):
                        told.append(f"user {len(content)}")
                    case agents.ContextNote(content):
                        told.append(f"context {len(content)}")
                    case agents.SystemMessage(content):
                        told.append(f"system {len(content)}")
                    case agents.AssistantMessage(said, calls):
                        told.append(f"assistant {said!r} {[asked.name for asked in calls]}")
                    case agents.ToolMessage(call_id, name, _, is_error):
                        told.append(f"tool {call_id} {name} {is_error}")
            yield agents.ModelText("; ".join(told))
            yield agents.ModelStop()

    agent = await home.agent(Listener())
    session = await agent.start_session(
        history=[
            {"type": "message", "role": "system", "content": [{"type": "text", "text": "be kind"}]},
            {"type": "tool_call", "tool_call_id": "c", "name": "client.look"},
            {"type": "tool_result", "tool_call_id": "c", "result": "x"},
        ]
    )
    state = await session.run([{"type": "context", "text": "it rains"}, {"type": "text", "text": "hi"}])

    said = "system 1; assistant '' ['client.look']; tool c client.look False; context 1; user 1"
    assert done(state).output == said


# Listings.


async def test_scopes_of_a_listing_tell_roots_from_subagents(home: Home) -> None:
    inner = helper(["inner done"], name="inner")
    outer = helper([spawn("go", "inner")], name="outer", subagents=[inner])
    session = await boss(home, [spawn("go", "outer")], subagents=[outer])
    done(await session.run("hi"))
    child = await only_child(session)
    grandchild = await only_child(child)

    async def ids(**options: Any) -> list[str]:
        return [info.id async for info in agents.list_sessions(**options)]

    assert await ids() == await ids(scope="roots") == [session.id]
    assert await ids(scope="children", parent=session.id) == [child.id]
    assert await ids(scope="children", parent=child.id) == [grandchild.id]
    assert await ids(scope="tree", root=session.id) == [grandchild.id, child.id, session.id]
    infos = [info async for info in agents.list_sessions(scope="tree", root=session.id)]
    assert [(info.parent_id, info.root_id) for info in infos] == [
        (child.id, session.id),
        (session.id, session.id),
        (None, session.id),
    ]


async def test_a_listing_names_its_host(home: Home) -> None:
    if home.url is None:
        pytest.skip("the embedded broker has no address")
    session = await (await home.agent(StepModel())).start_session()
    agents.connect(None)
    try:
        assert [info async for info in agents.list_sessions()] == []
        assert [info.id async for info in agents.list_sessions(host=home.url)] == [session.id]
    finally:
        await home.place.close()  # the embedded one, made for the first listing
        agents.connect(home.url)


# Callbacks.


async def test_of_two_loops_that_answer_a_client_tool_the_loser_s_wait_goes_on(home: Home) -> None:
    """Two event loops share nothing, as two processes do: both answer, one answer counts, both waits get the end."""
    if home.url is None:
        pytest.skip("the embedded broker belongs to one event loop")
    agent = await home.agent(StepModel([call("ask_color", of="sky")]), tools=[ask_color])
    session = await agent.start_session()
    turn = started(await session.start_turn("hi"))
    await seen(session, "CallbackOpened")
    both = asyncio.Event()
    here = asyncio.get_running_loop()

    async def answer(_: agents.ClientToolCall) -> str:
        await both.wait()
        return "blue"

    def elsewhere() -> str:
        async def wait_too() -> str:
            async def answer_too(_: agents.ClientToolCall) -> str:
                here.call_soon_threadsafe(both.set)
                return "red"

            handle = agents.session(session.id, on_client_tool=answer_too)
            return type(await handle.turn(turn.id).result()).__name__

        return asyncio.run(wait_too())

    waits = (agent.session(session.id, on_client_tool=answer).turn(turn.id).result(), asyncio.to_thread(elsewhere))
    state, other = await asyncio.wait_for(asyncio.gather(*waits), 20)

    done(state)
    assert other == "Completed"
    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert content_text(result.content) in ("blue", "red")


# Hooks and inputs.


class Kept(BaseModel):
    seen: int = 0


class Counting(agents.Hook):
    """Counts the turns that it was asked about."""

    State: ClassVar[type[BaseModel]] = Kept

    def __init__(self) -> None:
        self.told: list[int] = []

    def pre_agent_turn(self, ctx: agents.HookContext) -> None:
        """Count."""
        ctx.state.seen += 1
        self.told.append(ctx.state.seen)


async def test_an_imported_snapshot_is_no_hook_s_checkpoint(home: Home) -> None:
    """Not even one that looks the same: nobody decides for a hook by importing a history."""
    hook = Counting()
    agent = await home.agent(StepModel(["fine"]), hooks=[hook])
    forged = [
        agents.HistoryImportSnapshot(
            task_name="hook", snapshot_type="Counting:pre_agent_turn", value={"state": {"seen": 40}, "skip": "no"}
        )
    ]
    session = await agent.start_session(history=forged)

    assert done(await session.run("hi")).output == "fine"
    assert hook.told == [1]
    (imported, *own) = entries_of(await stored(session), agents.UnknownEntry)
    assert imported.raw["details"] == {"state": {"seen": 40}, "skip": "no"}
    assert [entry.raw["details"]["state"] for entry in own] == [{"seen": 1}]


class Account(agents.SessionInput):
    input_id: ClassVar[str] = "account"
    number: str


@agents.tool
def balance(account: Annotated[Account, agents.Depends()]) -> int:
    """Tell the balance."""
    return len(account.number)


async def test_an_input_is_never_logged(logs: list[Any], home: Home) -> None:
    agent = await home.agent(StepModel([call("balance")], [call("balance")]), tools=[balance])
    done(await (await agent.start_session(session_inputs={"account": {"number": "hunter2"}})).run("go"))
    done(await (await agent.start_session(session_inputs={"account": {"number": ["hunter2"]}})).run("go"))

    assert {entry["event"] for entry in logs} >= {"turn_begun", "turn_left"}
    assert "hunter2" not in repr(logs)


# Limits.


async def test_without_a_retention_an_ended_session_is_kept(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_RETENTION", "none")
    session = await (await home.agent(StepModel())).start_session()
    done(await session.run("hi"))
    await session.cancel()

    keys = await home.broker.client.keys(f"{home.broker.settings.prefix}*{session.id}")
    assert keys
    try:
        assert {await home.broker.client.pttl(key) for key in keys if b":nonce:" not in key} == {-1}
        assert (await session.info()).status == "terminated"
    finally:
        await home.broker.client.delete(*keys)  # else they are leaked, as this test wants them to be


async def test_a_retry_waits_as_long_as_the_server_asks(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        if seconds == 4.25:
            waited.append(seconds)
            return
        await sleep(seconds)

    monkeypatch.setattr("workers.turn.asyncio.sleep", noted)
    model = StepModel([[agents.ModelError("overloaded", retryable=True, retry_after=4.25)], ["Hello"]])
    session = await (await home.agent(model)).start_session()

    assert done(await session.run("hi")).output == "Hello"
    assert waited == [4.25]
