"""The vendors' models, each through its own client library, against a server that speaks the wire format."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any
from weakref import ref

import pytest
from chat_rules import checks
from chat_server import CUT, DONE, ChatServer, Piece, chat_server, chunk, refusing, saying, usage
from eventually import eventually
from turns import Gate
from vendors import HI, KEY, LOOK, SAID, TOOLED, Kind, Vendor, deltas, failing

from broker.protocol.content import TextContentBlock
from broker.protocol.records import TokenUsage
from workers.mistral_model import MistralModel
from workers.models import (
    AssistantMessage,
    ContextNote,
    ModelRequest,
    ModelStop,
    ModelText,
    ModelToolCall,
    ModelUsage,
    RequestedCall,
    ToolMessage,
    UserMessage,
)
from workers.openai_model import OpenAIModel


@pytest.fixture(params=[OpenAIModel, MistralModel])
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param
    return made


@pytest.fixture
async def server(kind: Kind) -> AsyncIterator[ChatServer]:
    async with chat_server() as chat:
        chat.check = checks(strict=kind is MistralModel)
        yield chat


@pytest.fixture
def model(kind: Kind, server: ChatServer) -> Vendor:
    return kind("m", base_url=server.url, api_key=KEY)


# A reply.


async def test_text_streams_as_it_comes_and_usage_and_the_stop_end_it(model: Vendor, server: ChatServer) -> None:
    gate = Gate()
    first, second = chunk({"role": "assistant", "content": "Hel"}), chunk({"content": "lo"})
    server.answers.append([first, gate, second, chunk({}, "stop"), usage(7, 2), DONE])

    async with aclosing(model.stream(HI)) as stream:  # type: ignore[type-var] # they are generators
        assert await anext(stream) == ModelText("Hel")
        gate.open.set()
        rest = [delta async for delta in stream if delta != ModelText("")]

    counted = TokenUsage(input_tokens=7, output_tokens=2, total_tokens=9)
    assert rest == [ModelText("lo"), ModelUsage(counted), ModelStop("end")]


async def test_parallel_calls_are_whole_and_have_their_full_ids(model: Vendor, server: ChatServer) -> None:
    calls = [
        {"index": 0, "id": "abcdefgh0", "function": {"name": "look", "arguments": '{"at": "the \\u2603"}'}},
        {"index": 1, "id": "abcdefgh1", "function": {"name": "maps_find", "arguments": ""}},
    ]
    server.answers.append([chunk({"content": "So:"}), chunk({"tool_calls": calls}, "tool_calls"), DONE])

    assert await deltas(model, TOOLED) == [
        ModelText("So:"),
        ModelToolCall("abcdefgh0", "client.look", {"at": "the ☃"}),
        ModelToolCall("abcdefgh1", "mcp.maps.find", {}),
        ModelStop("tool_calls"),
    ]


async def test_the_request_says_what_the_agent_says(model: Vendor, server: ChatServer) -> None:
    schema = {"type": "object", "title": "An answer", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    await deltas(
        model,
        ModelRequest(
            HI.messages,
            instructions="Be kind.",
            tools=TOOLED.tools,
            temperature=0.5,
            reasoning_effort="high",
            output_schema=schema,
        ),
    )

    (asked,) = server.asked
    body = asked.body
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["look", "maps_find"]
    assert body["tools"][0]["function"]["parameters"] == LOOK.parameters
    assert (body["model"], body["stream"], body["temperature"]) == ("m", True, 0.5)
    assert body["reasoning_effort"] == "high"
    output = body["response_format"]["json_schema"]
    assert (output["name"], output["strict"]) == ("An_answer", True)
    assert output["schema"]["properties"] == {"x": {"type": "integer"}}


async def test_what_the_agent_leaves_open_is_the_server_s_to_choose(model: Vendor, server: ChatServer) -> None:
    await deltas(model)

    assert not server.asked[0].body.keys() & {
        "tools",
        "temperature",
        "reasoning_effort",
        "response_format",
        "max_tokens",
    }


async def test_more_headers_and_fields_are_sent(kind: Kind, server: ChatServer) -> None:
    model = kind("m", base_url=server.url, api_key=KEY, headers={"X-Team": "blue"}, options={"max_tokens": 5})
    await deltas(model)

    assert server.asked[0].headers["x-team"] == "blue"
    assert server.asked[0].body["max_tokens"] == 5


async def test_a_history_with_calls_comes_back_to_the_server(model: Vendor, server: ChatServer) -> None:
    gone = RequestedCall("call_1", "mcp.gone.tool", {"x": 1})
    history = (
        *HI.messages,
        AssistantMessage("Let me see.", (gone,)),
        ToolMessage("call_1", gone.name, (TextContentBlock(text="no"),), is_error=True),
        ContextNote((TextContentBlock(text="It is noon."),)),
    )
    assert (await deltas(model, ModelRequest(history)))[-1] == ModelStop("end")

    calls = [call for message in server.asked[0].body["messages"] for call in message.get("tool_calls") or ()]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [("gone_tool", '{"x":1}')]


# How it ends.


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "end"),
        ("length", "length"),
        ("model_length", "length"),
        ("tool_calls", "end"),
        ("end_turn", "end_turn"),
    ],
)
async def test_why_it_stopped_is_said(model: Vendor, server: ChatServer, finish: str, reason: str) -> None:
    server.answers.append([chunk({"content": "a"}), chunk({"content": ""}, finish), DONE])

    assert await deltas(model) == [ModelText("a"), ModelStop(reason)]


async def test_arguments_that_are_cut_off_are_malformed(model: Vendor, server: ChatServer) -> None:
    call = {"index": 0, "id": "abcdefgh0", "function": {"name": "look", "arguments": '{"at": "th'}}
    server.answers.append([chunk({"tool_calls": [call]}, "length"), DONE])

    assert await deltas(model, TOOLED) == [
        ModelToolCall("abcdefgh0", "client.look", '{"at": "th', malformed=True),
        ModelStop("length"),
    ]


@pytest.mark.parametrize("after", [[CUT], []])
async def test_what_goes_wrong_after_the_end_is_not_the_reply_s(
    model: Vendor, server: ChatServer, after: Sequence[Piece]
) -> None:
    server.answers.append([chunk({"content": "a"}, "stop"), *after])

    assert await deltas(model) == [ModelText("a"), ModelStop("end")]


async def test_a_server_that_keeps_the_stream_open_after_the_end_is_not_waited_for(
    model: Vendor, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.providers.reply._AFTER_END_S", 0.05)
    server.answers.append([chunk({"content": "a"}, "stop"), Gate()])

    assert await asyncio.wait_for(deltas(model), 5) == [ModelText("a"), ModelStop("end")]


# The client.


async def test_a_call_that_is_given_up_hangs_up(model: Vendor, server: ChatServer) -> None:
    server.answers.append([chunk({"content": "a"}), Gate()])
    stream = model.stream(HI)
    assert await anext(stream) == ModelText("a")

    await stream.aclose()  # type: ignore[attr-defined] # a generator

    await asyncio.wait_for(server.hung_up.wait(), 5)


async def test_a_connection_is_used_again(model: Vendor, server: ChatServer) -> None:
    for _ in range(3):
        await deltas(model)

    assert server.connections == 1


async def test_calls_side_by_side_do_not_mix(model: Vendor) -> None:
    asked = [ModelRequest((UserMessage((TextContentBlock(text=f"n{at}"),)),)) for at in range(10)]

    said = await asyncio.gather(*(deltas(model, request) for request in asked))

    assert [reply[0] for reply in said] == [ModelText(f'"n{at}"') for at in range(10)]


def test_each_event_loop_has_its_own_client_and_closes_it(kind: Kind) -> None:
    model = kind("m", api_key=KEY)
    clients: list[Any] = []

    async def once() -> None:
        clients.append(await model._clients.get())
        assert await model._clients.get() is clients[-1]

    asyncio.run(once())
    asyncio.run(once())

    first, second = clients
    assert first is not second
    for client in clients:
        http = client._client if kind is OpenAIModel else client.sdk_configuration.async_client
        assert http.is_closed


async def test_a_model_that_is_dropped_closes_its_connections(kind: Kind, server: ChatServer) -> None:
    """They are open and idle then, and must not be garbage before they are closed: that would be a warning here."""
    model = kind("m", base_url=server.url, api_key=KEY)
    await deltas(model)
    gone = ref(model)
    assert server.connected == 1
    await asyncio.sleep(0.05)  # until the loop holds on to the idle connection no more

    del model
    gc.collect()

    assert gone() is None
    await eventually(lambda: server.connected == 0, "the connection is closed")


def test_a_model_never_shows_its_key(kind: Kind) -> None:
    model = kind("m", base_url=f"https://me:{KEY}@example.org/v1?key={KEY}", api_key=KEY, headers={"X-Key": KEY})

    assert repr(model) == f"{kind.__name__}('m' at example.org)"


async def test_nothing_of_a_call_is_logged(model: Vendor, server: ChatServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server.answers += [saying("the reply"), refusing(400, {"error": {"message": SAID}})]
    await deltas(model)
    await failing(model)

    for secret in (KEY, SAID, "the reply"):
        assert secret not in caplog.text


@pytest.mark.parametrize("base_url", ["localhost:8000", "ftp://x/", "", "https:///v1"])
def test_a_base_url_that_is_none_is_refused(kind: Kind, base_url: str) -> None:
    with pytest.raises(ValueError, match=r"^base_url must be an http"):
        kind("m", base_url=base_url)


@pytest.mark.parametrize("argument", [{"timeout": 0}, {"timeout": "5"}, {"accepts": "image"}, {"accepts": ("video",)}])
def test_an_argument_that_makes_no_sense_is_refused_by_name(kind: Kind, argument: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(argument))} must be"):
        kind("m", **argument)
