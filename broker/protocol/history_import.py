"""History that a session starts with: what its user, model and tools said and did elsewhere.

`parse_history` checks what `history=` was given, before anything is sent; `history_entries` makes the session's entries
of it, whose turn is None. Reasoning and snapshots become raw entries, which the model never gets. A call's id is unique in
its session, so one that repeats is replaced, in its result too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, cast, get_args

from broker.keys import new_id
from broker.protocol.content import (
    ContentBlock,
    EmbeddedResourceContentBlock,
    TextContentBlock,
    UnknownContentBlock,
    content_to_wire,
)
from broker.protocol.entries import HistoryEntry, MessageEntry, ToolCallEntry, ToolResultEntry, UnknownEntry
from broker.protocol.records import ProtocolError
from broker.protocol.sends import mapped, sendable_block
from broker.protocol.values import Brief, JsonValue, clean_json, clean_text, dumps, show_defaults

ToolKind = Literal["builtin", "local", "mcp", "client", "plugin", "connector"]
_ROLES: Final = ("system", "user", "assistant")
_TOOL_KINDS: Final = get_args(ToolKind)


@show_defaults
@dataclass(frozen=True, kw_only=True)
class HistoryImportMessage(Brief):
    """What the user, the model or the system said.

    Raises `ValueError` for a system message of more than text blocks, or an embedded resource in an assistant's.
    """

    __match_args__ = ("role", "content")
    type: ClassVar[Literal["message"]] = "message"
    role: Literal["system", "user", "assistant"]
    content: list[ContentBlock] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise ValueError(f"role must be 'system', 'user' or 'assistant', not {self.role!r}")
        if self.role == "system" and not all(isinstance(block, TextContentBlock) for block in self.content):
            raise ValueError("content: a system message takes text blocks only")
        if self.role == "assistant" and any(isinstance(block, EmbeddedResourceContentBlock) for block in self.content):
            raise ValueError("content: an assistant message takes no embedded resource")


@dataclass(frozen=True, kw_only=True)
class HistoryImportReasoning(Brief):
    """The model's reasoning."""

    __match_args__ = ("text",)
    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str


@dataclass(frozen=True, kw_only=True)
class HistoryImportToolCall(Brief):
    """A tool call that the model made; its result carries the same `tool_call_id`.

    `tool_kind` says where the tool came from. Raises `ValueError` for a kind that does not exist.
    """

    __match_args__ = ("tool_call_id", "tool_kind", "name", "arguments")
    type: ClassVar[Literal["tool_call"]] = "tool_call"
    tool_call_id: str
    tool_kind: ToolKind = "local"
    name: str
    arguments: JsonValue = None

    def __post_init__(self) -> None:
        if self.tool_kind not in _TOOL_KINDS:
            raise ValueError(f"tool_kind must be one of {', '.join(_TOOL_KINDS)}, not {self.tool_kind!r}")


@show_defaults
@dataclass(frozen=True, kw_only=True)
class HistoryImportToolResult(Brief):
    """A tool call's result, or its error. `annotations` are kept as the result's `meta`.

    Raises `ValueError` when both are given.
    """

    __match_args__ = ("tool_call_id", "name", "result", "error", "annotations")
    type: ClassVar[Literal["tool_result"]] = "tool_result"
    tool_call_id: str
    name: str | None = None
    result: JsonValue = None
    error: ProtocolError | None = None
    annotations: dict[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.result is not None and self.error is not None:
            raise ValueError("give either result or error, not both")


@dataclass(frozen=True, kw_only=True)
class HistoryImportSnapshot(Brief):
    """Data kept in the history that the model does not see: an `UnknownEntry` of type `"checkpoint"`."""

    __match_args__ = ("task_name", "snapshot_type", "value")
    type: ClassVar[Literal["snapshot"]] = "snapshot"
    task_name: str
    snapshot_type: str
    value: JsonValue = None


HistoryImportEntry = (
    HistoryImportMessage
    | HistoryImportReasoning
    | HistoryImportToolCall
    | HistoryImportToolResult
    | HistoryImportSnapshot
)

_TYPES: Final[dict[str, type[HistoryImportEntry]]] = {kind.type: kind for kind in get_args(HistoryImportEntry)}
_OPTIONAL: Final = {
    kind: {item.name for item in fields(kind) if item.default is None} for kind in get_args(HistoryImportEntry)
}
_TEXTS: Final = {"text", "tool_call_id", "name", "task_name", "snapshot_type"}
_NAMES: Final = {"tool_call_id", "name"}
_JSON: Final = {"arguments", "result", "value", "annotations"}


def parse_history(items: Iterable[HistoryImportEntry | Mapping[str, Any]]) -> Iterator[HistoryImportEntry]:
    """Check a starting history, entry by entry, classes and mappings alike (snake_case or camelCase).

    Raises `ValueError` or `TypeError` naming the place, such as `history[3].role`.
    """
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise TypeError(f"history must be a sequence of entries, not {type(items).__name__}")
    return (_parse(item, f"history[{at}]") for at, item in enumerate(items))


def _parse(item: Any, place: str) -> HistoryImportEntry:
    if isinstance(item, Mapping):
        kind = item.get("type")
        made = _TYPES.get(kind) if isinstance(kind, str) else None
        if made is None:
            raise ValueError(f"{place}.type: {kind!r} is no history entry; known: {', '.join(_TYPES)}")
        values = mapped(item, made.__match_args__, place)
    elif isinstance(item, get_args(HistoryImportEntry)):
        made = cast("type[HistoryImportEntry]", type(item))
        values = {name: getattr(item, name) for name in made.__match_args__}
    else:
        raise TypeError(f"{place} must be a history entry or a mapping of one, not {type(item).__name__}")
    for name, value in values.items():
        if value is not None or name not in _OPTIONAL[made]:
            values[name] = _checked(name, value, f"{place}.{name}")
    try:
        return made(**values)
    except (TypeError, ValueError) as bad:
        raise ValueError(f"{place}: {str(bad).rsplit('__init__() ', maxsplit=1)[-1]}") from None


def _checked(name: str, value: Any, place: str) -> Any:
    """Return one field's value, clean and of its type. Raises naming the place."""
    if name in _TEXTS:
        if not isinstance(value, str):
            raise TypeError(f"{place} must be a text, not {type(value).__name__}")
        if not value and name in _NAMES:
            raise ValueError(f"{place} must not be empty")
        return clean_text(value)
    if name == "content":
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            raise TypeError(f"{place} must be a list of content blocks, not {type(value).__name__}")
        return [_block(block, f"{place}[{at}]") for at, block in enumerate(value)]
    if name == "annotations" and not isinstance(value, Mapping):
        raise TypeError(f"{place} must be a JSON object, not {type(value).__name__}")
    if name in _JSON:
        return clean_json(dict(value) if name == "annotations" else value, place)
    return _error(value, place) if name == "error" else value  # role and tool_kind: their class checks them


def _block(item: Any, place: str) -> ContentBlock:
    # An exported history may hold blocks that this version does not know; they go back as they came.
    return item if isinstance(item, UnknownContentBlock) else sendable_block(item, place)


def _error(value: Any, place: str) -> ProtocolError:
    if isinstance(value, Mapping):
        values = mapped(value, ProtocolError.__match_args__, place)
    elif isinstance(value, ProtocolError):
        values = {name: getattr(value, name) for name in ProtocolError.__match_args__}
    else:
        raise TypeError(f"{place} must be a ProtocolError or a mapping of one, not {type(value).__name__}")
    message, code = values.get("message"), values.get("code")
    if not isinstance(message, str) or not isinstance(code, str | None):
        raise ValueError(f"{place}: message must be a text, and code a text or None")
    details = clean_json(values.get("details"), f"{place}.details")
    return ProtocolError(message=clean_text(message), code=code, details=details)


def import_to_wire(item: HistoryImportEntry) -> dict[str, JsonValue]:
    """Return a checked entry as the mapping that `history=` takes: equal entries give equal ones."""
    wire = {name: getattr(item, name) for name in item.__match_args__}
    if isinstance(item, HistoryImportMessage):
        wire["content"] = [content_to_wire(block) for block in item.content]
    elif isinstance(item, HistoryImportToolResult) and (error := item.error) is not None:
        wire["error"] = {name: getattr(error, name) for name in ProtocolError.__match_args__}
    return {"type": item.type, **wire}


def history_entries(items: Sequence[HistoryImportEntry]) -> Iterator[HistoryEntry]:
    """Yield the entries that a checked history becomes, with new ids and no turn."""
    renamed = _call_ids(items)
    for at, item in enumerate(items):
        yield _entry(item, new_id(), renamed.get(at))


def _call_ids(items: Sequence[HistoryImportEntry]) -> dict[int, str]:
    """Return new call ids, by place, that make each call's id its own and that of its one result.

    A result belongs to the first call before it that has its id and no result yet; else to the first one after it. One that
    belongs to none never carries the id of a call.
    """
    waiting: dict[str, deque[int]] = defaultdict(deque)
    call_of: dict[int, int] = {}
    early: list[int] = []
    for at, item in enumerate(items):
        if isinstance(item, HistoryImportToolCall):
            waiting[item.tool_call_id].append(at)
        elif isinstance(item, HistoryImportToolResult):
            if calls := waiting.get(item.tool_call_id):
                call_of[at] = calls.popleft()
            else:
                early.append(at)
    lone = []
    for at in early:
        if calls := waiting.get(cast("HistoryImportToolResult", items[at]).tool_call_id):
            call_of[at] = calls.popleft()
        else:
            lone.append(at)
    renamed: dict[int, str] = {}
    seen: set[str] = set()
    for at, item in enumerate(items):
        if isinstance(item, HistoryImportToolCall):
            if item.tool_call_id in seen or not item.tool_call_id.isprintable():
                renamed[at] = f"call_{new_id()}"
            seen.add(item.tool_call_id)
    renamed |= {result: renamed[call] for result, call in call_of.items() if call in renamed}
    lone_ids = ((at, cast("HistoryImportToolResult", items[at]).tool_call_id) for at in lone)
    return renamed | {at: f"call_{new_id()}" for at, call_id in lone_ids if call_id in seen}


def _entry(item: HistoryImportEntry, entry_id: str, call_id: str | None) -> HistoryEntry:
    match item:
        case HistoryImportMessage(role, content):
            return MessageEntry(id=entry_id, turn_id=None, role=role, content=tuple(content))
        case HistoryImportToolCall(tool_call_id, _, name, arguments):
            call_id = call_id or tool_call_id
            return ToolCallEntry(id=entry_id, turn_id=None, tool_call_id=call_id, name=name, arguments=arguments)
        case HistoryImportToolResult():
            return _result(item, entry_id, call_id or item.tool_call_id)
        case HistoryImportReasoning(text):
            return _raw_entry("reasoning", entry_id, {"text": text})
        case HistoryImportSnapshot(task_name, snapshot_type, value):
            return _raw_entry("checkpoint", entry_id, {"message": f"{task_name}:{snapshot_type}", "details": value})


def _result(item: HistoryImportToolResult, entry_id: str, call_id: str) -> ToolResultEntry:
    structured: JsonValue = None
    if item.error is not None:
        text: str | None = item.error.message
    elif item.result is None or isinstance(item.result, str):
        text = item.result
    else:
        structured = item.result
        text = dumps(structured).decode()
    return ToolResultEntry(
        id=entry_id,
        turn_id=None,
        tool_call_id=call_id,
        name=item.name,
        content=() if text is None else (TextContentBlock(text=text),),
        structured_content=structured,
        is_error=item.error is not None,
        meta=item.annotations,
    )


def _raw_entry(kind: str, entry_id: str, data: dict[str, JsonValue]) -> UnknownEntry:
    return UnknownEntry(id=entry_id, turn_id=None, type=kind, raw={"type": kind, "id": entry_id, **data})
