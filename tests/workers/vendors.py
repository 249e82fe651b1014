"""What the tests of the vendors' models share."""

from __future__ import annotations

from typing import Final

import pytest

from broker.protocol.content import TextContentBlock
from workers.mistral_model import MistralModel
from workers.models import (
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelText,
    ToolSpec,
    UserMessage,
)
from workers.openai_model import OpenAIModel

KEY: Final = "sk-very-secret-0123456789"
SAID: Final = "the person's own words"
HI: Final = ModelRequest((UserMessage((TextContentBlock(text=SAID),)),))
LOOK: Final = ToolSpec("client.look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})
TOOLED: Final = ModelRequest(HI.messages, tools=(LOOK, ToolSpec("mcp.maps.find", "Find.", {"type": "object"})))

Kind = type[OpenAIModel | MistralModel]
Vendor = OpenAIModel | MistralModel


async def deltas(model: Vendor, request: ModelRequest = HI) -> list[ModelDelta]:
    """A reply's deltas, without the empty texts that only say that the server lives."""
    return [delta async for delta in model.stream(request) if delta != ModelText("")]


async def failing(model: Vendor, request: ModelRequest = HI) -> tuple[list[ModelDelta], ModelError]:
    """What came of a reply, and how it failed."""
    got: list[ModelDelta] = []

    async def read() -> None:
        async for delta in model.stream(request):
            got.append(delta)  # noqa: PERF401 - what came before the error is wanted

    with pytest.raises(ModelError) as failed:
        await read()
    assert KEY not in str(failed.value)
    assert SAID not in str(failed.value)
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None or failed.value.__suppress_context__
    return [delta for delta in got if delta != ModelText("")], failed.value
