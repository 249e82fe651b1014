"""Entries of a session's history. Stored form: camelCase with `type`; the record around it names the turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from broker.protocol.content import ContentBlock, content_from_wire, content_text, content_to_wire
from broker.protocol.values import Brief, JsonValue, show_defaults


@dataclass(frozen=True, kw_only=True)
class MessageEntry(Brief):
    """A message: the user's, the model's, a system message of an imported history, or a context message."""

    __match_args__ = ("role", "content")
    id: str
    turn_id: str | None
    role: Literal["user", "assistant", "system", "context"]
    content: tuple[ContentBlock, ...]

    @property
    def text(self) -> str:
        """The text of its text blocks, joined; `""` when it has none."""
        return content_text(self.content)


@dataclass(frozen=True, kw_only=True)
class ContextMessage(MessageEntry):
    """Text that the model got with an input and that is not the user's own message.

    `source` names the tool source that it is about; None for one that was sent with a message.
    """

    __match_args__ = ("role", "content", "kind", "source")
    role: Literal["context"] = field(default="context", init=False)
    kind: Literal["input", "capability_source"]
    source: str | None


@dataclass(frozen=True, kw_only=True)
class ToolCallEntry(Brief):
    """The model called a tool. `name` is its full id, such as `client.get_weather`."""

    __match_args__ = ("name", "arguments", "tool_call_id")
    id: str
    turn_id: str | None
    tool_call_id: str
    name: str
    arguments: JsonValue


@show_defaults
@dataclass(frozen=True, kw_only=True)
class ToolResultEntry(Brief):
    """A tool's result, the pair of the call with its `tool_call_id`; without content while the tool runs."""

    __match_args__ = ("name", "content", "structured_content", "is_error", "tool_call_id", "meta")
    id: str
    turn_id: str | None
    tool_call_id: str
    name: str | None
    content: tuple[ContentBlock, ...]
    structured_content: JsonValue
    is_error: bool
    meta: dict[str, JsonValue] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text of its text blocks, joined; `""` when it has none."""
        return content_text(self.content)


@dataclass(frozen=True, kw_only=True)
class UnknownEntry(Brief):
    """An entry of a type added after this version, or one that is only raw data.

    `raw` is the whole entry in camelCase, its type too. Do not change it, copy it first.
    """

    __match_args__ = ("type", "raw")
    id: str
    turn_id: str | None
    type: str
    raw: dict[str, JsonValue]


HistoryEntry = MessageEntry | ToolCallEntry | ToolResultEntry | UnknownEntry


def entry_to_wire(entry: HistoryEntry) -> dict[str, JsonValue]:
    """Return an entry's stored form, without its turn."""
    match entry:
        case MessageEntry():
            wire: dict[str, JsonValue] = {
                "type": "message",
                "id": entry.id,
                "role": entry.role,
                "content": [content_to_wire(block) for block in entry.content],
            }
            if isinstance(entry, ContextMessage):
                wire |= {"kind": entry.kind, "source": entry.source}
            return wire
        case ToolCallEntry():
            return {
                "type": "toolCall",
                "id": entry.id,
                "toolCallId": entry.tool_call_id,
                "name": entry.name,
                "arguments": entry.arguments,
            }
        case ToolResultEntry():
            return {
                "type": "toolResult",
                "id": entry.id,
                "toolCallId": entry.tool_call_id,
                "name": entry.name,
                "content": [content_to_wire(block) for block in entry.content],
                "structuredContent": entry.structured_content,
                "isError": entry.is_error,
                "meta": entry.meta,
            }
        case UnknownEntry():
            return {**entry.raw, "type": entry.type, "id": entry.id}


def _message(raw: dict[str, Any], turn_id: str | None) -> MessageEntry:
    content = tuple(content_from_wire(block) for block in raw["content"])
    if raw["role"] == "context":
        return ContextMessage(
            id=raw["id"], turn_id=turn_id, content=content, kind=raw.get("kind", "input"), source=raw.get("source")
        )
    return MessageEntry(id=raw["id"], turn_id=turn_id, role=raw["role"], content=content)


def _tool_call(raw: dict[str, Any], turn_id: str | None) -> ToolCallEntry:
    return ToolCallEntry(
        id=raw["id"],
        turn_id=turn_id,
        tool_call_id=raw["toolCallId"],
        name=raw["name"],
        arguments=raw.get("arguments"),
    )


def _tool_result(raw: dict[str, Any], turn_id: str | None) -> ToolResultEntry:
    return ToolResultEntry(
        id=raw["id"],
        turn_id=turn_id,
        tool_call_id=raw["toolCallId"],
        name=raw.get("name"),
        content=tuple(content_from_wire(block) for block in raw.get("content") or ()),
        structured_content=raw.get("structuredContent"),
        is_error=bool(raw.get("isError")),
        meta=raw.get("meta") or {},
    )


_TYPED: Final[dict[str, Callable[[dict[str, Any], str | None], HistoryEntry]]] = {
    "message": _message,
    "toolCall": _tool_call,
    "toolResult": _tool_result,
}
_ROLES: Final = {"user", "assistant", "system", "context"}


def entry_from_wire(raw: dict[str, Any], turn_id: str | None) -> HistoryEntry:
    """Return the entry of a stored form; what this version cannot type becomes `UnknownEntry`. Never raises."""
    kind = str(raw.get("type", ""))
    make = _TYPED.get(kind)
    try:
        # A message between agents has a sender and is never the user's own.
        if make is not None and not (kind == "message" and ("sender" in raw or raw.get("role") not in _ROLES)):
            return make(raw, turn_id)
    except (KeyError, TypeError, AttributeError):
        pass  # a known type in a shape of another version is raw data too
    return UnknownEntry(id=str(raw.get("id", "")), turn_id=turn_id, type=kind, raw=raw)
