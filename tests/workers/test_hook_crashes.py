"""Hooks and a worker that is lost at any write: nothing is decided twice, nothing that was kept is lost or counted twice."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any, Final

import holders
import pytest
from crashes import Doom, doomed, run_on, story, surviving
from pydantic import BaseModel

from broker import transitions
from broker.broker import Broker
from broker.protocol.content import content_text
from workers.agent import AgentDefinition
from workers.client_tools import client_tool
from workers.hooks import Hook, HookCall, HookContext, HookReply, reject, request_approval, retry
from workers.models import ContextNote, ModelReasoning, ModelRequest, ModelStop, ModelText, ModelToolCall, ToolMessage
from workers.tools import ToolResult, tool

Ctx = HookContext[Any]


@tool(name="add", retry_safe=True)
async def add_again(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the person for a color."""


class Story:
    """A model that writes a bad reply, then one with calls, then tells their results; at last it says what it must not."""

    async def stream(self, request: ModelRequest) -> Any:
        """Yield the reply that the request's last message calls for."""
        match request.messages[-1]:
            case ContextNote():
                yield ModelReasoning("better")
                yield ModelText("let me see")
                yield ModelToolCall("a", "client.add", {"a": 1, "b": 2})
                yield ModelToolCall("b", "client.add", {"a": 5, "b": 6})
                yield ModelToolCall("c", "client.ask_color", {"of": "sky"})
            case ToolMessage():
                yield ModelText("so: ")
                yield ModelText(", ".join(said(m.content) for m in request.messages if isinstance(m, ToolMessage)))
            case _:
                yield ModelReasoning("hm")
                yield ModelText("a bad ")
                yield ModelText("reply")
        yield ModelStop()


def said(content: Any) -> str:
    return content_text(tuple(content))


class Count(Hook):
    """Counts each point in its State, and decides something at most of them."""

    class State(BaseModel):
        seen: dict[str, int] = {}

    def __init__(self, *, last: Any = None) -> None:
        self.last = last

    def _count(self, ctx: Ctx, point: str) -> None:
        ctx.state.seen[point] = ctx.state.seen.get(point, 0) + 1

    async def pre_agent_turn(self, ctx: Ctx) -> None:
        self._count(ctx, "pre_agent_turn")

    async def pre_llm_call(self, ctx: Ctx) -> None:
        self._count(ctx, "pre_llm_call")

    async def post_llm_call(self, ctx: Ctx, reply: HookReply) -> Any:
        self._count(ctx, "post_llm_call")
        if "bad" in reply.text:
            return retry("do better")
        return self.last if reply.text.startswith("so") else None

    async def pre_tool_call(self, ctx: Ctx, call: HookCall) -> Any:
        self._count(ctx, "pre_tool_call")
        if call.id == "a":
            return {"a": 10, "b": 20}
        return request_approval("really?") if call.id == "b" else None

    async def post_tool_call(self, ctx: Ctx, call: HookCall, result: ToolResult) -> Any:
        self._count(ctx, "post_tool_call")
        return f"<{said(result.content)}>"

    async def post_agent_turn(self, ctx: Ctx) -> None:
        self._count(ctx, "post_agent_turn")


SEEN: Final = {
    "pre_agent_turn": 1,
    "pre_llm_call": 3,
    "post_llm_call": 3,
    "pre_tool_call": 3,
    "post_tool_call": 3,
    "post_agent_turn": 1,
}


def definition(last: Any) -> AgentDefinition:
    return AgentDefinition(model=Story(), name="agent", tools=[add_again, ask_color], hooks=[Count(last=last)])


def state_of(records: list[dict[str, Any]]) -> Any:
    kept = [r["entry"]["details"] for r in records if (r.get("entry") or {}).get("type") == "checkpoint"]
    return [details["state"]["seen"] for details in kept if "state" in details][-1]


def counts(records: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str(entry) for entry in story(records))


@pytest.mark.parametrize("last", [None, reject("it told")], ids=["kept", "rejected"])
async def test_a_worker_lost_at_any_write_changes_nothing_in_the_story(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, last: Any
) -> None:
    whole = Doom()
    async with surviving(broker, definition(last), monkeypatch, whole) as found:
        expected = found
    assert state_of(expected) == SEEN
    (ended,) = [record["state"] for record in expected if record["type"] == "turnEnded"]
    assert ended["stopReason"] == ("skipped" if last else None)
    results = {r["entry"]["toolCallId"]: r["entry"] for r in expected if is_result(r)}
    assert {call: said_in(entry) for call, entry in results.items()} == {"a": "<30>", "b": "<11>", "c": "<blue>"}

    for at in range(1, whole.writes + 1):
        for after in (False, True):
            async with surviving(broker, definition(last), monkeypatch, Doom(at, after)) as found:
                assert state_of(found) == SEEN, (at, after)
                assert counts(found) == counts(expected), (at, after)


async def test_a_turn_interrupted_after_any_write_leaves_a_whole_log_and_no_draft(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, ended = 0, ""
    while ended != "completed":
        at += 1
        session_id = await holders.open_session(broker)
        with monkeypatch.context() as patched:
            doomed(patched, Doom(at, cut=partial(_interrupt, broker, session_id)))
            await run_on(broker, definition(None), session_id)
        found = await holders.records(broker, session_id)
        holders.expect_whole(found)
        (ended,) = [record["state"]["type"] for record in found if record["type"] == "turnEnded"]
        completed = [record["entry"] for record in found if record["type"] == "entryCompleted"]
        texts = [said_in(entry) for entry in completed if entry["type"] == "message"]
        drafted = [entry for entry in completed if "retry" in entry.get("details", ())]
        assert not (drafted and "a bad reply" in texts)

        await run_on(broker, definition(None), session_id)  # the next turn goes through, from what was kept
        holders.expect_whole(again := await holders.records(broker, session_id))
        opened = [entry for entry in completed if entry.get("message") == "hook:Count:pre_agent_turn"]
        assert state_of(again)["pre_agent_turn"] == len(opened) + 1
    assert at > 10


async def _interrupt(broker: Broker, session_id: str) -> None:
    (turn,) = await holders.fields(broker, session_id, "turn")
    if turn:
        await transitions.interrupt(broker, session_id, turn)


def is_result(record: dict[str, Any]) -> bool:
    return (record["type"], (record.get("entry") or {}).get("type")) == ("entryCompleted", "toolResult")


def said_in(entry: dict[str, Any]) -> str:
    return "".join(block["text"] for block in entry["content"])
