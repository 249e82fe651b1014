"""Subagents: agents that an agent's model may start with `agents.spawn`, each in a session of its own.

The parent's turn parks meanwhile. The end of the child's turn, whatever it is, becomes the result of the call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError

from broker.contents import Message, completed
from broker.keys import AGENT_NAME, new_id, new_session_id, shard_of
from broker.protocol.records import ProtocolError
from broker.protocol.values import JsonValue, clean_text, dumps
from broker.protocol.wire import entry_tail
from broker.runs import Child, SpawnCall
from workers.effects import Record, error_entry, result_entry
from workers.models import Model, ToolSpec
from workers.permissions import PermissionMode, PermissionPolicy
from workers.tools import ToolError

if TYPE_CHECKING:
    from workers.fold import Call

SPAWN_ID: Final = "agents.spawn"
_PREVIEW: Final = 120


@dataclass(frozen=True, kw_only=True)
class Subagent:
    """An agent that this agent's model may start. A field that is None is inherited; `output_type` is not, since None means text.

    `name` and `description` are what the model is told of it. With an `output_type` the call's result has structured content.
    """

    name: str
    description: str
    instructions: str | None = None
    model: str | Model | None = None
    tools: Sequence[Any] | None = None
    permission_mode: PermissionMode | None = None
    permission_policy: PermissionPolicy | None = None
    output_type: type[BaseModel] | None = None
    max_iterations: int | None = None
    temperature: float | None = None
    reasoning_effort: str | None = None
    hooks: Sequence[Any] | None = None
    guardrails: Sequence[Any] | None = None
    subagents: Sequence[Subagent] | None = None
    mcps: Sequence[Any] | None = None
    connectors: Sequence[Any] | None = None

    def overrides(self) -> dict[str, Any]:
        """Return the fields that are set, for the child's definition."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, kw_only=True)
class SubagentPolicy:
    """Limits on an agent's subagents: turns of its children that run at once, and levels below it.

    A call over the first limit waits for another to end. At the lowest level the model is not told of `agents.spawn`.
    Raises `TypeError` or `ValueError` for what is no whole number of at least 1 (`max_depth`: 0).
    """

    concurrent_child_turn_limit: int = 10
    max_depth: int = 2

    def __post_init__(self) -> None:
        for name, least in (("concurrent_child_turn_limit", 1), ("max_depth", 0)):
            value = getattr(self, name)
            if type(value) is not int:
                raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
            if value < least:
                raise ValueError(f"{name} must be {least} or more, not {value}")


def checked_subagents(given: object) -> tuple[Subagent, ...]:
    """Return an agent's subagents. Raises `TypeError` or `ValueError` naming the place."""
    if isinstance(given, (str, Subagent, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"subagents must be a sequence of Subagent, not {type(given).__name__}")
    found: dict[str, Subagent] = {}
    for at, each in enumerate(given):
        if not isinstance(each, Subagent):
            raise TypeError(f"subagents[{at}] must be a Subagent, not {type(each).__name__}")
        if not AGENT_NAME.fullmatch(str(each.name)):
            raise ValueError(
                f"subagents[{at}].name must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, not {each.name!r}"
            )
        if not str(each.description or "").strip():
            raise ValueError(f"subagents[{at}].description must say what {each.name} is for: the model reads it")
        if each.name in found:
            raise ValueError(f"subagents[{at}]: two subagents have the name {each.name!r}")
        found[each.name] = each
    return tuple(found.values())


class _Task(BaseModel):
    agent: str
    task: str


class SpawnTool:
    """The tool by which a model starts a subagent. The engine runs it: its result is the end of the child's turn."""

    id: Final = SPAWN_ID
    name: Final = "spawn"

    def __init__(self, subagents: Sequence[Subagent]) -> None:
        self._names = tuple(each.name for each in subagents)
        listed = "\n".join(f"- {each.name}: {each.description}" for each in subagents)
        self.description = (
            "Start a subagent with a task of its own, and get its final answer. It sees nothing of this conversation, so the "
            f"task must say all that it needs. Several calls in one reply work side by side.\nSubagents:\n{listed}"
        )
        properties: dict[str, JsonValue] = {
            "agent": {"type": "string", "enum": list(self._names), "description": "Which subagent to start."},
            "task": {"type": "string", "description": "What it is to do, in full."},
        }
        required: list[JsonValue] = ["agent", "task"]
        self.spec = ToolSpec(
            self.id,
            self.description,
            {"type": "object", "properties": properties, "required": required, "additionalProperties": False},
        )

    def task(self, arguments: JsonValue) -> tuple[str, str]:
        """Return the subagent's name and its task. Raises `ToolError`, which the model reads."""
        try:
            asked = _Task.model_validate(arguments, strict=True)
        except ValidationError as bad:
            first = bad.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "arguments"
            raise ToolError(f"The arguments do not fit {self.id}: {place}: {first['msg']}.") from None
        if asked.agent not in self._names:
            raise ToolError(f"There is no subagent {asked.agent[:80]!r}. Known: {', '.join(self._names)}.")
        if not asked.task.strip():
            raise ToolError(f"The arguments do not fit {self.id}: task: it is empty.")
        return asked.agent, asked.task


def cut_text(agent: str) -> str:
    """What the model reads of a subagent whose turn was cut: interrupted, or lost with its workers."""
    return f"The subagent {agent} was stopped before it had finished; what it did is not known."


@dataclass(frozen=True, kw_only=True)
class Parent:
    """Who starts a subagent: its session, its agent's name, the names of subagents down to it, the session's customization."""

    session_id: str
    agent: str
    path: Sequence[str]
    customization: Mapping[str, Any]


def new_child(parent: Parent, call: Call, entry_id: str, asked: tuple[str, str], *, own_model: bool) -> Child:
    """Return the child of a spawn call. With a model of its own it does not take the one that the session was given."""
    agent, task = asked
    shard = shard_of(parent.session_id)
    child = f"{shard}-{new_session_id(1).partition('-')[2]}"
    entry: Record = {
        "type": "message",
        "id": new_id(),
        "sender": {"session_id": parent.session_id, "agent": parent.agent},
        "content": [{"type": "text", "text": clean_text(task)}],
    }
    kept = ("reasoning_effort",) if own_model else ("model", "reasoning_effort")
    customization = {name: value for name, value in parent.customization.items() if name in kept}
    cut = error_entry(entry_id, call.tool_call_id, call.name, cut_text(agent))
    cut["meta"] = {"session_id": child}
    return Child(
        session_id=child,
        turn_id=new_id(),
        agent=agent,
        path=(*parent.path, agent),
        customization=dumps(customization),
        call=SpawnCall(entry_id, call.tool_call_id),
        cut=entry_tail("entryCompleted", cut),
        task=Message(
            tails=[completed(entry)],
            digest="",
            preview=dumps(" ".join(clean_text(task).split())[:_PREVIEW]),
        ),
    )


def completed_report(
    call: SpawnCall, session_id: str, text: str, output_type: type[BaseModel] | None, *, limited: str | None = None
) -> bytes:
    """Return the result that a parent gets for a child's completed turn: its text, and what that is by its `output_type`.

    `limited` names a subagent that stopped at its `max_iterations`: its text, if any, is no final answer, and the result says so.
    """
    structured: JsonValue = None
    if output_type is not None:
        with contextlib.suppress(ValidationError):  # else the text stands for itself, as InvalidOutput's does
            structured = output_type.model_validate_json(text).model_dump(mode="json")
    content: list[JsonValue] = [{"type": "text", "text": text}] if text else []
    if limited is not None:
        content.append(
            {"type": "text", "text": f"The subagent {limited} stopped at its limit of replies, before it had finished."}
        )
    meta = {"session_id": session_id}
    entry = result_entry(call.entry, call.call, SPAWN_ID, content=content, structured=structured, meta=meta)
    return entry_tail("entryCompleted", entry)


def failed_report(call: SpawnCall, session_id: str, agent: str, error: ProtocolError) -> bytes:
    """Return the result that a parent gets for a child's failed turn."""
    return _error_report(call, session_id, f"The subagent {agent} failed: {error.message}")


def skipped_report(call: SpawnCall, session_id: str, agent: str) -> bytes:
    """Return the result that a parent gets for a child's turn that a hook of the child ended."""
    return _error_report(call, session_id, f"The subagent {agent} gave no answer: a hook ended its turn.")


def _error_report(call: SpawnCall, session_id: str, said: str) -> bytes:
    entry = error_entry(call.entry, call.call, SPAWN_ID, said)
    entry["meta"] = {"session_id": session_id}
    return entry_tail("entryCompleted", entry)
