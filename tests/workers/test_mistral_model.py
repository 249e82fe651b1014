"""What is Mistral's own, through Mistral's client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from chat_rules import checks
from chat_server import DONE, ChatServer, chat_server, chunk, refusing, saying, usage
from turns import staged, text_of

import api_shim as agents
from broker.broker import Broker
from broker.protocol.content import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    TextContentBlock,
)
from broker.protocol.records import TokenUsage
from workers.mistral_model import MistralModel
from workers.models import (
    ModelDelta,
    ModelError,
    ModelReasoning,
    ModelRequest,
    ModelStop,
    ModelText,
    ModelUsage,
    UserMessage,
    resolve_model,
)
from workers.tools import tool

HI = ModelRequest((UserMessage((TextContentBlock(text="hi"),)),))


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    async with chat_server() as chat:
        chat.check = checks(strict=True)
        yield chat


async def deltas(model: Any, request: ModelRequest = HI) -> list[ModelDelta]:
    return [delta async for delta in model.stream(request) if delta != ModelText("")]


async def test_thinking_is_reasoning(server: ChatServer) -> None:
    def thinking(text: str) -> dict[str, Any]:
        return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]}

    said = {"content": [{"type": "text", "text": "ye"}, {"type": "reference", "reference_ids": [1]}]}
    server.answers.append(
        [chunk(thinking("h")), chunk(thinking("m")), chunk(said), chunk({"content": "s"}, "stop"), DONE]
    )

    assert await deltas(MistralModel("m", base_url=server.url, api_key="k")) == [
        ModelReasoning("h"), ModelReasoning("m"), ModelText("ye"), ModelText("s"), ModelStop("end")
    ]  # fmt: skip


@pytest.mark.parametrize("details", [{"prompt_tokens_details": {"cached_tokens": 5}}, {"num_cached_tokens": 5}])
async def test_cached_tokens_are_counted(server: ChatServer, details: dict[str, Any]) -> None:
    counted = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9, **details}
    server.answers.append([chunk({"content": "a"}, "stop", usage=counted), DONE])

    said = await deltas(MistralModel("m", base_url=server.url, api_key="k"))
    usage_ = TokenUsage(input_tokens=7, output_tokens=2, total_tokens=9, cached_input_tokens=5)
    assert ModelUsage(usage_) in said


async def test_media_have_mistral_s_form(server: ChatServer) -> None:
    content = (
        TextContentBlock(text="see"),
        ImageContentBlock(uri="https://example.org/a.png"),
        AudioContentBlock(uri="data:audio/wav;base64,AAAA"),
        EmbeddedResourceContentBlock(uri="file:///a.pdf", media_type="application/pdf", blob="AAAA"),
    )
    await deltas(MistralModel("m", base_url=server.url, api_key="k"), ModelRequest((UserMessage(content),)))

    assert server.asked[0].body["messages"][0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "input_audio", "input_audio": "AAAA"},
        {"type": "document_url", "document_url": "data:application/pdf;base64,AAAA", "document_name": "a.pdf"},
    ]


async def test_a_base_url_may_end_with_the_version_or_not(server: ChatServer) -> None:
    for url in (server.url, server.url + "/", server.url.removesuffix("/v1")):
        await deltas(MistralModel("m", base_url=url, api_key="k"))

    assert {asked.path for asked in server.asked} == {"/v1/chat/completions"}


async def test_the_key_comes_from_the_environment(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "env-key")

    await deltas(MistralModel("m", base_url=server.url))

    assert server.asked[0].headers["authorization"] == "Bearer env-key"


async def test_a_token_file_that_is_not_there_is_a_failure_to_sign_in(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MISTRAL_API_KEY", raising=False)
    monkeypatch.setenv("MISTRAL_SA_TOKEN_PATH", "/nowhere/token")

    with pytest.raises(ModelError) as failed:
        await deltas(MistralModel("m", base_url=server.url))
    assert failed.value.code == "auth_failed"


@pytest.mark.parametrize(
    ("options", "said"), [({"max_words": 5}, "takes no max_words"), ({"top_k": "many"}, "refuses top_k")]
)
async def test_an_option_that_its_client_does_not_take_is_named(
    server: ChatServer, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said) as failed:
        await deltas(MistralModel("m", base_url=server.url, api_key="k", options=options))
    assert (failed.value.code, failed.value.retryable) == ("bad_request", False)
    assert "many" not in str(failed.value)
    assert server.asked == []


def test_a_name_means_one_model_object() -> None:
    assert resolve_model("mistral:mistral-large-4") is resolve_model("mistral:mistral-large-4")
    assert repr(resolve_model("mistral:mistral-large-4")) == "MistralModel('mistral-large-4')"
    assert agents.MistralModel is MistralModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_turn_with_a_tool_call_runs_on_it(embedded_broker: Broker, server: ChatServer) -> None:
    call = {"id": "D681PevKs", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}, "index": 0}
    server.answers += [
        refusing(429, {"object": "error", "message": "slow down", "type": "rate_limited"}, retry_after="0"),
        [chunk({"content": "Let me add.", "tool_calls": [call]}, "tool_calls"), usage(7, 3), DONE],
        saying("It is 5."),
    ]
    model = MistralModel("mistral-x", base_url=server.url, api_key="k")
    async with staged(embedded_broker, model, add) as stage:
        await stage.send("2 + 3?")
        state = await stage.ended()

        assert (state["type"], state["text"]) == ("completed", "It is 5.")
        assert [text_of(entry) for entry in await stage.entries("toolResult")] == ["5"]

    roles = [message["role"] for message in server.asked[-1].body["messages"]]
    assert roles == ["user", "assistant", "assistant", "tool"]
