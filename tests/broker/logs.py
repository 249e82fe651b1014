"""Sessions and events for tests of the log, made by the real scripts."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence

from broker import runs, transitions
from broker.broker import Broker
from broker.contents import Message
from broker.keys import new_id, new_session_id
from broker.protocol.events import Event
from broker.protocol.wire import Position, parse_cursor, tail
from broker.runs import Write
from broker.scripting import Argument
from broker.transitions import SessionOptions


async def open_session(broker: Broker, *, shards: int = 1) -> str:
    """Open a session of the agent `agent` and return its id."""
    session_id = new_session_id(shards)
    await transitions.open_session(broker, session_id, SessionOptions(agent="agent", queue="agent", digest="-"))
    return session_id


def message_tail(text: str) -> bytes:
    """Return the completed tail of a user's message."""
    entry = {"type": "message", "id": new_id(), "role": "user", "content": [{"type": "text", "text": text}]}
    return tail({"type": "entryCompleted", "entry": entry})


def notice(message: str) -> bytes:
    """Return the tail of a notice."""
    return tail({"type": "notice", "message": message, "level": "info", "source": "test", "details": None})


class Run:
    """A turn that runs: what a worker would write, without the worker."""

    def __init__(self, broker: Broker, session_id: str, turn: str) -> None:
        self.broker = broker
        self.session_id = session_id
        self.turn = turn
        self._fence = new_id()
        self._op = 0

    async def begin(self) -> Run:
        """Take the turn up."""
        job = f"{{s0}}{self.broker.settings.prefix}{self.session_id}:{self.turn}:1"
        begun = await runs.begin(
            self.broker,
            self.session_id,
            job=job,
            turn=self.turn,
            wake=1,
            fence=self._fence,
            worker="test",
            after="0-0",
            page=1,
        )
        assert isinstance(begun, runs.Begun)
        return self

    def _write(self) -> Write:
        self._op += 1
        return Write(self.session_id, self._fence, self._op, "0-0")

    async def append(self, *tails: bytes) -> str:
        """Append stored events in one write; return the last id."""
        effects: list[Argument] = []
        for each in tails:
            effects += ["e", each]
        return await self.effects(effects)

    async def effects(self, effects: Sequence[Argument]) -> str:
        """Apply effects in one write; return the last id."""
        return (await runs.append(self.broker, self._write(), effects, budget=5.0))[1]

    async def finish(self) -> None:
        """End the turn, completed."""
        ended = tail({"type": "turnEnded", "state": {"type": "completed", "text": "", "toolCalls": []}})
        write = self._write()
        assert await runs.finish(self.broker, Write(write.session_id, write.fence, write.op, ""), ended, budget=5.0)


async def start_run(broker: Broker, session_id: str, text: str = "hello") -> Run:
    """Start a turn with a message and take it up."""
    sent = await transitions.start(
        broker, session_id, Message(tails=[message_tail(text)], digest=uuid.uuid4().hex), key=None, join=False
    )
    assert isinstance(sent, transitions.Sent)
    return await Run(broker, session_id, sent.turn).begin()


def place(event: Event) -> Position:
    """Return an event's position."""
    return parse_cursor(event.session_id, event.id)


async def collect(events: AsyncIterator[Event]) -> list[Event]:
    """Return all events of an iterator."""
    return [event async for event in events]
