"""Content of messages and tool results: what may be sent, what is stored, what the model is shown."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from agents_for_tests import (
    Home,
    StepModel,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    started,
    stored,
)
from pydantic import BaseModel

import api_shim as agents
from broker.protocol.content import content_text
from workers.models import ToolMessage, UserMessage

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BLOCKS: list[Any] = [
    agents.TextContentBlock(
        text="look",
        annotations=agents.ContentAnnotations(audience=["user"], priority=0.5, last_modified="2026-01-02T03:04:05Z"),
        meta={"k": [1, None]},
    ),
    agents.ImageContentBlock(uri="data:image/png;base64,AAAA", media_type="image/png", alt_text="dots"),
    agents.AudioContentBlock(uri="data:audio/wav;base64,AAAA", media_type="audio/wav"),
    agents.ResourceLinkContentBlock(
        uri="file:///a", name="a", title="A", description="d", media_type="text/plain", size=3
    ),
    agents.EmbeddedResourceContentBlock(uri="file:///b", media_type="text/plain", text="b"),
    agents.EmbeddedResourceContentBlock(uri="file:///c", blob="AAAA"),
]
SNAKE: list[dict[str, Any]] = [
    {
        "type": "text",
        "text": "look",
        "annotations": {"audience": ["user"], "priority": 0.5, "last_modified": "2026-01-02T03:04:05Z"},
        "meta": {"k": [1, None]},
    },
    {"type": "image", "uri": "data:image/png;base64,AAAA", "media_type": "image/png", "alt_text": "dots"},
    {"type": "audio", "uri": "data:audio/wav;base64,AAAA", "media_type": "audio/wav"},
    {
        "type": "resource_link",
        "uri": "file:///a",
        "name": "a",
        "title": "A",
        "description": "d",
        "media_type": "text/plain",
        "size": 3,
    },
    {"type": "embedded_resource", "uri": "file:///b", "media_type": "text/plain", "text": "b"},
    {"type": "embedded_resource", "uri": "file:///c", "blob": "AAAA"},
]
CAMEL = [
    {
        {"media_type": "mediaType", "alt_text": "altText", "meta": "_meta"}.get(key, key): value
        for key, value in block.items()
    }
    for block in SNAKE
]
CAMEL[0]["annotations"] = {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-02T03:04:05Z"}


@pytest.mark.parametrize("content", [BLOCKS, SNAKE, CAMEL], ids=["blocks", "snake_case", "camelCase"])
async def test_a_message_keeps_its_blocks_as_they_were_sent(home: Home, content: list[Any]) -> None:
    session = await (await home.agent(StepModel())).start_session()
    live: list[agents.Event] = []
    done(await session.run(content, on_event=live.append))
    history = [entry async for entry in session.history()]

    for entry in (entries_of(await stored(session), agents.MessageEntry)[0], entries_of(live, agents.MessageEntry)[0]):
        assert entry.content == tuple(BLOCKS)
        assert entry.text == "look"
        assert entry == history[0]


async def test_a_message_s_text_is_its_text_blocks_joined(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    image = agents.ImageContentBlock(uri="https://example.com/a.png")
    await session.run([agents.TextContentBlock(text="a"), image, agents.TextContentBlock(text="b")])
    await session.run([image])
    texts = [entry.text for entry in entries_of(await stored(session), agents.MessageEntry) if entry.role == "user"]

    assert texts == ["ab", ""]


def test_whatever_holds_content_has_its_text() -> None:
    image = agents.ImageContentBlock(uri="https://example.com/a.png")
    content = (agents.TextContentBlock(text="a"), image, agents.TextContentBlock(text="b"))
    entry = agents.ToolResultEntry(
        id="", turn_id=None, tool_call_id="c", name=None, content=content, structured_content=None, is_error=False
    )
    holders: list[Any] = [
        entry,
        agents.ToolResult(content),
        agents.UserMessage(content),
        agents.ContextNote(content),
        agents.SystemMessage(content),
        agents.ToolMessage("c", "client.add", content, is_error=False),
    ]

    assert [holder.text for holder in holders] == ["ab"] * 6
    assert (agents.ToolResult("a").text, agents.UserMessage((image,)).text) == ("a", "")


@pytest.mark.parametrize("text", ["\ud83d", "\ud83d\ude00", "a\x00b", "a\u2028b\r\nc", "é" * 1_000_000])
async def test_any_text_is_stored_as_valid_text_and_never_a_crash(home: Home, text: str) -> None:
    session = await (await home.agent(StepModel([text]))).start_session()
    state = done(await session.run(text))
    user, reply = entries_of(await stored(session), agents.MessageEntry)

    assert user.text == reply.text == state.text
    expected = {"\ud83d": "\ufffd", "\ud83d\ude00": "\U0001f600"}.get(text, text)
    assert user.text == expected


BAD: list[tuple[Any, str]] = [
    ("", "empty"),
    ([], "empty"),
    ([agents.TextContentBlock()], "empty"),
    (None, "content"),
    (7, "content"),
    (b"bytes", "content"),
    ({"type": "text", "text": "a"}, "content"),
    ([agents.UnknownContentBlock(original_type="hologram")], r"content\[0\]"),
    (["a", "b"], r"content\[0\]"),
    ([{"type": "text", "text": "a"}, {"type": "hologram"}], r"content\[1\]"),
    ([{"text": "a"}], r"content\[0\]"),
    ([{"type": "text", "text": "a", "colour": "red"}], r"content\[0\]\.colour"),
    ([{"type": "text", "text": 7}], r"content\[0\]\.text"),
    ([{"type": "image"}], r"content\[0\]"),
    ([{"type": "text", "text": "a", "annotations": {"priority": 1.5}}], "priority"),
    ([{"type": "text", "text": "a", "annotations": {"priority": -0.1}}], "priority"),
    ([{"type": "text", "text": "a", "meta": [1]}], "meta"),
    ([{"type": "embedded_resource", "uri": "u"}], "text and blob"),
    ([{"type": "embedded_resource", "uri": "u", "text": "a", "blob": "AAAA"}], "text and blob"),
    ([{"type": "image", "uri": "data:image/png;base64," + "A" * 10_000_001}], "10,000,000"),
    ([{"type": "context", "text": "alone"}], "context"),
    ([{"type": "context"}, {"type": "text", "text": "a"}], r"content\[0\]"),
]


@pytest.mark.parametrize(("content", "named"), BAD, ids=range(len(BAD)))
async def test_bad_input_is_refused_by_every_send_before_anything_changes(home: Home, content: Any, named: str) -> None:
    session = await (await home.agent(StepModel())).start_session()
    turn = session.turn("00000000-0000-4000-8000-000000000000")

    for sending in (session.send_message, session.start_turn, session.run, turn.steer):
        with pytest.raises((ValueError, TypeError), match=named):
            await sending(content)
    with pytest.raises((ValueError, TypeError), match=named):
        await session.send_message(content, idempotency_key="k")
    assert await stored(session) == []
    assert (await session.info()).status == "waiting"
    done(await session.run("good", idempotency_key="k"))


async def test_a_message_over_sixteen_mebibytes_is_refused(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()

    with pytest.raises(ValueError, match="16,777,216"):
        await session.start_turn("a" * (16 * 1024 * 1024))
    assert await stored(session) == []
    done(await session.run("a" * (15 * 1024 * 1024)))


# Images.


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF87a...", "image/gif"),
        (b"GIF89a...", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
    ],
)
def test_the_bytes_of_an_image_tell_its_media_type(data: bytes, media_type: str, tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(data)

    for block in (agents.ImageContentBlock.from_bytes(data), agents.ImageContentBlock.from_path(file)):
        assert block.media_type == media_type
        assert block.uri == f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def test_an_image_keeps_the_media_type_text_and_annotations_it_is_given(tmp_path: Path) -> None:
    note = agents.ContentAnnotations(priority=1)
    block = agents.ImageContentBlock.from_bytes(PNG, "image/x-mine", alt_text="dot", annotations=note)
    assert (block.media_type, block.alt_text, block.annotations) == ("image/x-mine", "dot", note)
    (tmp_path / "a").write_bytes(b"unknown")
    assert (
        agents.ImageContentBlock.from_path(str(tmp_path / "a"), "image/tiff", alt_text="x").media_type == "image/tiff"
    )


def test_bytes_of_an_unknown_kind_need_a_media_type() -> None:
    with pytest.raises(ValueError, match="media_type"):
        agents.ImageContentBlock.from_bytes(b"unknown")


def test_an_image_has_at_most_ten_million_base64_characters_without_its_prefix(tmp_path: Path) -> None:
    most = 7_500_000
    agents.ImageContentBlock.from_bytes(b"\0" * most, "image/png")
    with pytest.raises(ValueError, match="10,000,000"):
        agents.ImageContentBlock.from_bytes(b"\0" * (most + 1), "image/png")
    file = tmp_path / "large"
    file.write_bytes(b"\0" * (most + 1))
    with pytest.raises(ValueError, match="10,000,000"):
        agents.ImageContentBlock.from_path(file, "image/png")
    agents.ImageContentBlock(uri="data:image/png;base64," + "A" * 10_000_000)
    with pytest.raises(ValueError, match="10,000,000"):
        agents.ImageContentBlock(uri="data:image/png;base64," + "A" * 10_000_001)


@pytest.mark.parametrize("priority", [-0.01, 1.01, 7])
def test_a_priority_lies_between_zero_and_one(priority: float) -> None:
    with pytest.raises(ValueError, match="priority"):
        agents.ContentAnnotations(priority=priority)
    for good in (0, 0.5, 1):
        agents.ContentAnnotations(priority=good)


def test_an_embedded_resource_has_exactly_one_of_text_and_blob() -> None:
    with pytest.raises(ValueError, match="text and blob"):
        agents.EmbeddedResourceContentBlock(uri="u")
    with pytest.raises(ValueError, match="text and blob"):
        agents.EmbeddedResourceContentBlock(uri="u", text="", blob="")


def test_meta_is_a_json_object() -> None:
    with pytest.raises((ValueError, TypeError), match="meta"):
        agents.TextContentBlock(text="a", meta=["not", "an", "object"])  # type: ignore[arg-type] # that is the point


# What the model is shown.


async def test_the_model_never_sees_meta_nor_blocks_that_are_not_for_it(home: Home) -> None:
    hidden = agents.TextContentBlock(text="hidden", annotations=agents.ContentAnnotations(audience=["user"]))
    shown = agents.TextContentBlock(
        text="shown", meta={"secret": 1}, annotations=agents.ContentAnnotations(audience=["assistant"])
    )

    @agents.tool
    def look() -> agents.ToolResult:
        """Look."""
        return agents.ToolResult([hidden, shown], meta={"secret": 2})

    model = StepModel([call("look")])
    session = await (await home.agent(model, tools=[look])).start_session()
    done(await session.run([agents.TextContentBlock(text="hi", meta={"secret": 3})]))

    (result,) = entries_of(await stored(session), agents.ToolResultEntry)
    assert result.content == (hidden, shown)
    assert result.meta == {"secret": 2}
    message = model.requests[1].messages[-1]
    assert isinstance(message, ToolMessage)
    assert content_text(message.content) == "shown"
    assert "secret" not in repr(model.requests)
    user = model.requests[0].messages[0]
    assert isinstance(user, UserMessage)
    assert content_text(user.content) == "hi"


# Tool results.


class Point(BaseModel):
    x: int
    y: int


TEXT = agents.TextContentBlock(text="block")


@pytest.mark.parametrize(
    ("returned", "content", "structured"),
    [
        ("text", (agents.TextContentBlock(text="text"),), None),
        ("", (agents.TextContentBlock(text=""),), None),
        (None, (), None),
        ({"a": 1}, (agents.TextContentBlock(text='{"a":1}'),), {"a": 1}),
        (Point(x=1, y=2), (agents.TextContentBlock(text='{"x":1,"y":2}'),), {"x": 1, "y": 2}),
        (TEXT, (TEXT,), None),
        ([TEXT, TEXT], (TEXT, TEXT), None),
        (agents.ToolResult("text", structured_content=[1]), (agents.TextContentBlock(text="text"),), [1]),
    ],
    ids=["text", "empty", "none", "dict", "model", "block", "blocks", "result"],
)
async def test_what_a_tool_returns_becomes_content(home: Home, returned: Any, content: Any, structured: Any) -> None:
    @agents.tool
    def give() -> Any:
        """Give."""
        return returned

    session = await (await home.agent(StepModel([call("give")]), tools=[give])).start_session()
    done(await session.run("hi"))
    (result,) = entries_of(await stored(session), agents.ToolResultEntry)

    assert (result.content, result.structured_content) == (content, structured)
    assert (result.is_error, result.meta, result.name) == (False, {}, "client.give")


async def test_a_failed_call_keeps_its_blocks_and_its_output(home: Home) -> None:
    output = {"stdout": "", "stderr": "no such file"}

    @agents.tool
    def shell() -> agents.ToolResult:
        """Run a command."""
        return agents.ToolResult("exit code 1", structured_content=output, is_error=True)

    session = await (await home.agent(StepModel([call("shell")]), tools=[shell])).start_session()
    done(await session.run("hi"))
    (result,) = entries_of(await stored(session), agents.ToolResultEntry)

    assert result.is_error
    assert content_text(result.content) == "exit code 1"
    assert result.structured_content == output


@pytest.mark.parametrize("returned", [object(), {1: 2}, float("nan"), [b"bytes"]])
async def test_a_tool_that_returns_no_json_fails_its_call_only(home: Home, returned: Any) -> None:
    @agents.tool
    def give() -> Any:
        """Give."""
        return returned

    session = await (await home.agent(StepModel([call("give")]), tools=[give])).start_session()
    turn = started(await session.start_turn("hi"))
    done(await turn.result())

    assert [entry.is_error for entry in entries_of(await stored(session), agents.ToolResultEntry)] == [True]


async def test_a_call_s_arguments_and_a_body_of_a_megabyte_are_read_back_whole(home: Home) -> None:
    large = "x" * 1_000_000

    @agents.tool
    def give(text: str) -> dict[str, str]:
        """Give."""
        return {"text": text}

    session = await (await home.agent(StepModel([call("give", text=large)], [large]), tools=[give])).start_session()
    got: list[agents.Event] = []
    state = done(await session.run(large, on_event=got.append))

    assert state.text == large
    assert state.tool_calls == (agents.ToolCall(name="client.give", arguments={"text": large}),)
    log = await stored(session)
    assert entries_of(log, agents.ToolCallEntry)[0].arguments == {"text": large}
    assert entries_of(log, agents.ToolResultEntry)[0].structured_content == {"text": large}
    assert entries_of(got, agents.MessageEntry) == entries_of(log, agents.MessageEntry)
    assert await session.turn(state.turn_id).get() == state
