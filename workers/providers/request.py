"""A request as the arguments of a chat-completions call, the same for every vendor's client."""

from __future__ import annotations

from typing import Any

from broker.protocol.values import clean_text
from workers.models import AssistantMessage, ModelRequest, ToolSpec
from workers.providers.content import PartWriter
from workers.providers.history import wire_messages
from workers.providers.names import WireNames
from workers.providers.schema import response_format


def wire_names(request: ModelRequest) -> WireNames:
    """Return the names of a request's tools and of every tool that its history speaks of."""
    called = (call.name for said in request.messages if isinstance(said, AssistantMessage) for call in said.calls)
    return WireNames([*(spec.id for spec in request.tools), *called])


def chat_arguments(
    model: str, request: ModelRequest, names: WireNames, writer: PartWriter, *, strict: bool
) -> dict[str, Any]:
    """Return the model, the messages, and what else the request says; `strict` is `wire_messages`'."""
    output = request.output_schema
    optional = {
        "tools": [_function(spec, names) for spec in request.tools] or None,
        "temperature": request.temperature,
        "reasoning_effort": request.reasoning_effort,
        "response_format": response_format(output) if output is not None else None,
    }
    return {
        "model": model,
        "messages": wire_messages(request, names, writer, strict=strict),
        **{key: value for key, value in optional.items() if value is not None},
    }


def _function(spec: ToolSpec, names: WireNames) -> dict[str, Any]:
    described = {"description": clean_text(spec.description)} if spec.description else {}
    return {
        "type": "function",
        "function": {"name": names.wire(spec.id), **described, "parameters": dict(spec.parameters)},
    }
