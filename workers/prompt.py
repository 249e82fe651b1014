"""The request of a model call, from a history: always one that a provider accepts, whatever happened before.

Each call is followed by its result; a call whose result never came says that it was interrupted. Blocks whose audience leaves the
assistant out are not shown to it, and neither is `meta`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

from broker.protocol.content import TextContentBlock, content_for_model, content_from_wire
from workers.agent import AgentDefinition
from workers.fold import Call, Draft, History, Input, Reply
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

_BREATH: Final = 500  # items after which the event loop has its turn


_MESSAGES: Final[dict[str, type[ContextNote | SystemMessage | UserMessage]]] = {
    "context": ContextNote,
    "system": SystemMessage,
}


def _result(call: Call) -> ToolMessage:
    if call.result is None:
        text = TextContentBlock(text=interrupted_text(call.name, started=call.started))
        return ToolMessage(call.tool_call_id, call.name, (text,), is_error=True)
    content = tuple(content_from_wire(block) for block in call.result.get("content") or ())
    return ToolMessage(
        call.tool_call_id, call.name, content_for_model(content), is_error=bool(call.result.get("isError"))
    )


def messages(history: History) -> Iterator[ModelMessage]:
    """Yield a history as a model reads it. A message of which nothing is for the model is left out."""
    for item in history.timeline:
        yield from _kept(history, item)


async def tell_ahead(history: History) -> None:
    """Make what a long history tells a model piece by piece, so that other turns go on meanwhile."""
    made = 0
    for item in tuple(history.timeline):
        if item.told is None:
            _kept(history, item)
            made += 1
            if made % _BREATH == 0:
                await asyncio.sleep(0)


def _kept(history: History, item: Input | Reply | Draft) -> tuple[ModelMessage, ...]:
    """What an item tells a model: each call of the model reads it all, so what can no longer change is made once."""
    told = item.told
    if told is None:
        told = tuple(_told(item))
        if item is not history.timeline[-1] and (not isinstance(item, Reply) or all(call.done for call in item.calls)):
            item.told = told
    return told


def _told(item: Input | Reply | Draft) -> Iterator[ModelMessage]:
    match item:
        case Input():
            yield from (ContextNote(shown) for each in item.context if (shown := content_for_model(each)))
            if content := content_for_model(item.content):
                yield _MESSAGES.get(item.role, UserMessage)(content)
        case Draft():
            if item.text:
                yield AssistantMessage(item.text)
            yield ContextNote((TextContentBlock(text=item.feedback),))
        case Reply() if item.text or item.calls:  # one of reasoning alone is nothing that a provider takes
            yield AssistantMessage(item.text, tuple(_asked(call) for call in item.calls))
            yield from (_result(call) for call in item.calls)


def _asked(call: Call) -> RequestedCall:
    # Providers take an object; a call whose arguments were no JSON, or not kept in a starting history, has none.
    return RequestedCall(call.tool_call_id, call.name, {} if call.arguments is None else call.arguments)


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
