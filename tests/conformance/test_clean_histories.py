"""Whatever is done to a session, in any order, its log and what an observer saw of it have no finding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from agents_for_tests import Gate, add, ask_color, call, started
from eventually import eventually
from hypothesis import given, settings
from hypothesis import strategies as st

import api_shim as agents
from api_shim.local import place_of
from broker.protocol.content import content_text
from broker.protocol.wire import START
from broker.seen_check import check_seen
from broker.stored_session import check_tree, read_tree

SPAWN: Final = agents.ScriptedCall("agents.spawn", {"agent": "helper", "task": "Add."})
REPLIES: Final[dict[str, list[Any]]] = {
    "plain": ["well, ", "well"],
    "asks": ["let me add", call("add", a=1, b=2), call("add", a=3, b=4)],
    "client": [call("ask_color", of="sky")],
    "spawns": ["help me", SPAWN],
    "everything": ["all: ", SPAWN, call("ask_color", of="sky"), call("add", a=1, b=2)],
    "fails": ["I am", agents.ModelError("gone", retryable=False)],
    "fails once": ["a first ", agents.ModelError("busy", retryable=True, retry_after=0.0)],
}
CUTS: Final = ("none", "interrupt", "steer", "lose its worker", "interrupt its questions")
Steps = list[tuple[str, str]]


class Asked:
    """A model that replies as the person's last message says, and then "done". In the middle of a reply it waits at its gate."""

    def __init__(self) -> None:
        self.gate: Gate | None = None
        self.failed = False
        self.asked = 0

    async def stream(self, request: agents.ModelRequest) -> AsyncIterator[Any]:
        """Yield the reply's deltas."""
        self.asked += 1
        asked = [at for at, each in enumerate(request.messages) if isinstance(each, agents.UserMessage)][-1]
        replied = any(isinstance(each, agents.AssistantMessage) for each in request.messages[asked:])
        kind = content_text(request.messages[asked].content)  # type: ignore[union-attr] # a person's message has content
        again = replied or (kind == "fails once" and self.failed)
        gate, self.gate = self.gate, None
        for at, step in enumerate(["done"] if again else REPLIES.get(kind, ["what?"])):
            if isinstance(step, agents.ModelError):
                self.failed = True
                raise step.with_traceback(None)
            if isinstance(step, str):
                yield agents.ModelText(step)
            else:
                yield agents.ModelToolCall(f"call_{at}", step.name, step.arguments)
            if gate is not None and at == 0:
                await gate.wait()
        yield agents.ModelStop("end")


async def lose_the_worker(model: Asked) -> None:
    """Let the lease of the one turn lapse: it runs again, beside a run that does not know it yet."""
    broker, before = place_of(None).broker, model.asked
    key = f"{broker.keys.queue(0, 'clerk')}:running"
    for job in await broker.commands.command("ZRANGE", key, 0, -1):
        await broker.commands.command("ZADD", key, 1, job)
    await eventually(lambda: model.asked > before, "it runs again")


async def take(session: agents.Session, model: Asked, kind: str, cut: str) -> None:
    """One turn of a kind, with what happens to it in the middle of its first reply, or while it waits for people."""
    gate = model.gate = Gate() if cut in ("interrupt", "steer", "lose its worker") else None
    model.failed = False
    turn = started(await session.start_turn(kind))
    if gate is not None:
        await gate.reached.wait()
        match cut:
            case "interrupt":
                await turn.interrupt()
            case "steer":
                await turn.steer("plain")
            case _:
                await lose_the_worker(model)
        gate.open.set()
    while isinstance(state := await turn.result(timeout=20), agents.Blocked):
        if cut == "interrupt its questions":
            await turn.interrupt()
        for callback in state.callbacks:
            client = isinstance(callback, agents.OpenClientToolCall)
            await turn.answer(callback.id, "blue" if client else agents.AllowApproval())
    assert not isinstance(state, agents.Running)


async def live(steps: Steps, last: str) -> None:
    """Live through these turns, and end the session in the middle of a last one."""
    model = Asked()
    helper = agents.Subagent(
        name="helper",
        description="adds",
        model=agents.ScriptedModel([agents.ScriptedReply(calls=[call("add", a=1, b=2)])]),
    )
    agent = agents.Agent(name="clerk", model=model, tools=[add, ask_color], permission_mode="ask", subagents=[helper])
    session = await agent.start_session()
    seen: list[agents.Event] = []

    async def watch() -> None:
        seen.extend([event async for event in session.iter_events()])

    watching = asyncio.create_task(watch())
    for kind, cut in steps:
        await take(session, model, kind, cut)
    turn = started(await session.start_turn(last))
    await turn.result(timeout=0.02)
    await session.cancel()
    await asyncio.wait_for(watching, 10)

    tree = await read_tree(place_of(None).broker, session.id)
    assert [finding for _, findings in check_tree(tree) for finding in findings] == []
    assert check_seen(seen, tree[0].records, after=START, ended=True, live=True) == []
    assert len(tree[0].turns) == len(steps) + 1
    await place_of(None).close()


@given(
    st.lists(st.tuples(st.sampled_from(list(REPLIES)), st.sampled_from(CUTS)), max_size=4),
    st.sampled_from(list(REPLIES)),
)
@settings(max_examples=20)
def test_whatever_happens_to_a_session_nothing_is_found(steps: Steps, last: str) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("TURNSTREAM_REDIS_URL", raising=False)
        asyncio.run(live(steps, last))
