"""Content blocks: what messages and tool results are made of.

Stored form (camelCase, `None` left out): `{"type": "text", "text": …}`, `image {uri, mediaType, altText}`, `audio
{uri, mediaType}`, `resource_link {uri, name, title, description, mediaType, size}`, `embedded_resource {uri, mediaType,
text | blob}`, each with `annotations {audience, priority, lastModified}` and `_meta`. A type that this version does not
know stays as received.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from broker.protocol.values import Brief, JsonValue, clean_json

IMAGE_LIMIT: Final = 10_000_000
"""Most base64 characters of an image in a data: URI, its prefix not counted."""


@dataclass(frozen=True, kw_only=True)
class ContentAnnotations:
    """MCP annotations of a block: for whom it is, and how important it is.

    Raises `ValueError` for a priority outside 0..1.
    """

    __match_args__ = ("audience", "priority", "last_modified")
    audience: list[Literal["user", "assistant"] | str] | None = None  # noqa: PYI051 - the specification's type
    priority: float | None = None
    last_modified: str | None = None

    def __post_init__(self) -> None:
        if self.priority is not None and not 0 <= self.priority <= 1:
            raise ValueError(f"priority must be between 0 and 1, not {self.priority}")


@dataclass(frozen=True, kw_only=True)
class _Block(Brief):
    annotations: ContentAnnotations | None = None
    meta: dict[str, JsonValue] | None = None

    def __post_init__(self) -> None:
        if self.meta is not None and not isinstance(self.meta, dict):
            raise ValueError(f"meta must be a JSON object, not {type(self.meta).__name__}")


@dataclass(frozen=True, kw_only=True)
class TextContentBlock(_Block):
    """A block of text."""

    __match_args__ = ("annotations", "meta", "text")
    type: ClassVar[Literal["text"]] = "text"
    text: str = ""


def _sniff(data: bytes) -> str | None:
    """Return the media type that an image's first bytes tell."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def _check_size(place: str, size: int) -> None:
    if size > IMAGE_LIMIT:
        raise ValueError(f"{place}: {size:,} base64 characters; at most {IMAGE_LIMIT:,} are taken: make it smaller")


@dataclass(frozen=True, kw_only=True)
class ImageContentBlock(_Block):
    """An image, by its URI; a data: URI carries it in base64.

    Raises `ValueError` for one of over 10,000,000 base64 characters.
    """

    __match_args__ = ("annotations", "meta", "uri", "media_type", "alt_text")
    type: ClassVar[Literal["image"]] = "image"
    uri: str
    media_type: str | None = None
    alt_text: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uri[:5].lower() == "data:":
            _check_size("image", len(self.uri) - self.uri.find(",") - 1)

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        media_type: str | None = None,
        *,
        alt_text: str | None = None,
        annotations: ContentAnnotations | None = None,
    ) -> ImageContentBlock:
        """Embed an image; PNG, JPEG, GIF and WebP bytes tell their media type.

        Raises `ValueError` for other bytes without one, and for over 10,000,000 base64 characters.
        """
        media_type = media_type or _sniff(data)
        if media_type is None:
            raise ValueError("data: these bytes are no PNG, JPEG, GIF or WebP image; give media_type")
        _check_size("image", (len(data) + 2) // 3 * 4)
        uri = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
        return cls(uri=uri, media_type=media_type, alt_text=alt_text, annotations=annotations)

    @classmethod
    def from_path(
        cls,
        path: str | PathLike[str],
        media_type: str | None = None,
        *,
        alt_text: str | None = None,
        annotations: ContentAnnotations | None = None,
    ) -> ImageContentBlock:
        """Embed an image file. Raises `ValueError` for one over about 7.5 MB, `OSError` for one that cannot be read."""
        file = Path(path)
        _check_size(str(file), (file.stat().st_size + 2) // 3 * 4)
        return cls.from_bytes(file.read_bytes(), media_type, alt_text=alt_text, annotations=annotations)


@dataclass(frozen=True, kw_only=True)
class AudioContentBlock(_Block):
    """A clip, by its URI."""

    __match_args__ = ("annotations", "meta", "uri", "media_type")
    type: ClassVar[Literal["audio"]] = "audio"
    uri: str
    media_type: str | None = None


@dataclass(frozen=True, kw_only=True)
class ResourceLinkContentBlock(_Block):
    """A link to a resource that the block does not hold."""

    __match_args__ = ("annotations", "meta", "uri", "name", "title", "description", "media_type", "size")
    type: ClassVar[Literal["resource_link"]] = "resource_link"
    uri: str
    name: str | None = None
    title: str | None = None
    description: str | None = None
    media_type: str | None = None
    size: int | None = None


@dataclass(frozen=True, kw_only=True)
class EmbeddedResourceContentBlock(_Block):
    """A resource in the block itself, as text or base64.

    Raises `ValueError` unless exactly one of `text` and `blob` is given.
    """

    __match_args__ = ("annotations", "meta", "uri", "media_type", "text", "blob")
    type: ClassVar[Literal["embedded_resource"]] = "embedded_resource"
    uri: str
    media_type: str | None = None
    text: str | None = None
    blob: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.text is None) == (self.blob is None):
            raise ValueError("an embedded resource needs exactly one of text and blob")


class UnknownContentBlock:
    """A block of a type added after this version; its other fields are attributes, kept as they were received."""

    __match_args__ = ("original_type",)
    type: ClassVar[Literal["unknown"]] = "unknown"
    original_type: str
    _raw: dict[str, JsonValue]

    def __init__(self, *, original_type: str) -> None:
        object.__setattr__(self, "original_type", original_type)
        object.__setattr__(self, "_raw", {"type": original_type})

    @classmethod
    def _received(cls, raw: dict[str, JsonValue]) -> UnknownContentBlock:
        block = cls(original_type=str(raw.get("type", "")))
        object.__setattr__(block, "_raw", raw)
        return block

    def __getattr__(self, name: str) -> JsonValue:
        try:
            return object.__getattribute__(self, "_raw")[name]
        except (KeyError, AttributeError):
            raise AttributeError(name) from None

    def __setattr__(self, name: str, _value: object) -> None:
        raise AttributeError(f"{name}: content blocks are frozen")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: content blocks are frozen")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownContentBlock) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self.original_type)

    def __repr__(self) -> str:
        return f"UnknownContentBlock(original_type={self.original_type!r})"


KnownContentBlock = (
    TextContentBlock | ImageContentBlock | AudioContentBlock | ResourceLinkContentBlock | EmbeddedResourceContentBlock
)
ContentBlock = KnownContentBlock | UnknownContentBlock

BLOCKS: Final[dict[str, type[KnownContentBlock]]] = {
    block.type: block
    for block in (
        TextContentBlock,
        ImageContentBlock,
        AudioContentBlock,
        ResourceLinkContentBlock,
        EmbeddedResourceContentBlock,
    )
}


@cache
def camel(name: str) -> str:
    """Return a field's stored name: `media_type` → `mediaType`, `meta` → `_meta`."""
    if name == "meta":
        return "_meta"
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


_STORED: Final = {kind: {field.name: camel(field.name) for field in fields(block)} for kind, block in BLOCKS.items()}
_ANNOTATIONS: Final = {field.name: camel(field.name) for field in fields(ContentAnnotations)}
_TEXTS: Final = {"text", "uri", "media_type", "alt_text", "name", "title", "description", "blob"}


def misfit(block: KnownContentBlock) -> str | None:
    """Return what is wrong with the types of a block's fields, naming the field; None when nothing is."""
    for field in fields(block):
        value = getattr(block, field.name)
        if field.name in _TEXTS:
            needed = field.default is not None
            if not isinstance(value, str) and (needed or value is not None):
                return f"{camel(field.name)} must be a text, not {type(value).__name__}"
        elif field.name == "size" and value is not None and type(value) is not int:
            return f"size must be a number of bytes, not {type(value).__name__}"
        elif field.name == "annotations" and value is not None:
            if not isinstance(value, ContentAnnotations):
                return f"annotations must be ContentAnnotations, not {type(value).__name__}"
            if (wrong := _misfit_annotations(value)) is not None:
                return f"annotations.{wrong}"
    return None


def _misfit_annotations(noted: Any) -> str | None:
    audience = noted.audience
    if audience is not None and not (isinstance(audience, list) and all(isinstance(who, str) for who in audience)):
        return "audience must be a list of texts"
    if isinstance(noted.priority, bool):
        return "priority must be a number, not bool"
    if noted.last_modified is not None and not isinstance(noted.last_modified, str):
        return f"lastModified must be a text, not {type(noted.last_modified).__name__}"
    return None


def content_to_wire(block: ContentBlock) -> dict[str, JsonValue]:
    """Return a block's stored form. Raises `ValueError` for what JSON cannot hold."""
    if isinstance(block, UnknownContentBlock):
        return block._raw  # noqa: SLF001 - the class is defined here
    wire: dict[str, JsonValue] = {"type": block.type}
    for name, stored in _STORED[block.type].items():
        value = getattr(block, name)
        if value is None:
            continue
        if name == "annotations":
            value = {key: item for field, key in _ANNOTATIONS.items() if (item := getattr(value, field)) is not None}
        wire[stored] = value
    cleaned: dict[str, JsonValue] = clean_json(wire, block.type)
    return cleaned


def content_from_wire(raw: Mapping[str, JsonValue]) -> ContentBlock:
    """Return the block of a stored form; one that this version cannot make becomes `UnknownContentBlock`."""
    kind = raw.get("type")
    if kind == "text" and len(raw) == 2 and isinstance(text := raw.get("text"), str):
        return TextContentBlock(text=text)  # nearly every block
    block = BLOCKS.get(kind) if isinstance(kind, str) else None
    if block is None:
        return UnknownContentBlock._received(dict(raw))  # noqa: SLF001 - the class is defined here
    values: dict[str, Any] = {name: raw[stored] for name, stored in _STORED[block.type].items() if stored in raw}
    try:
        if (noted := values.get("annotations")) is not None:
            values["annotations"] = ContentAnnotations(
                **{name: noted[stored] for name, stored in _ANNOTATIONS.items() if stored in noted}
            )
        made = block(**values)
        if misfit(made) is None:
            return made
    except (AttributeError, TypeError, ValueError):
        pass  # a known type in a shape of another version is raw data too
    return UnknownContentBlock._received(dict(raw))  # noqa: SLF001 - the class is defined here


def content_for_model(content: Iterable[ContentBlock]) -> tuple[ContentBlock, ...]:
    """Return the blocks that a model gets: those meant for it, known here and not empty, without `meta`."""
    kept: list[ContentBlock] = []
    for block in content:
        if isinstance(block, UnknownContentBlock) or (isinstance(block, TextContentBlock) and not block.text):
            continue
        audience = block.annotations.audience if block.annotations else None
        if audience is None or "assistant" in audience:
            kept.append(replace(block, meta=None) if block.meta is not None else block)
    return tuple(kept)


def content_text(content: Iterable[ContentBlock]) -> str:
    """Return the text blocks' text, joined."""
    return "".join(block.text for block in content if isinstance(block, TextContentBlock))
