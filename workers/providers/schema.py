"""An output's JSON schema, as providers take it.

A strict schema makes the server write nothing else, but only some of JSON schema is allowed in one: every property is required,
no object takes others, and few keywords exist. One that can be written so is, without what only narrows values (the reply is
parsed later anyway); any other is given as it is, as a wish.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]

_KEPT: Final = {"type", "enum", "const", "description"}
_LEFT_OUT: Final = {
    "title", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "$schema", "$comment",
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf", "minItems", "maxItems", "uniqueItems",
}  # fmt: skip
_WITHIN: Final = {"$defs", "properties", "items", "anyOf", "oneOf", "required", "additionalProperties"}


class _NotStrictError(Exception):
    """The schema says what no strict one can."""


def _strict(schema: Any) -> Schema:
    if not isinstance(schema, Mapping):
        raise _NotStrictError
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # nothing may stand beside it
    if len(schema.get("allOf") or ()) == 1:  # how some generators write a described $ref
        return _strict({key: value for key, value in schema.items() if key != "allOf"} | schema["allOf"][0])
    if schema.keys() - _KEPT - _LEFT_OUT - _WITHIN:
        raise _NotStrictError
    made: Schema = {key: schema[key] for key in _KEPT & schema.keys()}
    for key in ("$defs", "properties"):
        if key in schema:
            made[key] = {name: _strict(each) for name, each in schema[key].items()}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            made["anyOf"] = [_strict(each) for each in schema[key]]
    if "items" in schema:
        made["items"] = _strict(schema["items"])
    return _whole(schema, made)


def _whole(schema: Mapping[str, Any], made: Schema) -> Schema:
    """A strict schema in which nothing is left open."""
    if schema.get("type") == "object" or "properties" in schema:
        if "properties" not in schema or schema.get("additionalProperties"):
            raise _NotStrictError  # an object of any keys
        return {**made, "required": list(made["properties"]), "additionalProperties": False}
    if not made.keys() & {"type", "anyOf"} or (schema.get("type") == "array" and "items" not in schema):
        raise _NotStrictError  # any value at all
    return made


def strict_schema(schema: Mapping[str, Any]) -> Schema | None:
    """Return a schema that keeps the rules of strict ones and allows nothing that `schema` does not; None if there is none."""
    try:
        made = _strict(schema)
    except (_NotStrictError, RecursionError):
        return None
    return made if made.get("type") == "object" else None


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `response_format` that asks for output of a schema."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", str(schema.get("title") or ""))[:64] or "output"
    strict = strict_schema(schema)
    wished: dict[str, Any] = {"name": name, "schema": dict(schema) if strict is None else strict}
    return {"type": "json_schema", "json_schema": {**wished, "strict": strict is not None}}
