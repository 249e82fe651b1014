"""The request of a model call, from a history: always one that a provider accepts, whatever happened before.

Each call is followed by its result; a call whose result never came says that it was interrupted. Blocks whose audience leaves the
assistant out are not shown to it, and neither is `meta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from broker.protocol.content import TextContentBlock, content_for_model, content_from_wire
from workers.agent import AgentDefinition
from workers.fold import Call, History, Input, Reply
from workers.models import (
    AssistantMessage,
    ContextNote,
    ModelMessage,
    ModelRequest,
    RequestedCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from workers.permissions import interrupted_text
from workers.toolset import Toolset


def _result(call: Call) -> ToolMessage:
    if call.result is None:
        text = TextContentBlock(text=interrupted_text(call.name, started=call.started))
        return ToolMessage(call.tool_call_id, call.name, (text,), is_error=True)
    content = tuple(content_from_wire(block) for block in call.result.get("content") or ())
    return ToolMessage(call.tool_call_id, call.name, content_for_model(content), is_error=bool(call.result.get("isError")))


def messages(history: History) -> Iterator[ModelMessage]:
    """Yield a history as a model reads it."""
    for item in history.timeline:
        match item:
            case Input(role="system"):
                yield SystemMessage(content_for_model(item.content))
            case Input():
                for context in item.context:
                    yield ContextNote(content_for_model(context))
                yield UserMessage(content_for_model(item.content))
            case Reply() if item.text or item.calls:  # one of reasoning alone is nothing that a provider takes
                calls = tuple(RequestedCall(call.tool_call_id, call.name, call.arguments) for call in item.calls)
                yield AssistantMessage(item.text, calls)
                yield from (_result(call) for call in item.calls)


def build_request(
    definition: AgentDefinition, customization: Mapping[str, Any], tools: Toolset, history: History
) -> ModelRequest:
    """Return the request of the next model call."""
    output = definition.output_type
    return ModelRequest(
        messages=tuple(messages(history)),
        instructions=definition.instructions_for(customization),
        tools=tools.specs,
        temperature=definition.temperature,
        reasoning_effort=customization.get("reasoning_effort") or definition.reasoning_effort,
        output_schema=output.model_json_schema() if output is not None else None,
    )
