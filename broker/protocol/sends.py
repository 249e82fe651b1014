"""What a send may carry: text, content blocks, mappings of them, and context beside them.

All is checked before anything is sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from broker.protocol.content import (
    BLOCKS,
    ContentAnnotations,
    ContentBlock,
    KnownContentBlock,
    TextContentBlock,
    UnknownContentBlock,
    camel,
    content_text,
    content_to_wire,
    misfit,
)
from broker.protocol.values import dumps

Content = str | Sequence[Any]
"""A text, or a sequence of content blocks and mappings of them."""


@dataclass(frozen=True)
class Sendable:
    """A checked message: its blocks, and the texts of its context messages. Text is cleaned when it is stored."""

    blocks: tuple[ContentBlock, ...]
    contexts: tuple[TextContentBlock, ...]

    @property
    def digest(self) -> str:
        """What makes two messages the same content: a text and one text block are, snake_case and camelCase too."""
        wire = [[content_to_wire(block) for block in group] for group in (self.blocks, self.contexts)]
        return hashlib.sha256(dumps(wire, sort_keys=True)).hexdigest()[:32]


_PREVIEW: Final = 120


def preview_of(blocks: Iterable[ContentBlock]) -> bytes:
    """Return the start of a message's text, on one line, as listings show it: ready JSON."""
    return dumps(" ".join(content_text(blocks).split())[:_PREVIEW])


_EMPTY: Final = "content is empty; give a text or at least one content block"


def parse_content(content: Content) -> Sendable:
    """Check what a send was given. Raises `ValueError` or `TypeError` naming the place, such as `content[2].text`."""
    if isinstance(content, str):
        if not content:
            raise ValueError(_EMPTY)
        return Sendable((TextContentBlock(text=content),), ())
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Sequence):
        raise TypeError(f"content must be a text or a sequence of content blocks, not {type(content).__name__}")
    if not content:
        raise ValueError(_EMPTY)
    blocks: list[ContentBlock] = []
    contexts: list[TextContentBlock] = []
    for at, item in enumerate(content):
        place = f"content[{at}]"
        if isinstance(item, Mapping) and item.get("type") == "context":
            contexts.append(_context(item, place))
        else:
            blocks.append(_block(item, place))
    if not blocks:
        raise ValueError("content holds only context; add the message itself")
    if all(isinstance(block, TextContentBlock) and not block.text for block in blocks):
        raise ValueError(_EMPTY)  # as "" is: a text and one text block are the same content
    return Sendable(tuple(blocks), tuple(contexts))


def _context(item: Mapping[str, Any], place: str) -> TextContentBlock:
    if item.keys() != {"type", "text"} or not isinstance(item["text"], str):
        raise ValueError(f"{place}: a context item has exactly type and text")
    return TextContentBlock(text=item["text"])


def _block(item: Any, place: str) -> ContentBlock:
    if isinstance(item, UnknownContentBlock):
        raise ValueError(f"{place}: a block of unknown type {item.original_type!r} cannot be sent")
    return sendable_block(item, place)


def sendable_block(item: Any, place: str) -> KnownContentBlock:
    """Return a known block, or the block of a mapping, after checking every field. Raises, naming the place."""
    block: KnownContentBlock
    if isinstance(item, Mapping):
        block = block_from_mapping(item, place)
    elif isinstance(item, tuple(BLOCKS.values())):
        block = cast("KnownContentBlock", item)
        if (wrong := misfit(block)) is not None:
            raise TypeError(f"{place}.{wrong}")
    else:
        raise TypeError(f"{place} must be a content block or a mapping of one, not {type(item).__name__}")
    try:
        content_to_wire(block)
    except ValueError as bad:
        raise ValueError(f"{place}: {bad}") from None
    return block


_TEXTS = {"text", "uri", "media_type", "alt_text", "name", "title", "description", "blob", "last_modified"}


def block_from_mapping(item: Mapping[str, Any], place: str) -> KnownContentBlock:
    """Return the block of a mapping in snake_case or camelCase. Raises `ValueError` naming the place."""
    kind = item.get("type")
    block = BLOCKS.get(kind) if isinstance(kind, str) else None
    if block is None:
        raise ValueError(f"{place}.type: {kind!r} is no content block; known: {', '.join(BLOCKS)}")
    values = mapped(item, block.__match_args__, place)
    if isinstance(noted := values.get("annotations"), Mapping):
        place_in = f"{place}.annotations"
        values["annotations"] = _call(
            ContentAnnotations, mapped(noted, ContentAnnotations.__match_args__, place_in), place_in
        )
    made: KnownContentBlock = _call(block, values, place)
    if (wrong := misfit(made)) is not None:
        raise ValueError(f"{place}.{wrong}")
    return made


def _call(kind: Any, values: dict[str, Any], place: str) -> Any:
    try:
        return kind(**values)
    except (TypeError, ValueError) as bad:
        raise ValueError(f"{place}: {_said(bad)}") from None


def _said(bad: Exception) -> str:
    """Return a constructor's own words, without the name of Python's method."""
    return str(bad).split("__init__() ")[-1]


def mapped(item: Mapping[str, Any], names: Sequence[str], place: str) -> dict[str, Any]:
    """Return a mapping's fields by their snake_case names; None is as good as left out. Raises naming the place."""
    allowed = {camel(name): name for name in names} | {name: name for name in names}
    values: dict[str, Any] = {}
    for key, value in item.items():
        if key == "type":
            continue
        name = allowed.get(key)
        if name is None:
            raise ValueError(f"{place}.{key}: no such field; known: {', '.join(names)}")
        if name in values:
            raise ValueError(f"{place}.{key}: {name} is given twice, in snake_case and in camelCase")
        if value is None:
            continue
        if name in _TEXTS and not isinstance(value, str):
            raise ValueError(f"{place}.{key} must be a text, not {type(value).__name__}")
        values[name] = value
    return values
