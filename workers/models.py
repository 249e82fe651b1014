"""What a model is to this engine: something that streams a reply to a request.

Ours, deterministic: `workers.scripted`. The vendors' models come as extras and implement the same protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

from broker.protocol.content import ContentBlock, content_text
from broker.protocol.errors import SdkError
from broker.protocol.records import TokenUsage
from broker.protocol.values import JsonValue


class _Said:
    """A message that holds content blocks."""

    content: tuple[ContentBlock, ...]

    @property
    def text(self) -> str:
        """The text of its text blocks, joined; `""` when it has none."""
        return content_text(self.content)


@dataclass(frozen=True)
class UserMessage(_Said):
    """What a person sent."""

    content: tuple[ContentBlock, ...]


@dataclass(frozen=True)
class ContextNote(_Said):
    """Text that is not the person's own.

    Sent beside an input, it stands before it. What a hook said of the reply before it, which is to be written again, and what
    there is to say of a tool source after calls' results, may be the last message.
    """

    content: tuple[ContentBlock, ...]


@dataclass(frozen=True)
class SystemMessage(_Said):
    """A system message of an imported history. The agent's instructions are `ModelRequest.instructions`."""

    content: tuple[ContentBlock, ...]


@dataclass(frozen=True)
class RequestedCall:
    """A tool call that the model made, as it is shown to it again."""

    id: str
    name: str
    arguments: JsonValue


@dataclass(frozen=True)
class AssistantMessage:
    """A reply of the model: its text and its calls. The results of all of them follow it."""

    text: str
    calls: tuple[RequestedCall, ...] = ()


@dataclass(frozen=True)
class ToolMessage(_Said):
    """A call's result."""

    call_id: str
    name: str
    content: tuple[ContentBlock, ...]
    is_error: bool


ModelMessage = UserMessage | ContextNote | SystemMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the model is told of it; `parameters` is a JSON schema of an object."""

    id: str
    description: str
    parameters: Mapping[str, JsonValue]


@dataclass(frozen=True)
class ModelRequest:
    """One model call. Every tool call among the messages has its result."""

    messages: tuple[ModelMessage, ...]
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    reasoning_effort: str | None = None
    output_schema: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ModelText:
    """More text of the reply."""

    text: str


@dataclass(frozen=True)
class ModelReasoning:
    """More of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class ModelToolCall:
    """A whole tool call. `arguments` is JSON; a model that wrote malformed ones gives their text and `malformed`."""

    id: str
    name: str
    arguments: JsonValue
    malformed: bool = False


@dataclass(frozen=True)
class ModelUsage:
    """Tokens this call took."""

    usage: TokenUsage


@dataclass(frozen=True)
class ModelStop:
    """Why the model stopped: `end`, `tool_calls`, `length`, `refusal`, or a vendor's own word. Nothing follows."""

    reason: str = "end"


ModelDelta = ModelText | ModelReasoning | ModelToolCall | ModelUsage | ModelStop


class ModelError(Exception):
    """A model call failed. `retryable`: the same call may succeed, after `retry_after` seconds if it says so."""

    def __init__(
        self, message: str, *, code: str = "model_failed", retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


@runtime_checkable
class Model(Protocol):
    """Streams replies. Must not keep state between calls: a call may be made again, in another process."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the reply's deltas as they come. Raises `ModelError`."""
        ...


_VENDORS: Final = {
    "openai": ("workers.openai_model", "OpenAIModel"),
    "mistral": ("workers.mistral_model", "MistralModel"),
}
"""Each extra's module, and the model in it. They are imported when one is named."""


def check_model(model: object) -> None:
    """Check what can be known before a model is called: its kind. Scripts may still be registered later.

    Raises `SdkError` for a name of no kind that this installation has, `TypeError` for an object that is no model.
    """
    if not isinstance(model, str):
        # Not isinstance(model, Model): what a protocol is checked by is looked up anew each time, which is slow for each turn.
        if isinstance(model, type) or not callable(getattr(model, "stream", None)):
            shown = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
            raise TypeError(f"model must be a name or an object with stream(request), not {shown}")
        return
    kind, _, name = model.partition(":")
    if kind not in ("scripted", *_VENDORS) or not name:
        raise SdkError(f"model {model!r}: no such model; names are scripted:NAME, openai:NAME and mistral:NAME")
    if kind in _VENDORS:
        _vendors_model(kind, name)


@lru_cache(maxsize=256)
def _vendors_model(kind: str, name: str) -> Model:
    """Return the model of a vendor's name. One object for a name: its connections are kept. Raises `SdkError`."""
    module, made = _VENDORS[kind]
    model: Model = getattr(import_module(module), made)(name)
    return model


def resolve_model(model: str | Model) -> Model:
    """Return the model of a name such as `scripted:echo`, or the object itself.

    Raises `SdkError` for a name that this installation does not know, `TypeError` for an object that is no model.
    """
    check_model(model)
    if not isinstance(model, str):
        return model
    kind, _, name = model.partition(":")
    if kind in _VENDORS:
        return _vendors_model(kind, name)
    from workers.scripted import scripted_model

    return scripted_model(name)
