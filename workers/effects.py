"""What one write of a run does, in order: the Python side of `broker/scripts/include/effects.lua`."""

from __future__ import annotations

from typing import Any

from broker.contents import replaced_record
from broker.keys import new_id
from broker.protocol.content import content_from_wire, content_to_wire
from broker.protocol.values import JsonValue, dumps
from broker.protocol.wire import INLINE_LIMIT, entry_tail, tail
from broker.scripting import Argument
from workers.tools import ToolResult

Record = dict[str, JsonValue]


class Effects:
    """A growing list of effects. `records` are those that become stored events, in their order, for the fold."""

    def __init__(self) -> None:
        self.values: list[Argument] = []
        self.records: list[Record] = []

    def __bool__(self) -> bool:
        return bool(self.values)

    def extend(self, other: Effects) -> None:
        """Add another write's effects after these."""
        self.values += other.values
        self.records += other.records

    def stored(self, record: Record) -> bytes:
        """Return a record's tail; a body over the inline limit becomes a blob of this write."""
        body = tail(record)
        if len(body) <= INLINE_LIMIT:
            return body
        name = new_id()
        self.values += ["b", name, body]
        reference: Record = {"type": record["type"], "blob": name}
        if "private" in record:
            reference["private"] = record["private"]
        return tail(reference)

    def event(self, record: Record) -> None:
        """Append an event of the turn."""
        body = self.stored(record)
        self.values += ["e", body]
        self.records.append(record)

    def entry(self, entry: Record, private: Record | None = None) -> None:
        """Append an entry that is complete: added, and completed beside it."""
        self.event({"type": "entryAdded", "beside": True})
        self.completed(entry, private)

    def completed(self, entry: Record, private: Record | None = None) -> None:
        """Append the completion of an entry that is open."""
        record: Record = {"type": "entryCompleted", "entry": entry}
        if private:
            record["private"] = private
        self.event(record)

    def write(self, entry_id: str, kind: str, before: bytes, after: bytes, text: str) -> None:
        """A message or reasoning is being written, or afresh: keep the bytes that complete it around its text."""
        self.values += ["w", entry_id, kind, before, after, escaped(text)]

    def more_text(self, kind: str, entry_id: str, text: str) -> None:
        """Keep more text of an open entry; a message's is published too."""
        if kind == "message":
            published = tail({"type": "textDelta", "entryId": entry_id, "text": text})
            self.values += ["d", entry_id, escaped(text), published]
        else:
            self.values += ["t", entry_id, escaped(text)]

    def keep(self, field: str, entry: Record) -> None:
        """Keep the bytes that complete an unstarted call or a running tool's result, if the turn is cut."""
        self.values += ["o", field, entry_tail("entryCompleted", entry)]

    def close(self, field: str) -> None:
        """What was kept under `field` is not needed any more."""
        self.values += ["c", field]

    def last_text(self, text: str) -> None:
        """The turn's last assistant text, for its record."""
        self.values += ["l", dumps(text)]

    def ask(self, callback: Record) -> None:
        """Open a callback."""
        record: Record = {"type": "callbackOpened", "callback": callback}
        body = self.stored(record)
        self.values += ["q", callback["id"], body]
        self.records.append(record)

    def notice(self, message: str, *, level: str, source: str | None, details: JsonValue = None) -> None:
        """Append a notice for the developer."""
        self.event({"type": "notice", "level": level, "message": message, "source": source, "details": details})

    def replaced(self, entry_id: str, what: str) -> None:
        """Say of an entry that halves of characters were replaced in it."""
        self.event(replaced_record(f"entry:{entry_id}", what))


def escaped(text: str) -> bytes:
    """Return text as the inside of a JSON string. It must be clean (`broker.protocol.values.clean_text`)."""
    return dumps(text)[1:-1]


def result_entry(
    entry_id: str,
    call_id: str,
    name: str,
    *,
    content: list[JsonValue] | None = None,
    structured: JsonValue = None,
    is_error: bool = False,
    meta: dict[str, Any] | None = None,
) -> Record:
    """Return the stored form of a tool's result."""
    return {
        "type": "toolResult",
        "id": entry_id,
        "toolCallId": call_id,
        "name": name,
        "content": content or [],
        "structuredContent": structured,
        "isError": is_error,
        "meta": meta or {},
    }


def error_entry(entry_id: str, call_id: str, name: str, message: str) -> Record:
    """Return the stored form of a failed call's result."""
    return result_entry(entry_id, call_id, name, content=[{"type": "text", "text": message}], is_error=True)


def stored_result(entry_id: str, call_id: str, name: str, result: ToolResult) -> Record:
    """Return the stored form of what a tool, here or at a client, gave. Raises `ValueError` for what JSON cannot hold."""
    content = result.content if not isinstance(result.content, str) else ()
    return result_entry(
        entry_id,
        call_id,
        name,
        content=[content_to_wire(block) for block in content],
        structured=result.structured_content,
        is_error=result.is_error,
        meta=result.meta,
    )


def result_of(entry: Record) -> ToolResult:
    """Return what a tool gave from its stored form."""
    return ToolResult(
        tuple(content_from_wire(block) for block in entry.get("content") or ()),
        entry.get("structuredContent"),
        entry.get("meta") or {},
        bool(entry.get("isError")),
    )
