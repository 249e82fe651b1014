"""The schema of an output: strict where the rules of strict ones allow it, a wish where not."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

from workers.providers.schema import response_format, strict_schema


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    """A point."""

    x: int = Field(ge=0, description="across")
    y: float = 0.5


class Circle(BaseModel):
    kind: Literal["circle"]
    centre: Point


class Square(BaseModel):
    kind: Literal["square"]
    corner: Point = Field(description="the lower left one")


class Drawing(BaseModel):
    title: Annotated[str, Field(min_length=1, pattern="^[a-z]")]
    colour: Colour | None = None
    shapes: list[Annotated[Circle | Square, Field(discriminator="kind")]] = []
    tags: set[str] = set()


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Tree(BaseModel):
    root: Node


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema."""
    if isinstance(schema, dict):
        if "type" in schema or "anyOf" in schema or "$ref" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


@pytest.mark.parametrize("model", [Point, Drawing, Tree])
def test_a_model_s_schema_is_written_by_the_rules_of_strict_ones(model: type[BaseModel]) -> None:
    made = strict_schema(model.model_json_schema())

    assert made is not None
    for schema in objects(made):
        assert schema.keys() <= {
            "type", "description", "enum", "const", "$ref", "$defs", "items", "anyOf",
            "properties", "required", "additionalProperties",
        }  # fmt: skip
        if "$ref" in schema:
            assert len(schema) == 1
        if schema.get("type") == "object":
            assert schema["required"] == list(schema["properties"])
            assert schema["additionalProperties"] is False


def test_what_describes_is_kept_and_what_narrows_is_left_to_the_parser() -> None:
    assert strict_schema(Point.model_json_schema()) == {
        "type": "object",
        "description": "A point.",
        "properties": {"x": {"type": "integer", "description": "across"}, "y": {"type": "number"}},
        "required": ["x", "y"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "kind", [dict[str, int], Any, tuple[int, str], list[Any], Literal["a", 1], dict[str, Point], list, object]
)
def test_a_schema_that_leaves_something_open_is_a_wish(kind: Any) -> None:
    schema = create_model("Open", value=(kind, ...)).model_json_schema()

    assert strict_schema(schema) is None
    assert response_format(schema)["json_schema"] == {"name": "Open", "schema": schema, "strict": False}


@pytest.mark.parametrize("schema", [Node.model_json_schema(), {}, {"type": "string"}, {"anyOf": [{"type": "object"}]}])
def test_a_schema_whose_root_is_no_object_is_a_wish(schema: dict[str, Any]) -> None:
    assert strict_schema(schema) is None


def test_an_output_has_a_name_that_providers_take() -> None:
    named = create_model("Ä list[int]", x=(int, ...)).model_json_schema()

    assert response_format(named)["json_schema"]["name"] == "__list_int_"
    assert response_format({"type": "object", "properties": {}})["json_schema"]["name"] == "output"
