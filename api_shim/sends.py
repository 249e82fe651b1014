"""A message as it is sent: checked, measured, and in its stored form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from api_shim.arguments import check_key
from broker.broker import Broker
from broker.contents import Completed, Message, Note, completed, replaced_note, size_of
from broker.keys import new_id
from broker.pipeline import never_reached
from broker.protocol.content import ContentBlock, content_to_wire
from broker.protocol.errors import BrokerUnavailableError, OutcomeUnknownError
from broker.protocol.sends import Sendable, parse_content, preview_of
from broker.protocol.values import JsonValue, watch_replaced
from broker.settings import Settings
from broker.transitions import ActiveTurn, Sent, start


def _entry(entry_id: str, role: str, blocks: Sequence[ContentBlock], **more: JsonValue) -> dict[str, JsonValue]:
    content = [content_to_wire(block) for block in blocks]
    return {"type": "message", "id": entry_id, "role": role, "content": content, **more}


def _entries(sendable: Sendable) -> Iterator[tuple[str, Sequence[ContentBlock], dict[str, JsonValue]]]:
    """Each message's role, its blocks and its further fields."""
    yield "user", sendable.blocks, {}
    for text in sendable.contexts:
        yield "context", (text,), {"kind": "input", "source": None}


def build_message(content: Any, settings: Settings) -> Message:
    """Return a checked message. Raises `ValueError` or `TypeError` naming the place, before anything is sent."""
    sendable = parse_content(content)
    tails: list[Completed] = []
    notes: list[Note] = []
    for role, blocks, more in _entries(sendable):
        entry_id = new_id()
        with watch_replaced() as replaced:
            tails.append(completed(_entry(entry_id, role, blocks, **more)))
        if replaced:
            notes.append(replaced_note(f"entry:{entry_id}", "The message" if role == "user" else "The context"))
    size = sum(size_of(each) for each in tails)
    if size > settings.message_limit:
        raise ValueError(
            f"content: {size:,} bytes; a message has at most {settings.message_limit:,}: send less, or a link"
        )
    return Message(tails=[*tails, *notes], digest=sendable.digest, preview=preview_of(sendable.blocks))


async def send(broker: Broker, session_id: str, content: Any, *, key: str | None, join: bool) -> Sent | ActiveTurn:
    """Send a message. Raises as `transitions.start`, and `OutcomeUnknownError` when it may have arrived."""
    check_key(key)
    message = build_message(content, broker.settings)
    # Without a key of the user's, one of ours names the send, should its outcome stay unknown.
    named = key or new_id()
    try:
        return await start(broker, session_id, message, key=named, join=join)
    except BrokerUnavailableError as away:
        if never_reached(away.__cause__):
            raise
        raise OutcomeUnknownError(
            f"Session {session_id}: the message may or may not have arrived ({away}). Send it again with the same key.",
            idempotency_key=named,
        ) from away
