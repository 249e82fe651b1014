"""Content blocks on the wire: what a provider takes as it is, and what becomes a line of text."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from broker.protocol.content import (
    AudioContentBlock,
    ContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceLinkContentBlock,
    TextContentBlock,
    UnknownContentBlock,
)
from workers.providers.content import PartWriter, is_text

PNG = "data:image/png;base64,iVBORw0KGgo="
OPENAI, MISTRAL = PartWriter("openai"), PartWriter("mistral")


def one(block: ContentBlock, writer: PartWriter = OPENAI) -> dict[str, Any]:
    (part,) = writer.parts([block])
    return part


def said(block: ContentBlock, writer: PartWriter = OPENAI) -> str:
    part = one(block, writer)
    assert is_text(part), part
    return str(part["text"])


def test_text_is_text_and_nothing_is_nothing() -> None:
    blocks: list[ContentBlock] = [
        TextContentBlock(text="hi"),
        TextContentBlock(text=""),
        UnknownContentBlock(original_type="new"),
    ]

    assert OPENAI.parts(blocks) == [{"type": "text", "text": "hi"}]


@pytest.mark.parametrize("uri", [PNG, "https://example.org/a.png", "HTTP://example.org/a"])
def test_an_image_is_shown(uri: str) -> None:
    for writer in (OPENAI, MISTRAL):
        assert one(ImageContentBlock(uri=uri), writer) == {"type": "image_url", "image_url": {"url": uri}}


@pytest.mark.parametrize(
    ("block", "line"),
    [
        (ImageContentBlock(uri="s3://bucket/a.png"), "[image at s3://bucket/a.png: not shown]"),
        (ImageContentBlock(uri="data:image/svg+xml;base64,PHN2Zz4="), "[image of type image/svg+xml: not shown]"),
        (ImageContentBlock(uri="data:image/png;base64,no!"), "[image of type image/png: not shown]"),
        (ImageContentBlock(uri="x:y", alt_text="a map"), "[image a map at x:y: not shown]"),
        (AudioContentBlock(uri="https://example.org/a.wav"), "[audio at https://example.org/a.wav: not shown]"),
        (AudioContentBlock(uri="data:audio/ogg;base64,AA=="), "[audio of type audio/ogg: not shown]"),
        (
            EmbeddedResourceContentBlock(uri="file:///a.zip", media_type="application/zip", blob="AA=="),
            "[resource of type application/zip at file:///a.zip: not shown]",
        ),
        (
            EmbeddedResourceContentBlock(uri="file:///a.bin", blob="AA=="),
            "[resource at file:///a.bin: not shown]",
        ),
    ],
)
def test_what_no_provider_takes_is_named(block: ContentBlock, line: str) -> None:
    assert said(block) == line


@pytest.mark.parametrize(("kind", "form"), [("audio/wav", "wav"), ("audio/x-wav", "wav"), ("audio/mpeg", "mp3")])
def test_audio_has_the_vendor_s_form(kind: str, form: str) -> None:
    block = AudioContentBlock(uri=f"data:{kind};base64,AAAA")

    assert one(block) == {"type": "input_audio", "input_audio": {"data": "AAAA", "format": form}}
    assert one(block, MISTRAL) == {"type": "input_audio", "input_audio": "AAAA"}


def test_a_document_has_the_vendor_s_form() -> None:
    block = EmbeddedResourceContentBlock(uri="file:///docs/a.pdf?x", media_type="application/pdf", blob="AAAA")
    data = "data:application/pdf;base64,AAAA"

    assert one(block) == {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}
    assert one(block, MISTRAL) == {"type": "document_url", "document_url": data, "document_name": "a.pdf"}


def test_a_resource_of_text_is_text() -> None:
    text = "<resource uri='file:///a.md'>\n# Hi\n</resource>"
    blob = base64.b64encode(b"# Hi").decode()

    assert said(EmbeddedResourceContentBlock(uri="file:///a.md", text="# Hi")) == text
    assert said(EmbeddedResourceContentBlock(uri="file:///a.md", media_type="text/markdown", blob=blob)) == text
    assert said(EmbeddedResourceContentBlock(uri="a", media_type="text/plain", blob="!")).endswith("not shown]")


def test_a_resource_that_is_an_image_or_audio_is_shown_as_one() -> None:
    image = EmbeddedResourceContentBlock(uri="a", media_type="image/png", blob="iVBORw0KGgo=")
    audio = EmbeddedResourceContentBlock(uri="a", media_type="audio/wav", blob="AAAA")

    assert one(image) == {"type": "image_url", "image_url": {"url": PNG}}
    assert one(audio)["type"] == "input_audio"


def test_a_link_tells_what_is_known() -> None:
    block = ResourceLinkContentBlock(
        uri="file:///a", name="a", title="The A", description="old", media_type="x/y", size=3
    )

    assert said(block) == "[link to file:///a: The A, x/y, 3 bytes, old]"
    assert said(ResourceLinkContentBlock(uri="file:///a")) == "[link to file:///a]"


def test_a_model_is_shown_only_what_it_accepts() -> None:
    blind = PartWriter("openai", ())
    blocks: list[ContentBlock] = [
        ImageContentBlock(uri=PNG),
        AudioContentBlock(uri="data:audio/wav;base64,AAAA"),
        EmbeddedResourceContentBlock(uri="file:///a.pdf", media_type="application/pdf", blob="AAAA"),
    ]

    assert [said(block, blind) for block in blocks] == [
        "[image of type image/png: not shown]",
        "[audio of type audio/wav: not shown]",
        "[resource of type application/pdf at file:///a.pdf: not shown]",
    ]
