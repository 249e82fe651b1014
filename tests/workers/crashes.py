"""A turn whose worker is lost at a write of its choice, and run on by the next one from the log alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import holders
import pytest

from broker import queue, runs, transitions
from broker.broker import Broker
from broker.keys import new_id
from broker.protocol.callbacks import AllowApproval, answer_to_wire
from broker.protocol.wire import entry_tail, resolved_tail
from workers.agent import AgentDefinition
from workers.fold import History
from workers.run_context import RunContext
from workers.turn import start_run
from workers.writer import fold_raw


class LostError(Exception):
    """The worker is lost."""


@dataclass
class Doom:
    """Loses the worker at its write number `at`, before or after the broker has it; `writes` counts them.

    With `cut`, that comes after the write in its place.
    """

    at: int = 0
    after: bool = False
    cut: Callable[[], Awaitable[object]] | None = None
    writes: int = 0

    async def write(self, real: Any, *arguments: Any, **options: Any) -> Any:
        """Make one write, or be lost."""
        self.writes += 1
        if self.writes == self.at and not self.after and self.cut is None:
            raise LostError
        result = await real(*arguments, **options)
        if self.writes == self.at and self.cut is not None:
            await self.cut()
        elif self.writes == self.at:
            raise LostError
        return result


def doomed(monkeypatch: pytest.MonkeyPatch, doom: Doom) -> None:
    """Let every write of a run pass by `doom`."""
    for name in ("append", "park", "finish", "spawn"):
        real = getattr(runs, name)

        async def write(*arguments: Any, _real: Any = real, **options: Any) -> Any:
            return await doom.write(_real, *arguments, **options)

        monkeypatch.setattr(runs, name, write)


async def run_once(broker: Broker, definition: AgentDefinition) -> str:
    """Run the next turn as a worker does that knows nothing of it, until it parks, ends, or the worker is lost."""
    (job,) = await holders.claim(broker, slots=1)
    fence = new_id()
    begun = await holders.begin(broker, job, fence=fence)
    assert isinstance(begun, runs.Begun), begun
    history = History()
    await fold_raw(broker, job.session_id, history, await holders.raw_records(broker, job.session_id))
    for name in begun.path:
        definition = definition.child(name)
    context = RunContext(broker, definition, job.session_id, job.turn_id, fence, {}, {}, begun.path, begun.spawned)
    run = await start_run(context, begun, history)
    try:
        return await run.run()
    except runs.Superseded:
        return "superseded"
    except LostError:
        key = broker.keys.queue(0, "agent")
        await holders.command(broker, "ZADD", f"{key}:running", 1, job.id)
        await queue.claim(broker, key, worker="reaper", slots=0, lease=15, budget=5)
        return "lost"


async def answer_all(broker: Broker, session_id: str) -> None:
    """Allow every approval, and answer every client tool with "blue"."""
    asked = await holders.command(broker, "HKEYS", broker.keys.of("asked", session_id))
    for record in await holders.records(broker, session_id):
        callback = record.get("callback") or {}
        if callback.get("id", "").encode() not in asked:
            continue
        if callback["type"] == "approval":
            resolved = resolved_tail(callback["id"], "answered", answer_to_wire(AllowApproval()))
            await transitions.answer(broker, session_id, callback["id"], resolved)
            continue
        call_id = callback["call"]["toolCallId"]
        entry = {**holders.result(call_id, "blue"), "isError": False, "name": callback["call"]["name"]}
        resolved = resolved_tail(callback["id"], "answered", {"type": "clientTool", "result": entry})
        completed = entry_tail("entryCompleted", entry)
        field = f"call:{call_id}"
        await transitions.answer(broker, session_id, callback["id"], resolved, call=field, result=completed)


async def run_on(broker: Broker, definition: AgentDefinition, session_id: str) -> list[str]:
    """Start a turn and run it, by one worker after another, until it has ended; how each run went."""
    await holders.start(broker, session_id)
    went: list[str] = []
    while not went or went[-1] != "ended":
        assert len(went) < 20, went
        if not sum(map(len, await holders.queued(broker))):
            break  # it ended in the write that the worker was lost at
        went.append(await run_once(broker, definition))
        if went[-1] == "parked" or (went[-1] == "lost" and not (await holders.queued(broker))[0]):
            await answer_all(broker, session_id)
    return went


@asynccontextmanager
async def surviving(
    broker: Broker, definition: AgentDefinition, monkeypatch: pytest.MonkeyPatch, doom: Doom
) -> AsyncIterator[list[dict[str, Any]]]:
    """Run a turn to its end in spite of `doom`; give its log, checked."""
    with monkeypatch.context() as patched:
        doomed(patched, doom)
        session_id = await holders.open_session(broker)
        went = await run_on(broker, definition, session_id)
    assert ("lost" in went) == (doom.at > 0)
    found = await holders.records(broker, session_id)
    holders.expect_whole(found)
    yield found


def story(records: list[dict[str, Any]]) -> list[Any]:
    """A log without what two runs of the same story may not share: ids, times, and notices of a lost worker."""
    told: list[Any] = []
    names: dict[str, str] = {}
    for record in records:
        if record["type"] == "notice" and str(record.get("source")).startswith(("worker", "turn")):
            continue
        told.append(_plain({key: value for key, value in record.items() if key not in ("at", "turnId")}, names))
    return told


def _plain(value: Any, names: dict[str, str]) -> Any:
    match value:
        case dict():
            return {
                key: names.setdefault(item, f"#{len(names)}")
                if key in ("id", "callback", "callbackId") and isinstance(item, str)
                else _plain(item, names)
                for key, item in value.items()
                if key not in ("openedAt", "read", "attempt")
            }
        case list():
            return [_plain(item, names) for item in value]
        case _:
            return value
