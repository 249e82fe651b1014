"""Dead letters: turns whose worker was lost at each of their attempts, and how one gets another chance.

`begin.lua` puts a turn there as it ends it; it leaves when it is retried, and with its session. The reason and the count stand in
the turn's own end, and what it had done in its session's log.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from broker.broker import Broker
from broker.contents import Message, Note, completed
from broker.history_check import LogRecord
from broker.keys import new_id
from broker.protocol.content import content_from_wire
from broker.protocol.errors import TurnNotFoundError, UnsupportedSessionProcedureError
from broker.protocol.sends import preview_of
from broker.protocol.values import loads
from broker.protocol.wire import parse_stream_id, tail
from broker.stored_session import read_log
from broker.transitions import ActiveTurn, Sent, session_key, session_verb, words_of


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A turn in the dead letters; of a subagent's, `parent_id` is the session that it worked for.

    `session_ended`: it cannot be retried, as its session is over (`Agent.run`'s ends with its turn). `attempts` (None of a turn
    that an older version ended) and `reason` say why it is there, `preview` how its input begins.
    """

    session_id: str
    turn_id: str
    agent_name: str
    parent_id: str | None
    session_ended: bool
    died_at: datetime
    attempts: int | None
    reason: str
    preview: str


async def list_letters(broker: Broker) -> AsyncGenerator[DeadLetter, None]:
    """Yield the dead letters, those that died last first. Raises `BrokerUnavailableError`."""
    shards = [await _of_shard(broker, broker.keys.base(shard)) for shard in range(broker.settings.shards)]
    for died, session_id, turn_id in heapq.merge(*shards, reverse=True):
        letter = await _letter(broker, session_id, turn_id, died)
        if letter is not None:
            yield letter


async def read_letter(broker: Broker, session_id: str, turn_id: str) -> DeadLetter:
    """Return one dead letter. Raises `TurnNotFoundError` when it is none, `SessionNotFoundError` for what is no session id."""
    session_key(broker, session_id)  # an id that no session can have is said
    asked = ("ZSCORE", f"{broker.keys.base_of(session_id)}dead", f"{session_id} {turn_id}")
    (died,) = await broker.read(asked, said=f"Session {session_id}: its dead letters could not be read")
    letter = None if died is None else await _letter(broker, session_id, turn_id, int(float(died)))
    if letter is None:
        raise _no_letter(session_id, turn_id)
    return letter


async def _of_shard(broker: Broker, base: str) -> list[tuple[int, str, str]]:
    """When each died, in ms, its session and its turn; the latest first."""
    listed = ("ZREVRANGE", f"{base}dead", 0, -1, "WITHSCORES")
    (flat,) = await broker.read(listed, said="The dead letters could not be read")
    pairs = zip(flat[::2], flat[1::2], strict=True)
    found = [(int(float(score)), *member.decode().split(" ")) for member, score in pairs]
    return sorted(found, reverse=True)


def _no_letter(session_id: str, turn_id: str) -> TurnNotFoundError:
    return TurnNotFoundError(
        f"Session {session_id}: turn {turn_id} is not in the dead letters; `turnstream dead list` says which are."
    )


async def _letter(broker: Broker, session_id: str, turn_id: str, died: int) -> DeadLetter | None:
    """A dead letter with what its log says of it; None when its session's keys are gone."""
    fields, places = await broker.read(
        ("HMGET", broker.keys.of("session", session_id), "agent", "parent", "status"),
        ("HGET", broker.keys.of("turns", session_id), turn_id),
        said=f"Session {session_id}: its dead letters could not be read",
    )
    if fields[0] is None or places is None:
        return None
    first, _, end = places.decode().split(" ")
    # The message that started it lies in two records: added, and completed beside it.
    messages = messages_of(await read_log(broker, session_id, first, str(parse_stream_id(first).n + 1)))
    ended = await read_log(broker, session_id, end, end)
    error = ended[0].body.get("state", {}).get("error") or {} if ended else {}
    return DeadLetter(
        session_id=session_id,
        turn_id=turn_id,
        agent_name=fields[0].decode(),
        parent_id=fields[1].decode() if fields[1] else None,
        session_ended=fields[2] == b"terminated",
        died_at=datetime.fromtimestamp(died / 1000, UTC),
        attempts=(error.get("details") or {}).get("attempts"),
        reason=error.get("message", ""),
        preview=_preview(messages),
    )


def messages_of(records: Iterable[LogRecord]) -> list[dict[str, Any]]:
    """Return what people sent, of these records of one turn: messages, and the context beside them, as they are stored."""
    entries = (each.body.get("entry") or {} for each in records if each.body.get("type") == "entryCompleted")
    return [
        entry
        for entry in entries
        if entry.get("type") == "message"
        and (entry.get("role") == "user" or (entry.get("role") == "context" and entry.get("kind") == "input"))
    ]


def _preview(messages: list[dict[str, Any]]) -> str:
    content = messages[0].get("content", ()) if messages else ()
    return str(loads(preview_of(content_from_wire(block) for block in content)))


@dataclass(frozen=True, kw_only=True)
class LostRun:
    """What one run of a dead turn left in the log. `mark` begins as its worker's id does, and ends with a number."""

    mark: str
    began: datetime
    last: datetime
    last_wrote: str


def lost_runs(records: Iterable[LogRecord]) -> list[LostRun]:
    """Return the runs of a dead turn that wrote anything, in order."""
    runs: dict[str, LostRun] = {}
    for each in records:
        if each.run:
            at = datetime.fromtimestamp(parse_stream_id(each.id).ms / 1000, UTC)
            began = runs[each.run].began if each.run in runs else at
            runs[each.run] = LostRun(mark=each.run, began=began, last=at, last_wrote=_what(each.body))
    return list(runs.values())


def _what(body: Mapping[str, Any]) -> str:
    entry = body.get("entry") or {}
    return " ".join(str(word) for word in (body.get("type"), entry.get("type"), entry.get("name")) if word)


async def read_turn_log(broker: Broker, session_id: str, turn_id: str) -> list[LogRecord]:
    """Return the log from a turn's first event to its end. Raises `TurnNotFoundError` for one that has not ended."""
    session_key(broker, session_id)  # an id that no session can have is said
    (places,) = await broker.read(("HGET", broker.keys.of("turns", session_id), turn_id))
    first, _, end = (places or b"- - -").decode().split(" ")
    if end == "-":
        raise _no_letter(session_id, turn_id)
    return await read_log(broker, session_id, first, end)


async def retry(broker: Broker, session_id: str, turn_id: str) -> Sent | ActiveTurn:
    """Start a new turn with all that people had sent into a dead one, which leaves the dead letters; the active turn if one is.

    A repeat gives the same new turn. Raises `TurnNotFoundError` when it is not in the dead letters,
    `UnsupportedSessionProcedureError` for a subagent's, `SessionTerminatedError`, `SessionNotFoundError`, `SessionBusyError`.
    """
    entries = messages_of(await read_turn_log(broker, session_id, turn_id))
    if not entries:
        raise TurnNotFoundError(f"Session {session_id}: the log does not hold the input of turn {turn_id} any more.")
    said = f"This turn has the input of turn {turn_id}, which was in the dead letters."
    details = {"reason": "retried", "turnId": turn_id}
    notice = tail({"type": "notice", "level": "info", "source": "dead letters", "message": said, "details": details})
    message = Message(tails=[*(completed({**entry, "id": new_id()}) for entry in entries), Note(notice)], digest="")
    words = words_of(
        await session_verb(
            broker,
            "retry",
            session_id,
            message.values(),
            dead=turn_id,
            turn=new_id(),
            preview=preview_of(content_from_wire(block) for block in entries[0]["content"]),
        )
    )
    match words:
        case ["started", turn]:
            return Sent(turn, started=True)
        case ["busy", turn]:
            return ActiveTurn(turn)
        case ["told"]:
            raise UnsupportedSessionProcedureError(
                f"Session {session_id} is a subagent's: its parent was told that turn {turn_id} failed, and went on. "
                f"Send to the root session what is still to be done."
            )
        case _:
            raise _no_letter(session_id, turn_id)
