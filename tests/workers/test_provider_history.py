"""The history handed to a provider: one that every server takes, whatever happened before."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from chat_rules import checks, refusal
from chat_server import ChatServer, chat_server
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocol.content import (
    AudioContentBlock,
    ContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceLinkContentBlock,
    TextContentBlock,
    UnknownContentBlock,
)
from workers.mistral_model import MistralModel
from workers.models import (
    AssistantMessage,
    ContextNote,
    Model,
    ModelMessage,
    ModelRequest,
    RequestedCall,
    SystemMessage,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from workers.openai_model import OpenAIModel
from workers.providers.content import PartWriter
from workers.providers.request import chat_arguments, wire_names

PNG = "data:image/png;base64,iVBORw0KGgo="


def text(*texts: str) -> tuple[ContentBlock, ...]:
    return tuple(TextContentBlock(text=each) for each in texts)


def user(*texts: str) -> UserMessage:
    return UserMessage(text(*texts))


def reply(said: str, *calls: str) -> AssistantMessage:
    return AssistantMessage(said, tuple(RequestedCall(call_id, "client.look", {"x": 1}) for call_id in calls))


def result(call_id: str, *content: ContentBlock, is_error: bool = False) -> ToolMessage:
    return ToolMessage(call_id, "client.look", content or text("seen"), is_error=is_error)


def wire(*messages: ModelMessage, strict: bool = False, **request: Any) -> list[dict[str, Any]]:
    """The messages on the wire."""
    asked = ModelRequest(messages, **request)
    writer = PartWriter("mistral" if strict else "openai")
    arguments = chat_arguments("m", asked, wire_names(asked), writer, strict=strict)
    assert refusal(arguments, strict=strict) is None
    wired: list[dict[str, Any]] = arguments["messages"]
    return wired


def outline(messages: list[dict[str, Any]]) -> list[str]:
    """Roles and contents, a line each; of calls their ids."""
    shown = []
    for message in messages:
        calls = " ".join(call["id"] for call in message.get("tool_calls") or ())
        shown.append(f"{message['role']}: {message['content'] or ''}{f'({calls})' if calls else ''}")
    return shown


# Any history at all.

IDS = st.text(min_size=0, max_size=50) | st.sampled_from(["c1", "c2", "call_0123456789", "abcDEF123"])
NAMES = st.text(max_size=80) | st.sampled_from(["client.a", "a", "mcp.a.b", "mcp.a_b", "client.ä", "client.ö"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)
URIS = st.sampled_from(
    [PNG, "data:,x", "data:image/svg+xml;base64,AA==", "https://x/y.png", "file:///etc/x", "", "x:y"]
)
TYPES = st.none() | st.sampled_from(["audio/wav", "application/pdf", "text/plain", "image/png", "", "x"])
BLOCKS = st.one_of(
    st.builds(TextContentBlock, text=st.text()),
    st.builds(ImageContentBlock, uri=URIS, alt_text=st.none() | st.text()),
    st.builds(AudioContentBlock, uri=URIS | st.just("data:audio/mpeg;base64,AA=="), media_type=TYPES),
    st.builds(ResourceLinkContentBlock, uri=URIS, title=st.none() | st.text(), size=st.none() | st.integers()),
    st.builds(EmbeddedResourceContentBlock, uri=URIS, media_type=TYPES, text=st.text()),
    st.builds(EmbeddedResourceContentBlock, uri=URIS, media_type=TYPES, blob=st.text()),
    st.builds(UnknownContentBlock, original_type=st.text()),
)
CONTENT = st.lists(BLOCKS, max_size=3).map(tuple)
CALLS = st.lists(st.builds(RequestedCall, IDS, NAMES, JSON), max_size=3).map(tuple)
MESSAGES = st.lists(
    st.one_of(
        st.builds(UserMessage, CONTENT),
        st.builds(ContextNote, CONTENT),
        st.builds(SystemMessage, CONTENT),
        st.builds(AssistantMessage, st.text(), CALLS),
        st.builds(ToolMessage, IDS, NAMES, CONTENT, is_error=st.booleans()),
    ),
    max_size=8,
).map(tuple)
TOOLS = st.lists(
    st.builds(ToolSpec, NAMES, st.text(), st.just({"type": "object", "properties": {}})),
    max_size=5,
    unique_by=lambda spec: spec.id,
).map(tuple)
REQUESTS = st.builds(ModelRequest, MESSAGES, st.none() | st.text(), TOOLS)


@settings(max_examples=400, deadline=None)
@given(REQUESTS, st.booleans())
def test_any_request_is_well_formed_for_its_provider(request: ModelRequest, strict: bool) -> None:
    names = wire_names(request)
    body = chat_arguments("m", request, names, PartWriter("mistral" if strict else "openai"), strict=strict)

    assert refusal(json.loads(json.dumps(body)), strict=strict) is None
    for spec in request.tools:
        assert names.tool_id(names.wire(spec.id)) == spec.id


@settings(max_examples=40, deadline=None)
@given(REQUESTS)
@pytest.mark.parametrize("kind", [OpenAIModel, MistralModel])
def test_any_request_passes_the_vendor_s_client_and_a_strict_server(
    kind: type[OpenAIModel | MistralModel], request: ModelRequest
) -> None:
    async def ask() -> None:
        async with chat_server() as server:
            server.check = checks(strict=kind is MistralModel)
            model: Model = kind("m", base_url=server.url, api_key="k")
            assert [delta async for delta in model.stream(request)]

    asyncio.run(ask())


# What becomes of what happened.


def test_a_turn_with_calls_is_written_in_order() -> None:
    history: list[ModelMessage] = [
        user("hi"),
        reply("let me look", "c1", "c2"),
        result("c2"),
        result("c1", is_error=True),
        reply("done"),
        user("go"),
    ]

    assert outline(wire(*history, instructions="Be kind.")) == [
        "system: Be kind.",
        "user: hi",
        "assistant: let me look(c1 c2)",
        "tool: Error: seen",
        "tool: seen",
        "assistant: done",
        "user: go",
    ]


def test_a_call_has_its_name_and_its_arguments_as_text() -> None:
    (_, calling, answered) = wire(user("hi"), reply("", "c1"), result("c1"))

    function = {"name": "look", "arguments": '{"x":1}'}
    assert calling["content"] is None
    assert calling["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert answered == {"role": "tool", "tool_call_id": "c1", "content": "seen"}


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (None, "{}"),
        ("", "{}"),
        ({}, "{}"),
        ('{"a', '{"invalid_arguments":"{\\"a"}'),
        ([1], '{"invalid_arguments":[1]}'),
    ],
)
def test_arguments_that_are_no_object_become_one(arguments: Any, written: str) -> None:
    calls = (RequestedCall("c1", "client.look", arguments),)

    (_, calling, _) = wire(user("hi"), AssistantMessage("", calls), result("c1"))

    assert calling["tool_calls"][0]["function"]["arguments"] == written


def test_a_call_whose_result_is_missing_has_an_error() -> None:
    assert outline(wire(user("hi"), reply("", "c1", "c2"), result("c2"), user("go")))[2:] == [
        "tool: Error: It has no result.",
        "tool: seen",
        "user: go",
    ]


def test_a_result_without_output_says_so() -> None:
    (*_, answered) = wire(user("hi"), reply("", "c1"), ToolMessage("c1", "client.look", (), is_error=False))

    assert answered["content"] == "(no output)"


def test_a_person_s_messages_in_a_row_are_one() -> None:
    assert wire(user("one"), user("two", "three")) == [{"role": "user", "content": "one\n\ntwo\n\nthree"}]


def test_context_is_marked_and_stands_before_its_input() -> None:
    history: list[ModelMessage] = [
        user("hi"),
        reply("hello"),
        ContextNote(text("It is noon.")),
        user("What time is it?"),
    ]

    assert wire(*history)[-1]["content"] == "<context>\nIt is noon.\n</context>\n\nWhat time is it?"


def test_all_system_messages_are_one_and_stand_first() -> None:
    history: list[ModelMessage] = [
        SystemMessage(text("Old rule.")),
        user("hi"),
        SystemMessage(text("Older rule.")),
        reply("ho"),
        user("go"),
    ]

    assert outline(wire(*history, instructions="Be kind.")) == [
        "system: Be kind.\n\nOld rule.\n\nOlder rule.",
        "user: hi",
        "assistant: ho",
        "user: go",
    ]


def test_replies_in_a_row_are_one() -> None:
    assert outline(wire(user("hi"), reply("one"), reply("two"), reply("three", "c1"), result("c1")))[1:] == [
        "assistant: one\n\ntwo\n\nthree(c1)",
        "tool: seen",
    ]


@pytest.mark.parametrize("history", [[], [reply("said")], [user("hi"), reply("said")]])
def test_the_model_never_has_the_last_word(history: list[ModelMessage]) -> None:
    assert wire(*history)[-1] == {"role": "user", "content": "Go on."}


def test_a_message_without_anything_to_show_is_kept() -> None:
    assert outline(wire(UserMessage(()))) == ["user: (an empty message)"]


def test_what_a_result_cannot_hold_follows_all_results() -> None:
    image = ImageContentBlock(uri=PNG)
    history: list[ModelMessage] = [
        user("hi"),
        reply("", "c1", "c2"),
        result("c1", *text("Two:"), image, image),
        result("c2"),
        user("and?"),
    ]

    (*_, first, second, shown) = wire(*history)

    assert first["content"] == "Two:\n\n[2 more below]"
    assert second["content"] == "seen"
    picture = {"type": "image_url", "image_url": {"url": PNG}}
    assert shown["content"] == [
        {"type": "text", "text": "[from look, call c1]"}, picture, picture, {"type": "text", "text": "and?"}
    ]  # fmt: skip


# Mistral's rules.


def test_a_strict_server_gets_a_reply_between_a_result_and_a_person_s_message() -> None:
    history: list[ModelMessage] = [user("hi"), reply("", "abcdefghi"), result("abcdefghi"), user("stop")]

    assert outline(wire(*history, strict=True))[-2:] == ["assistant: OK.", "user: stop"]
    assert outline(wire(*history))[-2:] == ["tool: seen", "user: stop"]


def test_a_strict_server_gets_text_and_calls_apart() -> None:
    assert outline(wire(user("hi"), reply("let me look", "abcdefghi"), result("abcdefghi"), strict=True))[1:] == [
        "assistant: let me look",
        "assistant: (abcdefghi)",
        "tool: seen",
    ]


def test_a_strict_server_gets_ids_of_nine_letters_and_digits_the_same_each_time() -> None:
    history: list[ModelMessage] = [user("hi"), reply("", "call_1", "abcdefghi"), result("abcdefghi"), result("call_1")]

    (_, calling, first, second) = wire(*history, strict=True)

    ids = [call["id"] for call in calling["tool_calls"]]
    assert ids[1] == "abcdefghi"
    assert ids == [first["tool_call_id"], second["tool_call_id"]]
    assert wire(*history, user("more"), strict=True)[1] == calling


def test_an_id_that_two_replies_share_differs_on_the_wire() -> None:
    (_, first, _, second, answered) = wire(user("hi"), reply("", "c1"), result("c1"), reply("", "c1"), result("c1"))

    assert first["tool_calls"][0]["id"] == "c1"
    assert second["tool_calls"][0]["id"] == answered["tool_call_id"] != "c1"


def test_an_order_is_strict_at_mistral_or_where_it_is_asked_for() -> None:
    def strict(**arguments: Any) -> bool:
        model = OpenAIModel("m", **arguments)
        request = ModelRequest((user("hi"), reply("", "c1"), result("c1"), user("stop")))
        said = model._arguments(request, wire_names(request))["messages"]
        return len(said) == 5

    assert not strict()
    assert not strict(base_url="https://notmistral.ai/v1")
    assert strict(base_url="https://api.mistral.ai/v1")
    assert strict(base_url="http://localhost:8000/v1", strict_order=True)
    assert not strict(base_url="https://api.mistral.ai/v1", strict_order=False)


async def test_the_fake_server_refuses_what_real_ones_refuse() -> None:
    """The check itself can fail."""
    wrong = ChatServer()
    wrong.check = checks(strict=True)
    ends = [{"role": "user", "content": "hi"}, {"role": "tool", "tool_call_id": "c1", "content": "x"}]

    assert wrong.check({"messages": ends}) == "unexpected role tool after user"
    assert refusal({"messages": [{"role": "assistant", "content": "hi"}]}, strict=False) is not None
    assert refusal({"messages": [ends[0], ends[0]]}, strict=False) == "two messages of a person in a row"
