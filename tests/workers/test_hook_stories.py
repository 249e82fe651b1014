"""Any hooks, deciding anything at any time, and a worker lost at any write: the log tells the story that it tells without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import holders
import pytest
from crashes import Doom, doomed, run_on, story
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from broker.broker import Broker
from broker.embedded import EmbeddedServer
from broker.settings import Settings
from workers.agent import AgentDefinition
from workers.client_tools import client_tool
from workers.hook_set import POINTS
from workers.hooks import Hook, Point, reject, request_approval, retry, skip
from workers.models import ContextNote, ModelReasoning, ModelRequest, ModelStop, ModelText, ModelToolCall, ToolMessage
from workers.tools import tool

FAIL: Final = "fail"
VERDICTS: Final[dict[Point, list[Any]]] = {
    "pre_agent_turn": [skip("no"), FAIL],
    "pre_llm_call": [skip("no"), FAIL],
    "post_llm_call": [retry("better"), reject("no"), FAIL],
    "pre_tool_call": [skip("no"), request_approval(), {"a": 7, "b": 8}, {"wrong": 1}, FAIL],
    "post_tool_call": [reject("no"), {"another": "result"}, FAIL],
    "post_agent_turn": [FAIL],
}


@tool(retry_safe=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the person for a color."""


class Talk:
    """A model that reasons, calls both tools once in a turn, and then tells how often it was told to do better."""

    async def stream(self, request: ModelRequest) -> Any:
        """Yield the reply that the request calls for."""
        notes = sum(isinstance(message, ContextNote) for message in request.messages)
        yield ModelReasoning(f"hm {notes}")
        yield ModelText(f"after {notes} ")
        yield ModelText("notes")
        if not any(isinstance(message, ToolMessage) for message in request.messages):
            yield ModelToolCall("a", "client.add", {"a": 1, "b": 2})
            yield ModelToolCall("b", "client.ask_color", {"of": "sky"})
        yield ModelStop()


class Decides(Hook):
    """Decides what was drawn for the nth time that a point comes by; it counts in its State."""

    class State(BaseModel):
        seen: dict[str, int] = {}

    def __init__(self, name: str, drawn: dict[tuple[Point, int], Any], points: set[Point]) -> None:
        self.name = name
        self.drawn = drawn
        self.points = points

    def decide(self, ctx: Any, point: Point) -> Any:
        """Count, and decide."""
        if point not in self.points:
            return None
        at = ctx.state.seen[point] = ctx.state.seen.get(point, 0) + 1
        verdict = self.drawn.get((point, at))
        if verdict == FAIL:
            raise RuntimeError
        return verdict

    async def pre_agent_turn(self, ctx: Any) -> Any:
        return self.decide(ctx, "pre_agent_turn")

    async def pre_llm_call(self, ctx: Any) -> Any:
        return self.decide(ctx, "pre_llm_call")

    async def post_llm_call(self, ctx: Any, reply: Any) -> Any:
        return self.decide(ctx, "post_llm_call")

    async def pre_tool_call(self, ctx: Any, call: Any) -> Any:
        return self.decide(ctx, "pre_tool_call")

    async def post_tool_call(self, ctx: Any, call: Any, result: Any) -> Any:
        return self.decide(ctx, "post_tool_call")

    async def post_agent_turn(self, ctx: Any) -> Any:
        return self.decide(ctx, "post_agent_turn")


@st.composite
def hooks(draw: st.DrawFn) -> list[Decides]:
    """One or two hooks with what they decide; most points pass."""
    made = []
    for name in draw(st.sampled_from([["one"], ["one", "two"]])):
        points = draw(st.sets(st.sampled_from(POINTS), min_size=1))
        drawn: dict[tuple[Point, int], Any] = {}
        for point in draw(st.lists(st.sampled_from(sorted(points)), max_size=3)):
            drawn[point, draw(st.integers(1, 4))] = draw(st.sampled_from(VERDICTS[point]))
        made.append(Decides(name, drawn, points))
    return made


@asynccontextmanager
async def told(hooks: list[Decides], doom: Doom) -> AsyncIterator[tuple[list[Any], Any]]:
    """Two turns of one session, the first of them doomed: its log, and what the hooks kept."""
    broker = Broker(Settings(prefix="story:"), EmbeddedServer())
    try:
        definition = AgentDefinition(model=Talk(), name="agent", tools=[add, ask_color], hooks=hooks)
        session_id = await holders.open_session(broker)
        with pytest.MonkeyPatch.context() as patched:
            doomed(patched, doom)
            await run_on(broker, definition, session_id)
        doom.writes, first = 0, doom.writes
        await run_on(broker, definition, session_id)
        doom.writes = first
        found = await holders.records(broker, session_id)
        holders.expect_whole(found)
        kept: dict[str, Any] = {}
        for record in found:
            entry = record.get("entry") or {}
            if entry.get("type") == "checkpoint" and "state" in entry["details"]:
                kept[entry["message"].split(":")[1]] = entry["details"]["state"]
        yield story(found), kept
    finally:
        await broker.close()


@given(hooks(), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
async def test_a_lost_worker_changes_nothing(hooks: list[Decides], data: st.DataObject) -> None:
    whole = Doom()
    async with told(hooks, whole) as (expected, kept):
        pass
    doom = Doom(data.draw(st.integers(1, whole.writes), label="write"), data.draw(st.booleans(), label="after"))
    async with told(hooks, doom) as (found, again):
        pass

    assert again == kept
    assert sorted(map(str, found)) == sorted(map(str, expected))
