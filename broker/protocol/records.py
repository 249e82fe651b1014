"""A turn's records: how it stands, or how it ended; and the values that calls return in place of errors.

Stored form of an ended one (`turnEnded.state`): `{"type": "completed", "text", "toolCalls": [{"name", "arguments"}],
"stopReason", "usage": {"inputTokens", …}}`, `interrupted {"cause", "text"}`, `failed {"error": {"message", "code",
"details"}, "text"}`. Ids and cursors are not stored; the reader adds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from broker.protocol.callbacks import Answer, OpenCallback
from broker.protocol.values import Brief, JsonValue, UnknownValue, show_defaults

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ToolCall(Brief):
    """A call that the model made."""

    __match_args__ = ("name", "arguments")
    name: str
    arguments: JsonValue


@dataclass(frozen=True, kw_only=True)
class TokenUsage:
    """Tokens that a turn's model calls took, summed."""

    __match_args__ = ("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens")
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_input_tokens: int = 0

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=self.cached_input_tokens + other.cached_input_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class InvalidOutput(Brief):
    """The turn's text is not of the output type; `error` says why, `text` is the text."""

    __match_args__ = ("error", "text")
    error: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ProtocolError(Brief):
    """Why a turn failed. `code` names the kind, such as `model_failed`, `worker_lost`, `no_progress`, `hook_failed`."""

    __match_args__ = ("message", "code", "details")
    message: str
    code: str | None = None
    details: JsonValue = None


@dataclass(frozen=True, kw_only=True)
class _Record(Brief):
    session_id: str
    turn_id: str
    cursor: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Running(_Record):
    """The turn runs, or waits in its queue."""

    __match_args__ = ()


@dataclass(frozen=True, kw_only=True)
class Blocked(_Record):
    """The turn waits on these callbacks, its subagents' too."""

    __match_args__ = ("callbacks",)
    callbacks: tuple[OpenCallback, ...]


@dataclass(frozen=True, kw_only=True)
class Completed(_Record, Generic[T]):
    """The turn is done. `output` is its text, or that text parsed; None of a turn that a hook skipped.

    `tool_calls` has every call in order, also denied and failed ones. `usage` sums the tokens of its model calls.
    """

    __match_args__ = ("output", "tool_calls", "stop_reason", "usage")
    output: T | str | InvalidOutput | None
    tool_calls: tuple[ToolCall, ...] = ()
    stop_reason: Literal["iteration_limit", "skipped"] | None = None
    usage: TokenUsage = field(default=TokenUsage())


@dataclass(frozen=True, kw_only=True)
class Interrupted(_Record):
    """The turn was ended before it was done."""

    __match_args__ = ("cause",)
    cause: Literal["interrupted", "cancelled", "lifetime_limit", "idle_limit"] | UnknownValue


@dataclass(frozen=True, kw_only=True)
class Failed(_Record):
    """The turn could not go on."""

    __match_args__ = ("error",)
    error: ProtocolError


@show_defaults
@dataclass(frozen=True, kw_only=True)
class UnknownOutcome(_Record):
    """The turn ended in a way added after this version; `raw` is the record's data."""

    __match_args__ = ("outcome", "raw")
    outcome: str
    raw: dict[str, JsonValue] = field(default_factory=dict)


EndedState = Completed[Any] | Interrupted | Failed | UnknownOutcome
TurnState = Running | Blocked | Completed[T] | Interrupted | Failed | UnknownOutcome


@dataclass(frozen=True)
class Busy:
    """Another turn is active."""

    turn: Any


@dataclass(frozen=True)
class TurnConflict:
    """The turn is not the active one; `active_turn_id` is, or None when no turn is."""

    active_turn_id: str | None


@dataclass(frozen=True)
class Answered:
    """The callback was open. `answer` is the one that counted (None for client tools and sign-ins), in that session."""

    answer: Answer | None
    session_id: str


@dataclass(frozen=True)
class AlreadySettled:
    """The callback is not open any more."""


@dataclass(frozen=True)
class NotFound:
    """The session never opened this callback."""


def completed_to_wire(
    text: str, tool_calls: tuple[ToolCall, ...], stop_reason: str | None, usage: TokenUsage
) -> dict[str, JsonValue]:
    """Return the stored form of a turn that is done."""
    return {
        "type": "completed",
        "text": text,
        "toolCalls": [{"name": call.name, "arguments": call.arguments} for call in tool_calls],
        "stopReason": stop_reason,
        "usage": {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.total_tokens,
            "cachedInputTokens": usage.cached_input_tokens,
        },
    }


def failed_to_wire(error: ProtocolError, text: str) -> dict[str, JsonValue]:
    """Return the stored form of a turn that could not go on."""
    wire: dict[str, JsonValue] = {"message": error.message, "code": error.code, "details": error.details}
    return {"type": "failed", "error": wire, "text": text}


_CAUSES = ("interrupted", "cancelled", "lifetime_limit", "idle_limit")


def state_from_wire(raw: dict[str, Any], *, session_id: str, turn_id: str, cursor: str) -> EndedState:
    """Return the record of a stored form; what this version cannot type becomes `UnknownOutcome`. Never raises."""
    common: dict[str, Any] = {
        "session_id": session_id,
        "turn_id": turn_id,
        "cursor": cursor,
        "text": str(raw.get("text") or ""),
    }
    try:
        match raw.get("type"):
            case "completed":
                usage = raw.get("usage") or {}
                return Completed(
                    **common,
                    output=None if raw.get("stopReason") == "skipped" else common["text"],
                    tool_calls=tuple(
                        ToolCall(name=call["name"], arguments=call.get("arguments"))
                        for call in raw.get("toolCalls") or ()
                    ),
                    stop_reason=raw.get("stopReason"),
                    usage=TokenUsage(
                        input_tokens=usage.get("inputTokens", 0),
                        output_tokens=usage.get("outputTokens", 0),
                        total_tokens=usage.get("totalTokens", 0),
                        cached_input_tokens=usage.get("cachedInputTokens", 0),
                    ),
                )
            case "interrupted":
                cause = raw["cause"]
                return Interrupted(**common, cause=cause if cause in _CAUSES else UnknownValue(str(cause)))
            case "failed":
                error = raw["error"]
                return Failed(
                    **common,
                    error=ProtocolError(message=error["message"], code=error.get("code"), details=error.get("details")),
                )
            case _:
                pass
    except (KeyError, TypeError, AttributeError):
        pass  # a known outcome in a shape of another version is raw data too
    return UnknownOutcome(**common, outcome=str(raw.get("type", "")), raw=raw)


def _short(error: str) -> str:
    return error if len(error) <= 500 else error[:499] + "…"


def parse_output(record: TurnState[Any], output_type: type[BaseModel] | None) -> TurnState[Any]:
    """Return the record with its text parsed as `output`; a mismatch is an `InvalidOutput`, never an exception."""
    if output_type is None or not isinstance(record, Completed) or record.stop_reason == "skipped":
        return record
    output: object
    try:
        output = output_type.model_validate_json(record.text)
    except ValidationError as bad:
        first = bad.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or output_type.__name__
        output = InvalidOutput(error=_short(f"{place}: {first['msg']}"), text=record.text)
    except Exception as bad:  # noqa: BLE001 - a validator's own fault is a mismatch too: reading a record never raises
        output = InvalidOutput(error=_short(f"{output_type.__name__}: {type(bad).__name__}: {bad}"), text=record.text)
    return replace(record, output=output)
