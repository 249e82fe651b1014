"""Session inputs: found by their id, validated at each use, never shown to the model, never quoted in an error."""

from __future__ import annotations

import inspect
from datetime import date
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from broker.protocol.content import TextContentBlock
from workers.client_tools import client_tool
from workers.inputs import Depends, InputRejectedError, SessionInput, input_parameters, resolve_inputs
from workers.tools import ToolResult, tool

LIMIT = 5.0


class Repository(SessionInput):
    input_id: ClassVar[str] = "repository"
    name: str
    stars: int = 0

    @field_validator("name")
    @classmethod
    def _owned(cls, name: str) -> str:
        if "/" not in name:
            raise ValueError("a repository is owner/name")
        return name


@tool
def clone(depth: int, repository: Annotated[Repository, Depends()]) -> str:
    """Clone the repository."""
    return f"{repository.name} at {depth}"


def text_of(result: ToolResult) -> str:
    (block,) = tuple(result.content)
    assert isinstance(block, TextContentBlock)
    return block.text


def test_an_input_is_left_out_of_what_the_model_is_told() -> None:
    assert list(clone.spec.parameters["properties"]) == ["depth"]
    assert "epository" not in str({**clone.spec.parameters, "title": ""})


async def test_a_tool_reads_the_input_of_its_class_s_id() -> None:
    result = await clone.call({"depth": 1}, {"repository": {"name": "a/b"}, "other": {}}, LIMIT)

    assert (text_of(result), result.is_error) == ("a/b at 1", False)


async def test_the_model_cannot_give_an_input() -> None:
    result = await clone.call({"depth": 1, "repository": {"name": "x/y"}}, {"repository": {"name": "a/b"}}, LIMIT)

    assert result.is_error
    assert "repository: Extra inputs are not permitted" in text_of(result)


async def test_a_rejected_input_fails_the_call_with_the_field_and_the_validator_s_message() -> None:
    result = await clone.call({"depth": 1}, {"repository": {"name": "s3cret"}}, LIMIT)

    assert result.is_error
    assert text_of(result) == "session input repository.name: Value error, a repository is owner/name"


async def test_a_rule_is_checked_again_at_each_use() -> None:
    given = {"repository": {"name": "a/b"}}
    assert not (await clone.call({"depth": 1}, given, LIMIT)).is_error
    given["repository"]["name"] = "changed"
    assert (await clone.call({"depth": 1}, given, LIMIT)).is_error


async def test_a_missing_input_fails_the_call_and_names_it() -> None:
    result = await clone.call({"depth": 1}, {}, LIMIT)

    assert result.is_error
    assert text_of(result) == "session input 'repository' was not given when the session started"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Many(SessionInput):
    model_config = ConfigDict(extra="forbid")
    input_id: ClassVar[str] = "many"
    counts: dict[str, int] = Field(default_factory=dict)
    key: UUID | None = None
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None
    kind: Literal["a", "b"] = "a"
    renamed: int = Field(0, alias="theName")


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"counts": {"s3cret": "x"}}, "many.counts:"),
        ({"key": "s3cret"}, "many.key:"),
        ({"key": "zs3cret-3f9c2e71-8c1e-4b7a-9f5e-0a4c8f1d2b3c"}, "many.key:"),
        ({"pet": {"kind": "s3cret"}}, "many.pet:"),
        ({"kind": "s3cret"}, "many.kind:"),
        ({"theName": "s3cret"}, "many.theName:"),
        ({"s3cret": 1}, "many:"),
        ("s3cret", "many:"),
        (["s3cret"], "many:"),
    ],
)
def test_no_part_of_a_value_is_in_the_error(value: Any, field: str) -> None:
    with pytest.raises(InputRejectedError) as rejected:
        resolve_inputs({"many": Many}, {"many": value})

    assert f"session input {field}" in str(rejected.value)
    assert "s3c" not in str(rejected.value)
    assert "found" not in str(rejected.value)


def test_a_strict_input_takes_the_json_that_it_was_stored_as() -> None:
    class Since(SessionInput):
        model_config = ConfigDict(strict=True)
        input_id: ClassVar[str] = "since"
        day: date

    stored = Since(day=date(2026, 1, 2)).model_dump(mode="json")

    assert resolve_inputs({"x": Since}, {"since": stored}) == {"x": Since(day=date(2026, 1, 2))}


def test_the_id_is_no_part_of_the_value() -> None:
    assert Repository(name="a/b").model_dump() == {"name": "a/b", "stars": 0}
    with pytest.raises(ValidationError):
        Repository(name="ab")


def test_depends_takes_nothing_and_may_be_given_as_a_class() -> None:
    assert str(inspect.signature(Depends)) == "()"

    def bare(repository: Annotated[Repository, Depends]) -> None: ...

    assert input_parameters(bare) == {"repository": Repository}


class Nameless(SessionInput):
    size: int


def no_input(x: Annotated[int, Depends()]) -> None: ...
def no_id(x: Annotated[Nameless, Depends()]) -> None: ...


@pytest.mark.parametrize(("function", "said"), [(no_input, "is no SessionInput"), (no_id, "Nameless has no input_id")])
def test_what_is_no_input_is_refused_when_the_tool_is_made(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        tool(function)


def test_a_client_tool_reads_no_inputs() -> None:
    with pytest.raises(TypeError, match="reads no session inputs"):
        client_tool(clone.function)


def test_an_input_that_the_model_would_be_asked_for_is_refused() -> None:
    def by_default(of: Repository = Depends()) -> str:  # type: ignore[assignment] # noqa: B008 - the mistake
        return str(of)

    def bare(of: Repository) -> str:
        return str(of)

    for wrong in (by_default, bare):
        with pytest.raises(TypeError, match=r"of would be the model's to give; write of: Annotated\[Repository, "):
            tool(wrong)
