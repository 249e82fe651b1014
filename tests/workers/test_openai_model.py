"""What is OpenAI's own, and what the servers that speak like it make of it, through OpenAI's client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from chat_rules import checks
from chat_server import DONE, ChatServer, Piece, calling, chat_server, chunk, refusing, saying, usage
from turns import staged, text_of

import api_shim as agents
from broker.broker import Broker
from broker.protocol.content import TextContentBlock
from broker.protocol.errors import SdkError
from broker.protocol.records import TokenUsage
from workers.models import (
    ModelDelta,
    ModelError,
    ModelReasoning,
    ModelRequest,
    ModelStop,
    ModelText,
    ModelToolCall,
    ModelUsage,
    ToolSpec,
    UserMessage,
    resolve_model,
)
from workers.openai_model import OpenAIModel
from workers.tools import tool

SPECS = tuple(ToolSpec(f"client.{name}", "", {"type": "object", "properties": {}}) for name in ("add", "look"))
HI = ModelRequest((UserMessage((TextContentBlock(text="hi"),)),), tools=SPECS)


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    async with chat_server() as chat:
        chat.check = checks(strict=False)
        yield chat


async def deltas(model: Any) -> list[ModelDelta]:
    return [delta async for delta in model.stream(HI) if delta != ModelText("")]


async def read(server: ChatServer, *pieces: Piece) -> list[ModelDelta]:
    """The deltas of a reply of these pieces."""
    server.answers.append([*pieces, DONE])
    return await deltas(OpenAIModel("m", base_url=server.url))


def fragment(
    index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: Any = None
) -> bytes:
    """A chunk with a piece of a call, which holds no more than what is given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    call = {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}
    return chunk({"tool_calls": [{**call, "function": function}]})


END = chunk({}, "tool_calls")
ADD_1 = ModelToolCall("c1", "client.add", {"a": 1})
LOOK_2 = ModelToolCall("c2", "client.look", {"b": 2})


async def test_calls_come_in_fragments(server: ChatServer) -> None:
    assert await read(server, *calling(("c1", "add", '{"a": 1}'), ("c2", "look", '{"b": 2}'))[:-1]) == [
        ADD_1,
        LOOK_2,
        ModelUsage(TokenUsage(input_tokens=7, output_tokens=3, total_tokens=10)),
        ModelStop("tool_calls"),
    ]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [fragment(None, "c1", "add", '{"a":'), fragment(None, None, None, " 1}"), fragment(None, "c2", "look", '{"b": 2}')],
            id="no index",
        ),
        pytest.param(
            [fragment(0, "c1", "add", '{"a": 1}'), fragment(0, "c2", "look", '{"b": 2}')],
            id="one index for all, as Ollama",
        ),
        pytest.param(
            [
                fragment(0, "c1", "add", '{"a":'), fragment(0, "c1", "add", " 1}"),
                fragment(1, "c2", "look", ""), fragment(1, "c2", "look", '{"b": 2}'),
            ],
            id="id and name in each fragment",
        ),
        pytest.param(
            [fragment(0, "c1", "a", ""), fragment(0, "", "dd", '{"a": 1}'), fragment(1, "c2", "look", '{"b": 2}')],
            id="a name in pieces",
        ),
        pytest.param(
            [
                fragment(1, "c1", "add", '{"a":'), fragment(4, "c2", "look", '{"b":'),
                fragment(1, None, None, " 1}"), fragment(4, None, None, " 2}"),
            ],
            id="fragments that alternate",
        ),
        pytest.param(
            [fragment(0, "c1", "add", {"a": 1}), fragment(1, "c2", "look", {"b": 2})],
            id="arguments that are no text",
        ),
    ],
)  # fmt: skip
async def test_what_a_sloppy_server_means_is_read(server: ChatServer, pieces: Sequence[Piece]) -> None:
    assert await read(server, *pieces, END) == [ADD_1, LOOK_2, ModelStop("tool_calls")]


async def test_calls_without_an_id_are_told_apart(server: ChatServer) -> None:
    pieces = [fragment(0, None, "add", "{}"), fragment(0, "", "add", '{"a": 1}'), fragment(None, None, "look", "")]

    assert await read(server, *pieces, END) == [
        ModelToolCall("", "client.add", {}),
        ModelToolCall("", "client.add", {"a": 1}),
        ModelToolCall("", "client.look", {}),
        ModelStop("tool_calls"),
    ]


@pytest.mark.parametrize(
    ("written", "arguments", "malformed"),
    [
        ("", {}, False),
        (" \n", {}, False),
        ("null", None, False),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}, False),
        ("{'a': 1}", "{'a': 1}", True),
        ('{"a": NaN}', '{"a": NaN}', True),
        ('{"a": 1}}', '{"a": 1}}', True),
    ],
)
async def test_arguments_are_json_or_malformed(
    server: ChatServer, written: str, arguments: object, malformed: bool
) -> None:
    assert await read(server, fragment(0, "c1", "add", written), END) == [
        ModelToolCall("c1", "client.add", arguments, malformed),
        ModelStop("tool_calls"),
    ]


async def test_calls_that_end_with_stop_are_calls_all_the_same(server: ChatServer) -> None:
    assert await read(server, fragment(0, "c1", "add", '{"a": 1}'), chunk({}, "stop")) == [
        ADD_1,
        ModelStop("tool_calls"),
    ]


async def test_a_tool_that_the_model_made_up_keeps_its_name(server: ChatServer) -> None:
    assert ModelToolCall("c1", "fly", {}) in await read(server, fragment(0, "c1", "fly"), END)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_is_read_where_servers_write_it(server: ChatServer, field: str) -> None:
    pieces = [
        chunk({field: "hm"}),
        chunk({field: "m", "content": None}),
        chunk({"content": "yes", field: None}, "stop"),
    ]

    assert await read(server, *pieces) == [
        ModelReasoning("hm"), ModelReasoning("m"), ModelText("yes"), ModelStop("end")
    ]  # fmt: skip


async def test_reasoning_that_is_written_twice_is_read_once(server: ChatServer) -> None:
    """As vLLM does while one field's name takes over from the other's."""
    said = await read(server, chunk({"reasoning_content": "hm", "reasoning": "hm"}), chunk({}, "stop"))

    assert said == [ModelReasoning("hm"), ModelStop("end")]


async def test_a_refusal_is_what_the_model_said(server: ChatServer) -> None:
    pieces = [chunk({"refusal": "I "}), chunk({"refusal": "won't."}), chunk({}, "stop")]

    assert await read(server, *pieces) == [ModelText("I "), ModelText("won't."), ModelStop("refusal")]


@pytest.mark.parametrize(
    ("details", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 5}}, 5),
        ({"prompt_tokens_details": None}, 0),
        ({"prompt_cache_hit_tokens": 4}, 4),
        ({"num_cached_tokens": 3}, 3),
    ],
)
async def test_cached_tokens_are_counted(server: ChatServer, details: dict[str, Any], cached: int) -> None:
    said = await read(server, chunk({"content": "a"}, "stop"), usage(7, 2, **details))

    counted = TokenUsage(input_tokens=7, output_tokens=2, total_tokens=9, cached_input_tokens=cached)
    assert ModelUsage(counted) in said


async def test_usage_in_every_chunk_counts_once(server: ChatServer) -> None:
    running = [chunk({"content": "a"}, usage={"prompt_tokens": 7, "completion_tokens": at}) for at in (1, 2)]

    assert (await read(server, *running, chunk({}, "stop")))[2:] == [
        ModelUsage(TokenUsage(input_tokens=7, output_tokens=2, total_tokens=9)), ModelStop("end")
    ]  # fmt: skip


async def test_a_reply_that_only_its_usage_ends_is_whole(server: ChatServer) -> None:
    assert (await read(server, chunk({"content": "a"}), usage(7, 1)))[-1] == ModelStop("end")


async def test_chunks_before_and_beside_the_choices_are_passed_over(server: ChatServer) -> None:
    filtered = chunk(prompt_filter_results=[{"prompt_index": 0}])

    assert await read(server, filtered, chunk({"content": "a"}, "stop")) == [ModelText("a"), ModelStop("end")]


# Keys and servers.


async def test_usage_is_asked_for(server: ChatServer) -> None:
    await deltas(OpenAIModel("m", base_url=server.url, options={"stream_options": {"include_usage": True, "x": 1}}))
    await deltas(OpenAIModel("m", base_url=server.url))

    assert [asked.body["stream_options"] for asked in server.asked] == [
        {"include_usage": True, "x": 1},
        {"include_usage": True},
    ]


async def test_key_and_server_come_from_the_environment(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)

    await deltas(resolve_model("openai:gpt-x"))

    assert server.asked[0].headers["authorization"] == "Bearer sk-env"
    assert server.asked[0].body["model"] == "gpt-x"


async def test_a_server_of_one_s_own_needs_no_key(server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    assert ModelStop("end") in await deltas(OpenAIModel("m", base_url=server.url))


async def test_without_a_key_a_call_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    with pytest.raises(ModelError, match=r"m at api.openai.com needs an API key: set OPENAI_API_KEY") as failed:
        await deltas(OpenAIModel("m"))
    assert failed.value.code == "auth_failed"


def test_a_name_means_one_model_object() -> None:
    assert resolve_model("openai:gpt-x") is resolve_model("openai:gpt-x")
    assert resolve_model("openai:org/model:free") is not resolve_model("openai:gpt-x")
    assert agents.OpenAIModel is OpenAIModel


@pytest.mark.parametrize(("kind", "library"), [("openai", "openai"), ("mistral", "mistralai")])
def test_without_the_extra_a_name_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, kind: str, library: str
) -> None:
    monkeypatch.delitem(__import__("sys").modules, library, raising=False)
    monkeypatch.setattr("workers.providers.clients.find_spec", lambda name: None if name == library else 1)

    with pytest.raises(SdkError, match=rf"pip install 'turnstream\[{kind}\]'"):
        agents.Agent(model=f"{kind}:never-named-before")


# In a turn.


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_turn_with_a_tool_call_runs_on_it(embedded_broker: Broker, server: ChatServer) -> None:
    server.answers += [
        refusing(503, {}, retry_after="0"),
        calling(("call_abc", "add", '{"a": 2, "b": 3}')),
        saying("It is ", "5."),
    ]
    model = OpenAIModel("gpt-x", base_url=server.url, api_key="k")
    async with staged(embedded_broker, model, add, instructions="Be kind.") as stage:
        await stage.send("2 + 3?")
        state = await stage.ended()

        assert (state["type"], state["text"]) == ("completed", "It is 5.")
        assert state["usage"]["inputTokens"] == 14
        (called,) = await stage.entries("toolCall")
        assert (called["name"], called["arguments"]) == ("client.add", {"a": 2, "b": 3})
        assert [text_of(entry) for entry in await stage.entries("toolResult")] == ["5"]

    assert [message["role"] for message in server.asked[-1].body["messages"]] == ["system", "user", "assistant", "tool"]


async def test_a_turn_whose_model_fails_for_good_says_how(embedded_broker: Broker, server: ChatServer) -> None:
    server.answers.append(refusing(400, {"error": {"message": "hi", "code": "context_length_exceeded"}}))
    async with staged(embedded_broker, OpenAIModel("m", base_url=server.url)) as stage:
        await stage.send("hi")
        state = await stage.ended()

    assert (state["type"], state["error"]["code"]) == ("failed", "context_overflow")
    assert len(server.asked) == 1
