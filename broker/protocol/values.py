"""JSON values, and text that is always valid UTF-8.

Text from anywhere may hold half of a surrogate pair. It is replaced once, at the door, by U+FFFD; two halves that
belong together become their character. What was replaced can be asked for (`is_clean`, `watch_replaced`), so it is flagged,
never silent.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn, TypeVar

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


@dataclass
class Replaced:
    """Whether text was replaced. True as soon as some was."""

    seen: bool = False

    def __bool__(self) -> bool:
        return self.seen


_WATCHING: Final[ContextVar[Replaced | None]] = ContextVar("turnstream_replaced", default=None)


@contextmanager
def watch_replaced() -> Iterator[Replaced]:
    """Say whether the block replaced halves of characters, whatever function did it. An inner watch keeps it to itself."""
    replaced = Replaced()
    before = _WATCHING.set(replaced)
    try:
        yield replaced
    finally:
        _WATCHING.reset(before)


def clean_text(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone halves replaced by U+FFFD."""
    if is_clean(text):
        return text
    joined = _PAIR.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)
    cleaned, halves = _SURROGATE.subn(REPLACEMENT, joined)
    if halves and (watching := _WATCHING.get()) is not None:
        watching.seen = True
    return cleaned


def clean_json(value: JsonValue, place: str = "value") -> JsonValue:
    """Return a JSON value with all its texts clean. Raises `ValueError` naming the place of what JSON cannot hold."""
    try:
        return _cleaned(value, place)
    except RecursionError:
        raise ValueError(f"{place}: nested too deeply, or within itself") from None


def _cleaned(value: JsonValue, place: str) -> JsonValue:
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
            return {clean_text(key): _cleaned(item, f"{place}.{clean_text(key)}") for key, item in value.items()}
        case list() | tuple():
            return [_cleaned(item, f"{place}[{at}]") for at, item in enumerate(value)]
        case _:
            raise ValueError(f"{place}: {type(value).__name__} is no JSON value")


_STRICT: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_PAST_64_BITS: Final = b"0" * 19


def dumps(value: JsonValue, *, sort_keys: bool = False) -> bytes:
    """Return JSON as UTF-8 bytes, without line breaks. Raises `ValueError` naming the place of what is no JSON.

    `sort_keys` makes equal values equal bytes.
    """
    option = _STRICT | orjson.OPT_SORT_KEYS if sort_keys else _STRICT
    try:
        body = orjson.dumps(value, option=option)
    except TypeError:
        # Lone surrogates, integers beyond 64 bits, deep nesting, or no JSON at all: the slow way tells them apart.
        return _dumps_slowly(value, option, sort_keys=sort_keys)
    if b"null" in body:
        clean_json(value)  # orjson writes NaN and infinities as null
    return body


def _dumps_slowly(value: JsonValue, option: int, *, sort_keys: bool) -> bytes:
    try:
        cleaned = clean_json(value)
        try:
            return orjson.dumps(cleaned, option=option)
        except TypeError:
            text = json.dumps(cleaned, ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys)
            return text.encode()
    except RecursionError:
        raise ValueError("value: nested too deeply, or within itself") from None


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def loads(body: bytes | str) -> JsonValue:
    """Return the value of JSON text; integers of any size stay exact. Raises `ValueError` when it is none."""
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    # orjson makes floats of integers beyond 64 bits. Mapping digits to one and looking for a run is the cheap test.
    if _PAST_64_BITS not in body.translate(_DIGITS_TO_ZERO):
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            pass  # a lone surrogate, deep nesting, or no JSON at all: the slow way tells them apart
    try:
        return json.loads(body.decode("utf-8", "surrogatepass"), parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("JSON text is nested too deeply") from None


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = 80
_SHORT.maxother = 600
_SHORT.maxlong = 80


class Brief:
    """A dataclass whose `repr` stays short whatever its fields hold: an image in base64, a tool's whole output."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = Brief.__repr__  # type: ignore[method-assign] # found in the class, dataclass leaves it alone

    def __repr__(self) -> str:
        shown = (f"{item.name}={_SHORT.repr(getattr(self, item.name))}" for item in fields(self))  # type: ignore[arg-type] # a dataclass by contract
        return f"{type(self).__qualname__}({', '.join(shown)})"


def show_defaults(cls: type[_C]) -> type[_C]:
    """Let a dataclass's signature show `{}` or `[]` where a fresh one is made, as the reference pages do."""
    items = fields(cls)  # type: ignore[arg-type] # a dataclass by contract
    fresh: dict[str, Any] = {
        item.name: item.default_factory() for item in items if item.default_factory in (dict, list)
    }
    shown = [
        parameter.replace(default=fresh[parameter.name]) if parameter.name in fresh else parameter
        for parameter in inspect.signature(cls).parameters.values()
    ]
    cls.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined] # what inspect looks for
    return cls
