"""The verbs of a session, typed: each function runs one script and gives its words back as a value.

A state changes nowhere else. What a script may answer stands in the contract at its top; a word that its caller must tell
apart becomes a value here, and the errors of one table (`_REFUSALS`) are raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from broker.broker import Broker
from broker.contents import Completed, Message, Note, contents
from broker.keys import new_id
from broker.protocol.errors import (
    AgentsError,
    SessionIdempotencyConflictError,
    SessionNotFoundError,
    SessionTerminatedError,
    UnsupportedSessionProcedureError,
)
from broker.protocol.wire import INLINE_LIMIT, tail
from broker.scripting import Argument

PROTOCOL: Final = 1
"""The record protocol this version writes, and the newest it reads."""


class Raw(NamedTuple):
    """A stored record as it lies in the stream: its id, and its body (`broker/protocol/wire.py`)."""

    id: str
    body: bytes


def words_of(reply: Sequence[Any]) -> list[str]:
    """Return a script's reply as words."""
    return [word.decode() if isinstance(word, bytes) else str(word) for word in reply]


def pairs_of(reply: Sequence[Any]) -> list[Raw]:
    """Return a script's flat list of ids and bodies as records."""
    flat = iter(reply)
    return [Raw(place.decode(), body) for place, body in zip(flat, flat, strict=True)]


def ms_of(seconds: float | None) -> Argument:
    """Return a duration as the scripts take it: whole ms, at least one; '' for None."""
    return "" if seconds is None else max(1, int(seconds * 1000))


def session_key(broker: Broker, session_id: str) -> str:
    """Return the session's own key. Raises `SessionNotFoundError` for an id that no session can have."""
    try:
        return broker.keys.of("session", session_id)
    except KeyError:
        raise SessionNotFoundError(f"There is no session {session_id!r}: this is no session id.") from None


def no_session(session_id: str) -> SessionNotFoundError:
    """Return the error for a session that is not there."""
    return SessionNotFoundError(f"There is no session {session_id}: it never existed here, or its retention is over.")


_REFUSALS: Final[dict[str, tuple[type[AgentsError], str]]] = {
    "missing": (SessionNotFoundError, "There is no session {sid}: it never existed here, or its retention is over."),
    "child": (
        UnsupportedSessionProcedureError,
        "Session {sid} is a subagent's, which takes no messages and ends with its root: send to its parent, or cancel its root.",
    ),
    "terminated": (SessionTerminatedError, "Session {sid} has ended and takes no new input; start a new session."),
}


async def session_verb(
    broker: Broker, verb: str, session_id: str, rest: Iterable[Argument] = (), **arguments: Argument
) -> list[Any]:
    """Run a verb of one session; what its script refuses in words of the table above is raised."""
    key = session_key(broker, session_id)
    reply = await broker.run(verb, key, rest, budget=None, sid=session_id, **arguments)
    refusal = _REFUSALS.get(reply[0].decode())
    if refusal is not None:
        error, text = refusal
        raise error(text.format(sid=session_id))
    return reply


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What a session is opened with. `title` and `inputs` are ready JSON; `digest` is that of all options together.

    `note` is a notice about them, which the start of the first turn puts into the log: opening has no event of its own.
    """

    agent: str
    queue: str
    title: bytes = b"null"
    once: bool = False
    digest: str
    inputs: bytes = b""
    customization: bytes = b""
    preview: bytes = b""
    note: Note | None = None


@dataclass(frozen=True)
class Draft:
    """A starting history as it was staged: under which name, and how many events."""

    name: str
    events: int


class DraftLostError(Exception):
    """What was staged is not there any more, or not whole: its TTL was over, or the broker lost it. Stage it anew."""


async def open_session(broker: Broker, session_id: str, options: SessionOptions, draft: Draft | None = None) -> bool:
    """Open a session, with what was staged for it; False when it was open already with the same options.

    Raises `SessionIdempotencyConflictError` (its key empty) when it was opened with others; `DraftLostError`.
    """
    settings = broker.settings
    word = (
        await broker.run(
            "open_session",
            session_key(broker, session_id),
            sid=session_id,
            agent=options.agent,
            queue=options.queue,
            title=options.title,
            protocol=PROTOCOL,
            retention=ms_of(settings.retention),
            idle=ms_of(settings.idle_limit),
            lifetime=ms_of(settings.session_lifetime),
            once=int(options.once),
            digest=options.digest,
            inputs=options.inputs,
            customization=options.customization,
            preview=options.preview,
            note=options.note.tail if options.note else b"",
            draft=draft.name if draft else "",
            events=draft.events if draft else 0,
        )
    )[0]
    if word == b"lost":
        raise DraftLostError
    if word == b"conflict":
        raise SessionIdempotencyConflictError(
            f"Session {session_id} was opened with the same idempotency key and other options; use another key.",
            idempotency_key="",
        )
    return bool(word == b"opened")


async def stage(
    broker: Broker, session_id: str, draft: Draft, entries: Iterable[Completed | Note], *, ttl: float
) -> Draft | None:
    """Add a page to what is staged for a session, and keep it for `ttl` seconds; None when the session exists by now.

    Raises `DraftLostError`, `SessionBusyError`, `BrokerUnavailableError`.
    """
    reply = await broker.run(
        "stage",
        session_key(broker, session_id),
        contents(entries),
        sid=session_id,
        draft=draft.name,
        first=draft.events + 1,
        ttl=int(ttl * 1000),
    )
    match words_of(reply):
        case ["staged", events]:
            return Draft(draft.name, int(events))
        case ["exists"]:
            return None
        case _:
            raise DraftLostError


@dataclass(frozen=True)
class Sent:
    """A message arrived: its turn, and whether it started that turn."""

    turn: str
    started: bool


@dataclass(frozen=True)
class ActiveTurn:
    """A message was refused, since this turn is active (None: no turn is)."""

    turn: str | None


async def start(broker: Broker, session_id: str, message: Message, *, key: str | None, join: bool) -> Sent | ActiveTurn:
    """Start a turn with a message; with `join` it may join the active turn instead.

    A key gives the turn it has already started or joined. Raises `SessionNotFoundError`, `SessionTerminatedError`,
    `SessionIdempotencyConflictError` (the key with another message), `SessionBusyError`, `BrokerUnavailableError`.
    """
    reply = words_of(
        await session_verb(
            broker,
            "start",
            session_id,
            message.values(),
            nonce=new_id(),
            key=key or "",
            digest=message.digest,
            join=int(join),
            turn=new_id(),
            preview=message.preview,
        )
    )
    match reply:
        case ["started", turn, *_]:
            return Sent(turn, started=True)
        case ["joined", turn]:
            return Sent(turn, started=False)
        case ["receipt", turn, started]:
            return Sent(turn, started=started == "1")
        case ["busy", turn]:
            return ActiveTurn(turn)
        case _:
            raise SessionIdempotencyConflictError(
                f"Session {session_id}: the idempotency key was used for another message; use a new key.",
                idempotency_key=key or "",
            )


async def steer(broker: Broker, session_id: str, turn_id: str, message: Message) -> ActiveTurn | None:
    """Add a message to one turn; the active turn instead (or none) when that is not the active one."""
    reply = words_of(await session_verb(broker, "steer", session_id, message.values(), nonce=new_id(), turn=turn_id))
    return None if reply[0] == "joined" else ActiveTurn(None if reply[1] == "-" else reply[1])


async def interrupt(broker: Broker, session_id: str, turn_id: str) -> ActiveTurn | None:
    """End one turn at once; the active turn instead (or none) when that is not the active one."""
    reply = words_of(await session_verb(broker, "interrupt", session_id, nonce=new_id(), turn=turn_id))
    return None if reply[0] == "interrupted" else ActiveTurn(None if reply[1] == "-" else reply[1])


async def cancel(broker: Broker, session_id: str) -> None:
    """End a session and its active turn. One that has ended stays as it is."""
    await session_verb(broker, "cancel", session_id)


async def retitle(
    broker: Broker, session_id: str, *, title: bytes = b"", archived: bool | None = None, note: Note | None = None
) -> None:
    """Change a session's title (ready JSON, empty = as it is) or whether it is archived. `note` is said of the title."""
    flag = "" if archived is None else ("true" if archived else "false")
    await session_verb(broker, "retitle", session_id, title=title, archived=flag, note=note.tail if note else b"")


@dataclass(frozen=True)
class Answered:
    """The answer counted."""


@dataclass(frozen=True)
class Lost:
    """Another answer counted; it stands in this record."""

    record: Raw


async def answer(
    broker: Broker, session_id: str, callback_id: str, resolved: bytes, *, call: str = "", result: bytes = b""
) -> Answered | Lost | None:
    """Answer a callback: the first answer counts. None when the session never opened it.

    `resolved` is the tail of its CallbackResolved; for a client tool, `call` is the open field of its call and `result` the
    bytes that complete it from now on.
    """
    blob: list[Argument] = []
    if len(resolved) > INLINE_LIMIT:
        blob = [new_id(), resolved]
        resolved = tail({"type": "callbackResolved", "blob": blob[0]})
    reply = await session_verb(
        broker,
        "answer",
        session_id,
        blob,
        callback=callback_id,
        nonce=new_id(),
        resolved=resolved,
        call=call,
        result=result,
    )
    match reply[0]:
        case b"answered":
            return Answered()
        case b"lost":
            return Lost(Raw(reply[1].decode(), reply[2]))
        case _:
            return None


@dataclass(frozen=True)
class Asked:
    """An open callback: its place in the log that was read (`N-ms`, of a subagent's `N-ms.k`), its session, and its record there.

    The record is empty when that session's log holds it no longer.
    """

    place: str
    session_id: str
    body: bytes


@dataclass(frozen=True)
class OpenRecord:
    """An active turn as it stood at `last`: its text so far as JSON, and its open callbacks, the subagents' too."""

    last: str
    text: bytes
    first: str
    previous_end: str
    callbacks: list[Asked]


@dataclass(frozen=True)
class EndedRecord:
    """A turn that has ended: its TurnEnded record."""

    last: str
    end: Raw
    first: str
    previous_end: str


@dataclass(frozen=True)
class NoRecord:
    """The session has no such turn."""

    last: str
    status: str


async def record(broker: Broker, session_id: str, turn_id: str) -> OpenRecord | EndedRecord | NoRecord:
    """Read one turn's state and the session's last id, together. Raises `SessionNotFoundError`."""
    reply = await session_verb(broker, "record", session_id, turn=turn_id)
    match reply[0]:
        case b"running":
            last, text, first, previous = reply[1].decode(), reply[2], reply[3].decode(), reply[4].decode()
            flat = iter(reply[5:])
            asked = [Asked(at.decode(), of.decode(), body) for at, of, body in zip(flat, flat, flat, strict=True)]
            return OpenRecord(last, text, first, previous, asked)
        case b"ended":
            return EndedRecord(
                reply[1].decode(), Raw(reply[2].decode(), reply[3]), reply[4].decode(), reply[5].decode()
            )
        case _:
            return NoRecord(reply[1].decode(), reply[2].decode())


async def tails(broker: Broker, session_ids: Sequence[str]) -> list[str | None]:
    """Return the last stored id of each session, None for one that does not exist. All of one shard."""
    reply = await broker.run("tails", session_key(broker, session_ids[0]), session_ids)
    return [None if word == "-" else word for word in words_of(reply)]
