"""Content blocks, and what a send may carry."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.content import (
    AudioContentBlock,
    ContentAnnotations,
    ContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceLinkContentBlock,
    TextContentBlock,
    UnknownContentBlock,
    content_from_wire,
    content_text,
    content_to_wire,
)
from broker.protocol.sends import parse_content
from broker.protocol.values import clean_text, dumps, loads

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 9
NOTED = ContentAnnotations(audience=["user"], priority=0.5, last_modified="2026-01-01T00:00:00Z")
BLOCKS: list[ContentBlock] = [
    TextContentBlock(),
    TextContentBlock(text="hello", annotations=NOTED, meta={"k": [1, None]}),
    ImageContentBlock(uri="https://example.org/a.png", media_type="image/png", alt_text="a"),
    AudioContentBlock(uri="data:audio/wav;base64,AAAA", media_type="audio/wav", meta={}),
    ResourceLinkContentBlock(uri="file:///a", name="a", title="A", description="d", media_type="text/plain", size=3),
    EmbeddedResourceContentBlock(uri="file:///a", text=""),
    EmbeddedResourceContentBlock(uri="file:///a", media_type="x/y", blob="AAAA", annotations=ContentAnnotations()),
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.type)
def test_a_block_survives_the_round_trip(block: ContentBlock) -> None:
    wire = content_to_wire(block)

    assert content_from_wire(loads(dumps(wire))) == block
    assert None not in wire.values()
    assert "media_type" not in wire
    assert "meta" not in wire


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.type)
def test_blocks_are_frozen_and_their_type_is_not_settable(block: ContentBlock) -> None:
    for name in ("type", "meta", "more"):
        with pytest.raises(AttributeError):
            setattr(block, name, "x")
    with pytest.raises(TypeError, match="type"):
        type(block)(type="text")  # type: ignore[call-arg] # what is refused


def test_a_block_of_a_later_version_is_kept_as_it_was_received() -> None:
    raw = {"type": "video", "uri": "u", "_meta": {"a": 1}, "frames": [1, 2]}
    block = content_from_wire(raw)

    assert isinstance(block, UnknownContentBlock)
    assert (block.type, block.original_type, block.frames, block.uri) == ("unknown", "video", [1, 2], "u")
    assert content_to_wire(block) == raw
    assert block == content_from_wire(dict(raw)) != UnknownContentBlock(original_type="video")
    with pytest.raises(AttributeError):
        block.frames = []


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "text", "text": 5},
        {"type": "image"},
        {"type": "image", "uri": None},
        {"type": "image", "uri": 5},
        {"type": "embedded_resource", "uri": "u"},
        {"type": "text", "text": "a", "annotations": {"priority": 7}},
        {"type": "text", "text": "a", "annotations": {"audience": "user"}},
        {"type": "text", "text": "a", "annotations": 5},
        {"type": "text", "text": "a", "_meta": []},
        {"type": "resource_link", "uri": "u", "size": "big"},
        {"type": ["text"]},
        {},
    ],
    ids=str,
)
def test_a_known_type_in_another_shape_is_kept_too(raw: dict[str, Any]) -> None:
    block = content_from_wire(raw)

    assert isinstance(block, UnknownContentBlock)
    assert content_to_wire(block) == raw


def test_unknown_fields_of_a_known_block_are_ignored() -> None:
    assert content_from_wire({"type": "text", "text": "a", "later": 1}) == TextContentBlock(text="a")


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_an_image_of_bytes_knows_its_media_type(data: bytes, media_type: str, tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(data)
    block = ImageContentBlock.from_bytes(data, alt_text="a", annotations=NOTED)

    assert block.uri == f"data:{media_type};base64,{base64.b64encode(data).decode()}"
    assert (block.media_type, block.alt_text, block.annotations) == (media_type, "a", NOTED)
    assert ImageContentBlock.from_path(tmp_path / "image", alt_text="a", annotations=NOTED) == block
    assert ImageContentBlock.from_bytes(data, "image/x").media_type == "image/x"


def test_bytes_of_an_unknown_kind_need_a_media_type() -> None:
    with pytest.raises(ValueError, match="give media_type"):
        ImageContentBlock.from_bytes(b"BM")

    assert ImageContentBlock.from_bytes(b"BM", "image/bmp").media_type == "image/bmp"


def test_ten_million_base64_characters_are_the_limit_without_the_prefix(tmp_path: Path) -> None:
    largest = PNG + b"\0" * (7_500_000 - len(PNG))

    assert len(ImageContentBlock.from_bytes(largest).uri) == 10_000_000 + len("data:image/png;base64,")
    (tmp_path / "big.png").write_bytes(largest + b"\0")
    with pytest.raises(ValueError, match=r"10,000,004 base64 characters.*big|big.*10,000,004"):
        ImageContentBlock.from_path(tmp_path / "big.png")
    with pytest.raises(ValueError, match="at most 10,000,000"):
        ImageContentBlock.from_bytes(largest + b"\0")
    for scheme in ("data", "DATA"):
        with pytest.raises(ValueError, match="at most 10,000,000"):
            parse_content([{"type": "image", "uri": f"{scheme}:image/png;base64,{'A' * 10_000_001}"}])


def test_a_repr_is_short_whatever_the_block_holds() -> None:
    assert len(repr(ImageContentBlock.from_bytes(PNG + b"\0" * 100_000))) < 400
    assert repr(TextContentBlock(text="hi")) == "TextContentBlock(annotations=None, meta=None, text='hi')"


def test_text_of_content_is_its_text_blocks_joined() -> None:
    embedded = EmbeddedResourceContentBlock(uri="u", text="no")

    assert content_text([TextContentBlock(text="a"), embedded, TextContentBlock(text="b")]) == "ab"
    assert content_text([embedded]) == ""


# What a send may carry.


def test_a_text_is_one_text_block() -> None:
    sent = parse_content("hello \ud83d\ude00")

    assert [content_to_wire(block) for block in sent.blocks] == [{"type": "text", "text": "hello 😀"}]
    assert sent.contexts == ()


def test_blocks_and_mappings_in_both_spellings_are_taken() -> None:
    block = ResourceLinkContentBlock(uri="u", media_type="a/b", annotations=NOTED, meta={"k": 1})
    noted = {"audience": ["user"], "priority": 0.5, "last_modified": "2026-01-01T00:00:00Z"}
    snake = {"type": "resource_link", "uri": "u", "media_type": "a/b", "annotations": noted, "meta": {"k": 1}}
    noted_camel = {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"}
    camel = {"type": "resource_link", "uri": "u", "mediaType": "a/b", "annotations": noted_camel, "_meta": {"k": 1}}

    assert [parse_content([item]).blocks for item in (block, snake, camel)] == [(block,)] * 3
    assert len({parse_content([item]).digest for item in (block, snake, camel)}) == 1


def test_context_items_go_beside_the_message() -> None:
    sent = parse_content([{"type": "text", "text": "a"}, {"type": "context", "text": "b"}])

    assert sent.blocks == (TextContentBlock(text="a"),)
    assert [context.text for context in sent.contexts] == ["b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "content is empty"),
        ([], "content is empty"),
        ([TextContentBlock()], "content is empty"),
        ([{"type": "context", "text": "b"}], "only context"),
        ([{"type": "context", "text": 5}], r"content\[0\]: a context item"),
        ([{"type": "text", "text": "a"}, {"type": "video"}], r"content\[1\]\.type: 'video'"),
        ([{"text": "a"}], r"content\[0\]\.type: None"),
        ([{"type": "text", "text": "a", "annotations": {"priority": 2}}], r"content\[0\]\.annotations: priority"),
        ([{"type": "text", "text": 5}], r"content\[0\]\.text must be a text, not int"),
        ([{"type": "text", "txt": "a"}], r"content\[0\]\.txt: no such field"),
        ([{"type": "image", "uri": None}], r"content\[0\]: missing .*'uri'"),
        ([{"type": "image", "uri": "u", "mediaType": "a", "media_type": "b"}], "given twice"),
        ([{"type": "embedded_resource", "uri": "u"}], r"content\[0\]: .*exactly one of text and blob"),
        ([{"type": "embedded_resource", "uri": "u", "text": "", "blob": ""}], "exactly one of text and blob"),
        ([{"type": "text", "text": "a", "meta": [1]}], r"content\[0\]: meta must be a JSON object"),
        ([{"type": "text", "text": "a", "meta": {"n": float("nan")}}], r"content\[0\]: .*_meta\.n: nan"),
        ([{"type": "resource_link", "uri": "u", "size": "big"}], r"content\[0\]\.size must be a number"),
        ([{"type": "text", "text": "a", "annotations": "user"}], r"content\[0\]\.annotations must be"),
        ([UnknownContentBlock(original_type="video")], r"content\[0\]: a block of unknown type 'video'"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_content_is_a_value_error_that_names_the_place(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_content(content)


@pytest.mark.parametrize(
    "content",
    [None, 5, b"bytes", {"type": "text", "text": "a"}, iter(()), [5], ["text"], [TextContentBlock(text=5)]],  # type: ignore[arg-type] # what is refused
    ids=["none", "number", "bytes", "block", "iterator", "numbers", "texts", "no text"],
)
def test_what_is_no_content_at_all_is_a_type_error(content: Any) -> None:
    with pytest.raises(TypeError, match="content"):
        parse_content(content)


def test_a_wrong_priority_is_refused_where_it_is_made() -> None:
    for priority in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="priority must be between 0 and 1"):
            ContentAnnotations(priority=priority)
    assert dataclasses.replace(NOTED, priority=1).priority == 1


def test_the_digest_tells_content_apart_and_nothing_else() -> None:
    text = parse_content("a").digest

    assert parse_content([{"type": "text", "text": "a"}]).digest == text
    assert parse_content([TextContentBlock(text="a")]).digest == text
    assert parse_content("b").digest != text
    assert parse_content([TextContentBlock(text="a"), {"type": "context", "text": "b"}]).digest != text
    one, other = ({"type": "text", "text": "a", "meta": meta} for meta in ({"x": 1, "y": 2}, {"y": 2, "x": 1}))
    assert parse_content([one]).digest == parse_content([other]).digest


@given(st.text(st.characters(codec=None, exclude_categories=()), min_size=1))
def test_any_text_can_be_sent_and_read_back(text: str) -> None:
    (block,) = parse_content(text).blocks

    assert content_from_wire(loads(dumps(content_to_wire(block)))) == TextContentBlock(text=clean_text(text))
    assert parse_content(text).digest == parse_content([{"type": "text", "text": text}]).digest
