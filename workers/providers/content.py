"""Content blocks as the parts of a chat message. What a provider does not take becomes text that says what it was."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from broker.protocol.content import (
    AudioContentBlock,
    ContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceLinkContentBlock,
    TextContentBlock,
)

Part = dict[str, Any]
Medium = Literal["image", "audio", "document"]
MEDIA: Final[tuple[Medium, ...]] = ("image", "audio", "document")

_DATA: Final = re.compile(r"data:(?P<type>[^;,]*)[^,]*;base64,(?P<data>[A-Za-z0-9+/]+={0,2})", re.IGNORECASE)
_IMAGES: Final = {"image/png", "image/jpeg", "image/gif", "image/webp"}
_AUDIO: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_TEXTUAL: Final = re.compile(r"text/|application/(?:json|xml|yaml|toml|javascript)\b|.*\+(?:json|xml)\b")


def text_part(text: str) -> Part:
    """Return the part of a text."""
    return {"type": "text", "text": text}


def is_text(part: Part) -> bool:
    """Whether a part is text."""
    return bool(part["type"] == "text")


@dataclass(frozen=True)
class PartWriter:
    """Writes blocks as parts for one kind of server: which media it takes, and whose form of audio and documents.

    Raises `ValueError` for media that there are not.
    """

    vendor: Literal["openai", "mistral"]
    accepts: Collection[Medium] = MEDIA

    def __post_init__(self) -> None:
        if isinstance(self.accepts, str) or not set(self.accepts) <= set(MEDIA):
            raise ValueError(f"accepts must be some of {', '.join(MEDIA)}, not {self.accepts!r}")

    def parts(self, content: Iterable[ContentBlock]) -> list[Part]:
        """Return the parts of blocks; empty texts, and blocks of a type that this version does not know, leave none."""
        return [part for block in content if (part := self._part(block)) is not None]

    def _part(self, block: ContentBlock) -> Part | None:
        match block:
            case TextContentBlock():
                return text_part(block.text) if block.text else None
            case ImageContentBlock():
                said = f"image {block.alt_text}" if block.alt_text else "image"
                return self._image(block.uri) or _not_shown(said, block.uri, block.media_type)
            case AudioContentBlock():
                return self._audio(block.uri, block.media_type) or _not_shown("audio", block.uri, block.media_type)
            case ResourceLinkContentBlock():
                return text_part(_link(block))
            case EmbeddedResourceContentBlock():
                return self._resource(block)
            case _:
                return None

    def _image(self, uri: str) -> Part | None:
        embedded = _DATA.fullmatch(uri)
        shown = embedded["type"].lower() in _IMAGES if embedded else uri.lower().startswith(("https://", "http://"))
        return {"type": "image_url", "image_url": {"url": uri}} if shown and "image" in self.accepts else None

    def _audio(self, uri: str, media_type: str | None) -> Part | None:
        embedded = _DATA.fullmatch(uri)
        form = _AUDIO.get((embedded["type"] or media_type or "").lower()) if embedded else None
        if embedded is None or form is None or "audio" not in self.accepts:
            return None
        data = embedded["data"]
        spoken: Any = data if self.vendor == "mistral" else {"data": data, "format": form}
        return {"type": "input_audio", "input_audio": spoken}

    def _document(self, uri: str, data: str) -> Part | None:
        if "document" not in self.accepts or not _DATA.fullmatch(data):
            return None
        name = _file_name(uri)
        if self.vendor == "mistral":
            return {"type": "document_url", "document_url": data, "document_name": name}
        return {"type": "file", "file": {"filename": name, "file_data": data}}

    def _resource(self, block: EmbeddedResourceContentBlock) -> Part:
        kind = (block.media_type or "").partition(";")[0].strip().lower()
        text = block.text
        if text is None and _TEXTUAL.match(kind):
            text = _decoded(block.blob or "")
        if text is not None:
            return text_part(f"<resource uri={block.uri!r}>\n{text}\n</resource>")
        data = f"data:{kind};base64,{block.blob}"
        shown = self._image(data) or self._audio(data, kind)
        if shown is None and kind == "application/pdf":
            shown = self._document(block.uri, data)
        return shown or _not_shown("resource", block.uri, kind)


def _decoded(blob: str) -> str | None:
    try:
        return base64.b64decode(blob, validate=True).decode()
    except ValueError:
        return None


def _file_name(uri: str) -> str:
    return re.split(r"[?#]", uri)[0].rstrip("/").rpartition("/")[2] or "document.pdf"


def _not_shown(said: str, uri: str, media_type: str | None) -> Part:
    """A line in place of what this model is not shown: of an embedded one its type, else where it is."""
    embedded = uri[:5].lower() == "data:"
    of_type = media_type or (uri[5:].partition(",")[0].partition(";")[0] if embedded else "")
    where = "" if embedded else f" at {uri}"
    return text_part(f"[{said}{f' of type {of_type}' if of_type else ''}{where}: not shown]")


def _link(block: ResourceLinkContentBlock) -> str:
    title = block.title or block.name
    size = f"{block.size} bytes" if block.size is not None else None
    about = [said for said in (title, block.media_type, size, block.description) if said]
    return f"[link to {block.uri}{': ' if about else ''}{', '.join(about)}]"
