"""JSON values, and text that is always valid UTF-8.

Text from anywhere may hold half of a surrogate pair. It is replaced once, at the door, by U+FFFD; two halves that belong together
become their character. What was replaced can be asked for (`is_clean`), so that it is flagged and never silent.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import orjson

_C = TypeVar("_C")

JsonValue = Any
"""Any value that JSON has: None, bool, int, float, str, and lists and dicts of them."""

REPLACEMENT: Final = "\ufffd"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


@dataclass(frozen=True)
class UnknownValue:
    """A value that this version has no name for, as it was received."""

    value: str


def is_clean(text: str) -> bool:
    """Whether `text` is encodable as UTF-8 as it stands."""
    return _SURROGATE.search(text) is None


def clean_text(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone halves replaced by U+FFFD."""
    if is_clean(text):
        return text
    joined = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    return _SURROGATE.sub(REPLACEMENT, joined)


def clean_json(value: JsonValue, place: str = "value") -> JsonValue:
    """Return a JSON value with all its texts clean. Raises `ValueError` naming the place of what JSON cannot hold."""
    match value:
        case str():
            return clean_text(value)
        case None | bool() | int():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{place}: {value} is no JSON number")
            return value
        case dict():
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(f"{place}: the key {key!r} is no text")
            return {clean_text(key): clean_json(item, f"{place}.{clean_text(key)}") for key, item in value.items()}
        case list() | tuple():
            return [clean_json(item, f"{place}[{at}]") for at, item in enumerate(value)]
        case _:
            raise ValueError(f"{place}: {type(value).__name__} is no JSON value")


def dumps(value: JsonValue) -> bytes:
    """Return JSON as UTF-8 bytes, without line breaks. Raises `ValueError` naming the place of what JSON cannot hold."""
    try:
        return orjson.dumps(value)
    except TypeError:
        # Lone surrogates, integers beyond 64 bits, or no JSON at all: the slow way tells them apart.
        cleaned = clean_json(value)
        try:
            return orjson.dumps(cleaned)
        except TypeError:
            return json.dumps(cleaned, ensure_ascii=False, separators=(",", ":")).encode()


def loads(body: bytes | str) -> JsonValue:
    """Return the value of JSON text. Raises `ValueError` when it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return json.loads(body)


def show_defaults(cls: type[_C]) -> type[_C]:
    """Let a dataclass's signature show `{}` where a fresh dict is made, as the reference pages do."""
    shown = [
        parameter.replace(default={}) if parameter.name in fresh else parameter
        for fresh in [{item.name for item in fields(cls) if item.default_factory is dict}]  # type: ignore[arg-type] # a dataclass by contract
        for parameter in inspect.signature(cls).parameters.values()
    ]
    cls.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined] # what inspect looks for
    return cls
