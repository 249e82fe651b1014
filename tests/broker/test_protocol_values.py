"""JSON in and out: every text becomes valid UTF-8, every number stays what it was, nothing else passes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.values import REPLACEMENT, clean_json, clean_text, dumps, is_clean, loads

any_text = st.text(st.characters(codec=None, exclude_categories=()))
"""Text with everything that a Python string may hold: lone surrogates, NUL, U+2028."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)


@given(any_text)
def test_clean_text_is_utf8_and_cleaning_it_again_changes_nothing(text: str) -> None:
    cleaned = clean_text(text)

    assert cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert clean_text(cleaned) == cleaned
    assert is_clean(text) == (cleaned == text)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\ud83d\ude00", "😀"),
        ("\ud83d", REPLACEMENT),
        ("\ude00\ud83d", REPLACEMENT * 2),
        ("a\ud83d\ud83d\ude00b", f"a{REPLACEMENT}😀b"),
        ("nul \0 and lines \u2028\u2029\r\n", "nul \0 and lines \u2028\u2029\r\n"),
    ],
)
def test_halves_that_belong_together_are_joined_and_others_replaced(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


@given(json_values)
def test_a_json_value_survives_the_round_trip_but_for_what_cleaning_changes(value: Any) -> None:
    body = dumps(value)

    assert loads(body) == clean_json(value)
    assert b"\n" not in body
    assert b"\r" not in body


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**40, 1e300, 0.1])
def test_numbers_stay_exact(number: float) -> None:
    back = loads(dumps({"n": [number]}))["n"][0]

    assert back == number
    assert type(back) is type(number)


def test_integers_beyond_64_bits_stay_exact_beside_text_that_looks_like_them() -> None:
    assert loads(b'{"id":"12345678901234567890123","n":12345678901234567890123}') == {
        "id": "12345678901234567890123",
        "n": 12345678901234567890123,
    }


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_json_number_is_refused_naming_its_place(number: float) -> None:
    with pytest.raises(ValueError, match=r"value\.a\[1\]\.b: (nan|-?inf) is no JSON number"):
        dumps({"a": [None, {"b": number}]})


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {1: 2}}, r"value\.a: the key 1 is no text"),
        ([{"a": {1, 2}}], r"value\[0\]\.a: set is no JSON value"),
        ({"a": b"x"}, r"value\.a: bytes is no JSON value"),
        ([object()], r"value\[0\]: object is no JSON value"),
    ],
)
def test_what_is_no_json_is_refused_naming_its_place(value: Any, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        dumps(value)


def test_a_value_within_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(ValueError, match="nested too deeply"):
        dumps(endless)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"NaN", b"-Infinity", b"1e999", b"[" * 100_000, b'"\xff"', '{"a":Infinity}']
)
def test_what_is_no_json_text_is_a_value_error(body: bytes | str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's and orjson's own words
        loads(body)


def test_sorted_keys_make_equal_values_equal_bytes() -> None:
    wide = {"b": 2**70, "a": {"d": 1, "c": 2}}

    assert dumps({"b": 1, "a": {"d": 1, "c": 2}}, sort_keys=True) == b'{"a":{"c":2,"d":1},"b":1}'
    assert dumps(wide, sort_keys=True) == json.dumps(wide, sort_keys=True, separators=(",", ":")).encode()
