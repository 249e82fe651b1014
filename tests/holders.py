"""A turn's holder without a worker: claims, begins and writes with the raw words of the scripts, for tests of the transitions."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, cast

from broker import queue, runs, transitions
from broker.broker import Broker
from broker.contents import Message
from broker.keys import new_id, new_session_id
from broker.protocol.values import loads
from broker.protocol.wire import entry_tail, merge_blob, resolved_tail, tail
from broker.scripting import Argument
from broker.transitions import Raw, SessionOptions, words_of

ENDED: Final = tail({"type": "turnEnded", "state": {"type": "completed", "text": "", "toolCalls": []}})
"""The tail of a completed turn's end."""

Record = dict[str, Any]


def message(text: str = "hello", *, role: str = "user", entry_id: str | None = None) -> bytes:
    """Return the completed tail of a message."""
    entry: Record = {"type": "message", "id": entry_id or new_id(), "role": role}
    return entry_tail("entryCompleted", {**entry, "content": [{"type": "text", "text": text}]})


def notice(text: str) -> bytes:
    """Return the tail of a notice."""
    return tail({"type": "notice", "message": text, "level": "info", "source": "test", "details": None})


def sent(text: str = "hello") -> Message:
    """Return a message as the scripts take it."""
    return Message(tails=[message(text)], digest=uuid.uuid5(uuid.NAMESPACE_OID, text).hex)


async def open_session(broker: Broker, *, agent: str = "agent", once: bool = False, title: bytes = b"null") -> str:
    """Open a session and return its id."""
    session_id = new_session_id(1)
    options = SessionOptions(agent=agent, queue=agent, digest="-", once=once, title=title)
    assert await transitions.open_session(broker, session_id, options)
    return session_id


async def start(broker: Broker, session_id: str, text: str = "hello") -> str:
    """Start a turn and return its id."""
    got = await transitions.start(broker, session_id, sent(text), key=None, join=False)
    assert isinstance(got, transitions.Sent)
    assert got.started
    return got.turn


async def command(broker: Broker, *words: Argument) -> Any:
    """Send one command."""
    return await cast("Any", broker.client).execute_command(*words)


async def claim(broker: Broker, *, worker: str = "w1", slots: int = 10, agent: str = "agent") -> list[queue.Job]:
    """Claim due jobs of an agent's queue."""
    key = broker.keys.queue(0, agent)
    lease = broker.settings.lease
    claimed = await queue.claim(broker, key, worker=worker, slots=slots, lease=lease, budget=5)
    return [queue.read_job(*job) for job in claimed.jobs]


async def lost(broker: Broker, job: queue.Job) -> queue.Job:
    """A job whose worker is lost: its lease has lapsed, and another worker has claimed the turn's next one."""
    await command(broker, "ZADD", f"{broker.keys.queue(0, 'agent')}:running", 1, job.id)
    await claim(broker, worker="w9", slots=0)
    jobs = {each.turn_id: each for each in await claim(broker, worker="w9", slots=100)}
    return jobs[job.turn_id]


@dataclass
class Holder:
    """A run: its job and fence, its writes numbered as a worker numbers them."""

    broker: Broker
    job: queue.Job
    fence: str
    seen: str
    op: int = 0
    attempt: int = 1
    words: dict[int, list[str]] = field(default_factory=dict)

    @property
    def session_id(self) -> str:
        """Its session."""
        return self.job.session_id

    @property
    def turn(self) -> str:
        """Its turn."""
        return self.job.turn_id

    async def write(self, verb: str, *rest: Argument, op: int | None = None, **more: Argument) -> list[str]:
        """Run `append`, `park` or `finish` as the next write, or as number `op`; return the script's words."""
        if op is None:
            op = self.op = self.op + 1
        if verb == "append":
            more.setdefault("expires", transitions.ms_of(self.broker.settings.callback_timeout))
        arguments: dict[str, Argument] = {"sid": self.session_id, "fence": self.fence, "op": op, "seen": self.seen}
        if verb == "finish":
            arguments |= {"report": "", "blob": "", "body": ""}
        key = self.broker.keys.of("session", self.session_id)
        words = words_of(await self.broker.run(verb, key, rest, budget=5, **{**arguments, **more}))
        if words[0] == "ok":
            self.seen = words[2]
        return words

    async def append(self, *effects: Argument) -> list[str]:
        """Append these effects."""
        return await self.write("append", *effects)

    async def see(self) -> None:
        """Fold nothing, and say that all of the log was."""
        self.seen = await last_id(self.broker, self.session_id)

    async def park(self) -> list[str]:
        """Park, having seen all of the log."""
        await self.see()
        return await self.write("park")

    async def finish(self, ended: bytes = ENDED) -> list[str]:
        """End the turn, having seen all of the log."""
        await self.see()
        return await self.write("finish", ended=ended)


async def begin(broker: Broker, job: queue.Job, *, fence: str | None = None, worker: str = "w1") -> Any:
    """Begin a claimed job; return what `runs.begin` gives."""
    return await runs.begin(
        broker,
        job.session_id,
        job=job.id,
        turn=job.turn_id,
        wake=job.wake,
        fence=fence or f"{worker}:{job.wake}",
        worker=worker,
        after="0-0",
        page=100,
    )


async def hold(broker: Broker, *, worker: str = "w1", agent: str = "agent") -> Holder:
    """Claim the one due job and begin it."""
    (job,) = await claim(broker, worker=worker, agent=agent)
    fence = f"{worker}:{new_id()}"
    begun = await begin(broker, job, fence=fence, worker=worker)
    assert isinstance(begun, runs.Begun), begun
    return Holder(broker, job, fence, begun.last, attempt=begun.attempt)


async def running(broker: Broker, *, worker: str = "w1") -> Holder:
    """Open a session, start a turn, claim and begin it."""
    await start(broker, await open_session(broker))
    return await hold(broker, worker=worker)


async def verb_interrupt(broker: Broker, holder: Holder) -> bool:
    """Interrupt a holder's turn; False when it was not the active one."""
    return await transitions.interrupt(broker, holder.session_id, holder.turn) is None


# Effects, as `broker/scripts/include/effects.lua` takes them.


def ask(callback: str, *, call: str | None = None) -> list[Argument]:
    """Open an approval, or a client tool's call."""
    opened: Record = {"type": "approval", "id": callback, "title": "?", "request": {}}
    if call is not None:
        opened = {"type": "clientTool", "id": callback, "title": "?", "call": {"toolCallId": call, "name": "x"}}
    return ["q", callback, tail({"type": "callbackOpened", "callback": opened})]


def result(call: str, text: str, *, entry_id: str | None = None) -> Record:
    """A tool's result as it is stored."""
    return {
        "type": "toolResult",
        "id": entry_id or new_id(),
        "toolCallId": call,
        "name": "client.t",
        "content": [{"type": "text", "text": text}],
        "isError": True,
    }


def called(call: str) -> list[Argument]:
    """A tool call, added complete; not started yet, with its bytes if cut now."""
    entry = {"type": "toolCall", "id": new_id(), "toolCallId": call, "name": "client.t", "arguments": {}}
    return [
        *("e", tail({"type": "entryAdded", "beside": True}), "e", entry_tail("entryCompleted", entry)),
        *("o", f"call:{call}", entry_tail("entryCompleted", result(call, "not started"))),
    ]


def tool_started(call: str, entry_id: str) -> list[Argument]:
    """A tool starts: its result is added without content, with its bytes if cut now."""
    added = {**result(call, "", entry_id=entry_id), "content": []}
    return [
        *("e", entry_tail("entryAdded", added), "c", f"call:{call}"),
        *("o", entry_id, entry_tail("entryCompleted", result(call, "cut", entry_id=entry_id))),
    ]


def writing(kind: str, entry_id: str, text: str) -> list[Argument]:
    """A message or reasoning is opened with its first text."""
    if kind == "message":
        entry: Record = {"type": "message", "id": entry_id, "role": "assistant"}
        added = entry_tail("entryAdded", {**entry, "content": [{"type": "text", "text": text}]}, delta=True)
        whole = entry_tail("entryCompleted", {**entry, "content": [{"type": "text", "text": "@"}]})
    else:
        entry = {"type": "reasoning", "id": entry_id}
        added = entry_tail("entryAdded", {**entry, "text": text})
        whole = entry_tail("entryCompleted", {**entry, "text": "@"})
    before, _, after = whole.partition(b"@")
    return ["e", added, "w", entry_id, kind, before, after, text]


def more(entry_id: str, text: str) -> list[Argument]:
    """More text of an open message."""
    return ["d", entry_id, text, tail({"type": "textDelta", "entryId": entry_id, "text": text})]


async def answer(broker: Broker, session_id: str, callback: str, **more_: Any) -> Any:
    """Answer a callback with "allow"."""
    resolved = resolved_tail(callback, "answered", {"type": "allow", "scope": "once"})
    return await transitions.answer(broker, session_id, callback, resolved, **more_)


# What lies in the broker.


async def records(broker: Broker, session_id: str, *, after: str = "-") -> list[Record]:
    """Return the stored records, blobs and beside-lying entries put in, each with its stream id under `at`."""
    reply = await command(broker, "XRANGE", broker.keys.of("log", session_id), after, "+")
    found: list[Record] = []
    for stream_id, fields in reply:
        record: Record = loads(fields[b"e"])
        if (name := record.get("blob")) is not None:
            record = merge_blob(record, await command(broker, "HGET", broker.keys.of("blobs", session_id), name))
        record["at"] = stream_id.decode()
        if found and found[-1].get("beside"):
            found[-1]["entry"] = record["entry"]
        found.append(record)
    return found


async def raw_records(broker: Broker, session_id: str) -> list[Raw]:
    """Return the stored records as they lie in the stream."""
    reply = await command(broker, "XRANGE", broker.keys.of("log", session_id), "-", "+")
    return [Raw(stream_id.decode(), found[b"e"]) for stream_id, found in reply]


def kinds(found: list[Record]) -> list[str]:
    """Return the types of records, with the status where they have one."""
    return [f"{record['type']}({record['status']})" if "status" in record else record["type"] for record in found]


async def fields(broker: Broker, session_id: str, *names: str) -> list[str | None]:
    """Return fields of the session's hash."""
    reply = await command(broker, "HMGET", broker.keys.of("session", session_id), *names)
    return [None if value is None else value.decode() for value in reply]


async def last_id(broker: Broker, session_id: str) -> str:
    """Return the id of the session's last stored event."""
    n, ms = await fields(broker, session_id, "n", "ms")
    return f"{n}-{ms}"


async def keys_of(broker: Broker, *kinds_: str) -> list[str]:
    """Return the keys of these kinds, without the shard's base; `job` stands for arq's job keys."""
    base = broker.keys.base(0)
    found = []
    for kind in kinds_:
        pattern = f"arq:job:*{broker.settings.prefix}*" if kind == "job" else f"{base}{kind}:*"
        found += [key.decode().removeprefix(base) for key in await cast("Any", broker.client).keys(pattern)]
    return sorted(found)


async def queued(broker: Broker, *, agent: str = "agent") -> tuple[list[str], list[str]]:
    """Return the job ids in the queue, and those that run."""
    key = broker.keys.queue(0, agent)
    waiting, held = await asyncio.gather(
        command(broker, "ZRANGE", key, 0, -1), command(broker, "ZRANGE", f"{key}:running", 0, -1)
    )
    return [job.decode() for job in waiting], [job.decode() for job in held]


async def move_clock(broker: Broker, ms: int) -> None:
    """Let the scripts' clock be off by this much."""
    await command(broker, "SET", f"{broker.keys.base(0)}clock", ms)


def expect_whole(found: list[Record]) -> None:
    """Every entry added is completed once, after it; every call has its result, every question its end; ids are dense."""
    places = [tuple(int(part) for part in record["at"].split("-")) for record in found]
    assert [n for n, _ in places] == list(range(1, len(found) + 1))
    assert [ms for _, ms in places] == sorted(ms for _, ms in places)
    added = [record["entry"]["id"] for record in found if record["type"] == "entryAdded"]
    completed = [record["entry"]["id"] for record in found if record["type"] == "entryCompleted"]
    assert Counter(added) == Counter(completed)
    assert max(Counter(added).values(), default=1) == 1
    for entry_id in added:
        order = [record["type"] for record in found if record.get("entry", {}).get("id") == entry_id]
        assert order == ["entryAdded", "entryCompleted"]
    entries = [record["entry"] for record in found if record["type"] == "entryCompleted"]
    calls = Counter(entry["toolCallId"] for entry in entries if entry["type"] == "toolCall")
    assert calls == Counter(entry["toolCallId"] for entry in entries if entry["type"] == "toolResult")
    opened = [record["callback"]["id"] for record in found if record["type"] == "callbackOpened"]
    assert sorted(opened) == sorted(record["callbackId"] for record in found if record["type"] == "callbackResolved")
