"""Turns for tests: a worker on a broker, and models whose every step the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import holders
from eventually import eventually

from broker import transitions
from broker.broker import Broker
from broker.protocol.callbacks import AllowApproval, answer_to_wire
from broker.protocol.content import content_text
from broker.protocol.wire import entry_tail, resolved_tail
from workers.agent import AgentDefinition
from workers.fold import History
from workers.hook_runs import HookRuns, TurnFacts
from workers.hook_set import HookSet
from workers.models import AssistantMessage, ModelDelta, ModelError, ModelRequest, ModelStop, ModelText, ModelToolCall
from workers.scripted import replies_so_far
from workers.tools import tool
from workers.worker import TurnWorker
from workers.writer import Writer, fold_raw


class Gate:
    """Where a model or a tool waits for the test: `reached` is set when it is there, `open` lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def wait(self) -> None:
        """Be there, and wait."""
        self.reached.set()
        await self.open.wait()


Step = str | ModelDelta | ModelError | Gate


class Steps:
    """A model that takes the steps of the reply that is due; past the last one it says "done". Keeps what it was asked."""

    def __init__(self, *replies: Sequence[Step], tries: dict[int, Sequence[Sequence[Step]]] | None = None) -> None:
        self._replies = replies
        self._tries = tries or {}
        self._asked: dict[int, int] = {}
        self.requests: list[ModelRequest] = []

    def _steps(self, at: int) -> Sequence[Step]:
        asked = self._asked[at] = self._asked.get(at, 0) + 1
        tries = self._tries.get(at, ())
        if asked <= len(tries):
            return tries[asked - 1]
        return self._replies[at] if at < len(self._replies) else ["done"]

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the deltas of the reply that is due."""
        self.requests.append(request)
        for step in self._steps(replies_so_far(request)):
            match step:
                case str():
                    yield ModelText(step)
                case Gate():
                    await step.wait()
                case Exception():
                    raise step
                case _:
                    yield step
        yield ModelStop()


def call(name: str, call_id: str, **arguments: Any) -> ModelToolCall:
    """A call of `client.<name>`."""
    return ModelToolCall(call_id, f"client.{name}", arguments)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Stage:
    """One session of the agent `agent`, served by a worker."""

    def __init__(self, broker: Broker, worker: TurnWorker, session_id: str) -> None:
        self.broker = broker
        self.worker = worker
        self.session_id = session_id
        self.turn = ""

    async def send(self, text: str = "hi") -> str:
        """Start a turn, or join the one that is active."""
        got = await transitions.start(self.broker, self.session_id, holders.sent(text), key=None, join=True)
        assert isinstance(got, transitions.Sent)
        self.turn = got.turn
        return self.turn

    async def interrupt(self) -> None:
        """Interrupt the turn."""
        assert await transitions.interrupt(self.broker, self.session_id, self.turn) is None

    async def state(self) -> str:
        """The turn's job: queued, running, parked, or "" when it has ended."""
        return (await holders.fields(self.broker, self.session_id, "job"))[0] or ""

    async def until(self, state: str) -> None:
        """Wait until the turn's job is that."""
        await eventually(self.state, f"the turn is {state or 'ended'}", until=lambda seen: seen == state, within=10)

    async def ended(self) -> dict[str, Any]:
        """Wait for the turn's end, check the log, and return the end's state."""
        await self.until("")
        found = await self.records()
        holders.expect_whole(found)
        return dict(next(record["state"] for record in reversed(found) if record["type"] == "turnEnded"))

    async def records(self) -> list[dict[str, Any]]:
        """All stored records."""
        return await holders.records(self.broker, self.session_id)

    async def entries(self, kind: str) -> list[dict[str, Any]]:
        """The completed entries of one type, without people's messages."""
        found = [record["entry"] for record in await self.records() if record["type"] == "entryCompleted"]
        return [entry for entry in found if entry["type"] == kind and entry.get("role") not in ("user", "context")]

    async def results(self) -> dict[str, str]:
        """The text of each call's result."""
        return {entry["toolCallId"]: text_of(entry) for entry in await self.entries("toolResult")}

    async def checkpoints(self) -> list[tuple[str, Any]]:
        """What each checkpoint says."""
        return [(entry["message"], entry["details"]) for entry in await self.entries("checkpoint")]

    async def notices(self) -> list[tuple[str, str, str]]:
        """Level, source and message of each notice."""
        found = [record for record in await self.records() if record["type"] == "notice"]
        return [(record["level"], record["source"], record["message"]) for record in found]

    async def callbacks(self, count: int = 1) -> list[str]:
        """Wait until so many questions are open, and return their ids in the order of their opening."""

        async def read() -> list[str]:
            key = self.broker.keys.of("asked", self.session_id)
            asked = await holders.command(self.broker, "HKEYS", key)
            opened = [r["callback"]["id"] for r in await self.records() if r["type"] == "callbackOpened"]
            return [each for each in opened if each.encode() in asked]

        return await eventually(read, f"{count} questions are open", until=lambda seen: len(seen) == count)

    async def answer(self, callback: str, answer: Any = None) -> Any:
        """Answer an approval, by default with "allow"."""
        wire = answer_to_wire(AllowApproval() if answer is None else answer)
        resolved = resolved_tail(callback, "answered", wire)
        return await transitions.answer(self.broker, self.session_id, callback, resolved)

    async def answer_client(self, callback: str, call_id: str, said: str, **private: Any) -> Any:
        """Answer a client tool's call with a text."""
        entry = {**holders.result(call_id, said), "isError": False}
        wire = {"type": "clientTool", "result": entry, **private}
        resolved, completed = resolved_tail(callback, "answered", wire), entry_tail("entryCompleted", entry)
        return await transitions.answer(
            self.broker, self.session_id, callback, resolved, call=f"call:{call_id}", result=completed
        )


def text_of(entry: dict[str, Any]) -> str:
    """The text of a stored entry."""
    return "".join(block.get("text", "") for block in entry["content"])


def read(request: ModelRequest) -> list[tuple[str, str]]:
    """A request's messages: the kind of each, and its text."""
    said = []
    for message in request.messages:
        text = message.text if isinstance(message, AssistantMessage) else content_text(message.content)
        said.append((type(message).__name__, text))
    return said


@asynccontextmanager
async def working(
    broker: Broker, definition: AgentDefinition, *, slots: int | None = None
) -> AsyncIterator[TurnWorker]:
    """Run a worker; it drains at the end."""
    worker = TurnWorker(broker, [definition], slots=slots)
    main = asyncio.create_task(worker.main())
    try:
        await worker.ready.wait()
        yield worker
    finally:
        await worker.drain(0)
        await asyncio.gather(main, return_exceptions=True)


@asynccontextmanager
async def staged(broker: Broker, model: Any, *tools: Any, **options: Any) -> AsyncIterator[Stage]:
    """Open a session whose agent a worker serves."""
    definition = AgentDefinition(model=model, name="agent", tools=tools, **options)
    async with working(broker, definition) as worker:
        yield Stage(broker, worker, await holders.open_session(broker))


def no_hooks(writer: Writer) -> HookRuns:
    """What a run of an agent without hooks has."""
    return HookRuns(HookSet(), TurnFacts("", "", "agent", {}), lambda: writer.history)


async def writer_for(broker: Broker, holder: holders.Holder) -> Writer:
    """A writer for a run that was begun, its history folded."""
    history = History()
    raws = await holders.raw_records(broker, holder.session_id)
    await fold_raw(broker, holder.session_id, history, raws)
    return Writer(broker, holder.session_id, holder.turn, holder.fence, history)
