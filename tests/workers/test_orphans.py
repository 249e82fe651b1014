"""A turn that is cut or loses its worker at any point of a tool call leaves a history that every provider takes (F38)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import holders
import pytest
from crashes import Doom, answer_all, doomed, run_once
from wellformed import expect_wellformed

from broker import transitions
from broker.broker import Broker
from broker.protocol.content import content_text
from workers.agent import AgentDefinition
from workers.client_tools import client_tool
from workers.hooks import Hook
from workers.models import AssistantMessage, ModelDelta, ModelRequest, ModelStop, ModelText, ModelToolCall, ToolMessage
from workers.permissions import PermissionPolicy, PermissionRule
from workers.subagents import Subagent
from workers.tools import tool

CALLS: Final = {
    "run": ("client.work", {"call": "run"}),
    "again": ("client.work_again", {"call": "again"}),
    "asked": ("client.pay", {"call": "asked"}),
    "client": ("client.color", {"of": "sky"}),
    "asked client": ("client.shade", {"of": "sky"}),
    "refused": ("client.forbidden", {"call": "refused"}),
    "unknown": ("client.nowhere", {}),
    "spawn": ("agents.spawn", {"agent": "helper", "task": "help"}),
}
CUT: Final = re.compile(
    r"was not run: the turn was interrupted before it started|was interrupted while it ran; what it did is not known"
    r"|had started when its worker was lost \(worker_lost\); what it did is not known"
)
DONE: Final = {
    "run": "did run",
    "again": "did again",
    "asked": "did asked",
    "client": "blue",
    "asked client": "blue",
    "refused": "client.forbidden was not run: the permission policy refuses it.",
    "unknown": "There is no tool",
    "spawn": "helped",
}


class Strict:
    """A model that takes no request which is not well-formed; its first reply makes the calls, one or all at a time."""

    def __init__(self, *replies: Sequence[str]) -> None:
        self._replies = replies
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the reply that is due."""
        expect_wellformed(request.messages)
        self.requests.append(request)
        made = {call.id for m in request.messages if isinstance(m, AssistantMessage) for call in m.calls}
        due = next((reply for reply in self._replies if not {*reply} & made), ())
        yield ModelText("so")
        for kind in due:
            yield ModelToolCall(kind, *CALLS[kind])
        yield ModelStop()


class Helper:
    """The subagent's model."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Call the tool once, then say so."""
        expect_wellformed(request.messages)
        if isinstance(request.messages[-1], ToolMessage):
            yield ModelText("helped")
        else:
            yield ModelToolCall("below", "client.work", {"call": "below"})
        yield ModelStop()


class Looks(Hook):
    """Decides nothing at both points of a call."""

    async def pre_tool_call(self, ctx: Any, call: Any) -> None:
        """Look."""

    async def post_tool_call(self, ctx: Any, call: Any, result: Any) -> None:
        """Look."""


def definition(model: Any, ran: list[str], *, hooked: bool) -> AgentDefinition:
    """An agent with a tool of each kind; `ran` gets the calls whose tool had its effect."""

    async def act(call: str) -> str:
        ran.append(call)
        return f"did {call}"

    @tool
    async def work(call: str) -> str:
        return await act(call)

    @tool(retry_safe=True)
    async def work_again(call: str) -> str:
        return await act(call)

    @tool
    async def pay(call: str) -> str:
        return await act(call)

    @tool
    async def forbidden(call: str) -> str:
        return await act(call)

    @client_tool
    def color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
        """Ask the client."""

    @client_tool
    def shade(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
        """Ask the client, when a person allows it."""

    return AgentDefinition(
        model=model,
        name="agent",
        tools=[work, work_again, pay, forbidden, color, shade],
        permission_policy=PermissionPolicy(
            rules=[
                PermissionRule(tools=["client.pay", "client.shade"], decision="ask"),
                PermissionRule(tools=["client.forbidden"], decision="deny"),
            ]
        ),
        subagents=[Subagent(name="helper", description="helps", model=Helper())],
        hooks=[Looks()] if hooked else [],
    )


async def run_out(broker: Broker, agent: AgentDefinition, session_id: str) -> list[str]:
    """Run the session's turn to its end, by one worker after another, and answer what is asked; how each run went."""
    went: list[str] = []
    while (await holders.fields(broker, session_id, "turn"))[0]:
        assert len(went) < 60, went
        if (await holders.queued(broker))[0]:
            went.append(await run_once(broker, agent))
        else:
            await answer_all(broker, session_id)
    while (await holders.queued(broker))[0]:  # what a subagent has left
        went.append(await run_once(broker, agent))
    return went


async def interrupt(broker: Broker, session_id: str) -> None:
    """Interrupt the session's turn, if it has one."""
    (turn,) = await holders.fields(broker, session_id, "turn")
    if turn:
        await transitions.interrupt(broker, session_id, turn)


def results(request: ModelRequest) -> dict[str, str]:
    """What a request says of each call; each has one result."""
    told = [m for m in request.messages if isinstance(m, ToolMessage)]
    assert len({message.call_id for message in told}) == len(told)
    return {message.call_id: content_text(message.content) for message in told}


@asynccontextmanager
async def through(
    broker: Broker, agent: AgentDefinition, monkeypatch: pytest.MonkeyPatch, doom: Doom, then: str
) -> AsyncIterator[str]:
    """Run a turn that meets its doom, then a second one; give the session. `then`: go on, or interrupt the lost turn."""
    session_id = await holders.open_session(broker)
    with monkeypatch.context() as patched:
        if then == "cut":
            doom.cut = partial(interrupt, broker, session_id)
        doomed(patched, doom)
        await holders.start(broker, session_id)
        went: list[str] = []
        while then == "interrupt" and "lost" not in went and (await holders.fields(broker, session_id, "turn"))[0]:
            if (await holders.queued(broker))[0]:
                went.append(await run_once(broker, agent))
            else:
                await answer_all(broker, session_id)
        if then == "interrupt":
            await interrupt(broker, session_id)
        await run_out(broker, agent, session_id)
    await holders.start(broker, session_id, "and now?")
    await run_out(broker, agent, session_id)
    holders.expect_whole(await holders.records(broker, session_id))
    yield session_id


WAYS: Final = ((False, "go on"), (True, "go on"), (False, "interrupt"), (True, "interrupt"), (True, "cut"))
"""Whether the worker is lost after the write, or before it; and what then: `cut` interrupts it after the write instead."""


async def expect_no_orphan(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    calls: Sequence[str],
    *,
    hooked: bool,
    ways: Sequence[tuple[bool, str]] = WAYS,
) -> set[str]:
    """Let one reply make these calls, and the turn meet its doom at each write of it in turn; give the texts of cut calls."""
    whole, ran, model = Doom(), list[str](), Strict(calls)
    async with through(broker, definition(model, ran, hooked=hooked), monkeypatch, whole, "go on"):
        said = results(model.requests[-1])
        assert all(DONE[kind] in said[kind] for kind in calls)

    cuts: set[str] = set()
    for at in range(1, whole.writes + 1):
        for after, then in ways:
            ran, model = [], Strict(calls)
            agent, doom = definition(model, ran, hooked=hooked), Doom(at, after)
            async with through(broker, agent, monkeypatch, doom, then):
                said = results(model.requests[-1])
                assert set(said) == set(calls), (at, after, then)
                for kind, text in said.items():
                    cut = CUT.search(text)
                    cuts |= {cut[0]} if cut else set()
                    assert DONE[kind] in text or cut, (at, after, then, kind, text)
                    assert not ("was not run" in text and kind in ran), (at, after, then, text)
                assert all(ran.count(call) <= 1 for call in ran if call != "again")
    return cuts


@pytest.mark.parametrize("kind", CALLS)
async def test_at_every_write_of_one_call(redis_broker: Broker, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    assert await expect_no_orphan(redis_broker, monkeypatch, [kind], hooked=False)


async def test_at_every_write_of_many_calls_at_once_with_hooks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = [(False, "go on"), (True, "interrupt"), (True, "cut")]

    assert len(await expect_no_orphan(broker, monkeypatch, [*CALLS], hooked=True, ways=ways)) == 3
