"""Client tools: what the model is told, what answers their calls, and which answers fit."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from broker.protocol.callbacks import ClientToolCall
from broker.protocol.content import ImageContentBlock, TextContentBlock
from broker.protocol.errors import SdkError
from workers.client_tools import ClientTool, ClientToolAnswers, client_tool, stubs_by_id
from workers.tools import ToolError, ToolResult


class Place(BaseModel):
    """A place."""

    city: str
    since: date | None = None


def stub_of(returned: Any, **options: Any) -> ClientTool:
    """A stub `locate(of, far=False)` that returns this type."""

    def locate(of: str, far: bool = False) -> None:
        """Ask where it is."""

    locate.__annotations__["return"] = returned
    made = client_tool(**options)(locate) if options else client_tool(locate)
    assert isinstance(made, ClientTool)
    return made


def asked(name: str, arguments: Any) -> ClientToolCall:
    return ClientToolCall(tool_call_id="c1", name=name, arguments=arguments)


# What the model is told.


def test_a_stub_has_a_full_id_a_description_and_a_schema() -> None:
    spec = stub_of(str).spec

    assert (spec.id, spec.description) == ("client.locate", "Ask where it is.")
    assert list(spec.parameters["properties"]) == ["of", "far"]
    assert spec.parameters["required"] == ["of"]


def test_options_go_before_what_the_stub_says() -> None:
    stub = stub_of(str, name="find", description="Find it.")

    assert (stub.id, stub.name, stub.spec.description) == ("client.find", "find", "Find it.")


def test_a_stub_may_be_made_of_schemas_alone() -> None:
    schema = {"type": "object", "properties": {"of": {"type": "string"}}}
    stub = client_tool(name="find", description="Find it.", input_schema=schema)

    assert isinstance(stub, ClientTool)
    assert (stub.spec.id, stub.spec.description, stub.spec.parameters) == ("client.find", "Find it.", schema)


def test_a_stub_needs_a_name_that_a_model_can_be_told() -> None:
    with pytest.raises(TypeError, match="needs a stub function or name="):
        client_tool(input_schema={"type": "object"})  # type: ignore[call-overload] # what is tested
    with pytest.raises(ValueError, match="give name="):
        client_tool(name="two words", input_schema={"type": "object"})
    with pytest.raises(TypeError, match="made of a function"):
        client_tool(Place)


def test_a_return_type_that_has_no_json_is_refused_when_the_stub_is_made() -> None:
    with pytest.raises(TypeError, match=r"client\.locate: what it returns is no JSON"):
        stub_of(ClientTool)


# Which answers fit.


@pytest.mark.parametrize(
    ("returned", "answer", "result"),
    [
        (str, "here", ToolResult((TextContentBlock(text="here"),))),
        (int, 5, ToolResult((TextContentBlock(text="5"),), 5)),
        (None, None, ToolResult()),
        (str | None, None, ToolResult()),
        (Place, Place(city="Rome"), ToolResult((TextContentBlock(text='{"city":"Rome","since":null}'),),
                                               {"city": "Rome", "since": None})),
        (Place, {"city": "Rome", "since": "2026-01-02"},
         ToolResult((TextContentBlock(text='{"city":"Rome","since":"2026-01-02"}'),),
                    {"city": "Rome", "since": "2026-01-02"})),
        (list[Place], [], ToolResult((TextContentBlock(text="[]"),), [])),
        (date, date(2026, 1, 2), ToolResult((TextContentBlock(text="2026-01-02"),))),
        (Any, {"any": ["thing"]}, ToolResult((TextContentBlock(text='{"any":["thing"]}'),), {"any": ["thing"]})),
        (ToolResult, ToolResult("in full", {"a": 1}, {"m": 1}, is_error=True),
         ToolResult((TextContentBlock(text="in full"),), {"a": 1}, {"m": 1}, is_error=True)),
        (int, ToolResult("failed", is_error=True), ToolResult((TextContentBlock(text="failed"),), is_error=True)),
        (int | ToolResult, 5, ToolResult((TextContentBlock(text="5"),), 5)),
        (TextContentBlock, TextContentBlock(text="a"), ToolResult((TextContentBlock(text="a"),))),
        (list[TextContentBlock | ImageContentBlock], [ImageContentBlock(uri="u")],
         ToolResult((ImageContentBlock(uri="u"),))),
    ],
)  # fmt: skip
def test_an_answer_that_fits_the_return_type_is_sent_as_a_tool_s_result_is(
    returned: Any, answer: Any, result: ToolResult
) -> None:
    assert stub_of(returned).check(answer) == result


@pytest.mark.parametrize(
    ("returned", "answer", "said"),
    [
        (int, "s3cret", "answer: Input should be a valid integer"),
        (str, None, "answer: Input should be a valid string"),
        (None, "s3cret", "answer: Input should be None"),
        (Place, {"city": ["s3cret"]}, "city: Input should be a valid string"),
        (list[Place], [{"city": "a"}, {}], r"1\.city: Field required"),
        (ToolResult, {"content": "s3cret"}, "answers with a ToolResult, not with dict"),
        (int | ToolResult, {"content": "s3cret"}, "answer: Input should be a valid integer"),
        (Any, object(), "is no result: .*object is no JSON value"),
        (int, ToolResult("s3cret", float("nan")), "is no result: .*structured_content: nan"),
        (float, float("inf"), "is no result: .*inf is no JSON number"),
    ],
)
def test_an_answer_that_breaks_the_return_type_is_an_sdk_error_without_the_value(
    returned: Any, answer: Any, said: str
) -> None:
    with pytest.raises(SdkError, match=said) as refused:
        stub_of(returned).check(answer)

    assert "client.locate" in str(refused.value)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("answer", ["text", 5, {"other": 1}])
def test_with_an_output_schema_an_answer_is_sent_unchecked(answer: Any) -> None:
    stub = stub_of(Place, output_schema={"type": "object"})

    assert stub.check(answer).structured_content == (None if answer == "text" else answer)


def test_a_stub_without_a_return_type_checks_nothing() -> None:
    @client_tool
    def anything(of):  # type: ignore[no-untyped-def] # noqa: ANN001 - what is tested
        """Ask."""

    assert anything.check([1, "a"]).structured_content == [1, "a"]


# What answers.


async def test_the_bound_function_answers_with_checked_arguments() -> None:
    stub = stub_of(str)

    @stub.answer
    def answer(of: str, far: bool = True) -> str:
        return f"{of} {far}"

    assert await stub.run(asked(stub.id, {"of": "Rome"})) == "Rome False", "the stub's default, which the model read"
    with pytest.raises(ToolError, match=r"do not fit client\.locate: of: Field required"):
        await stub.run(asked(stub.id, {}))


async def test_the_answering_function_may_be_async_and_stays_callable() -> None:
    stub = stub_of(str)

    @stub.answer
    async def answer(of: str, far: bool) -> str:
        return f"{of} {far}"

    assert await stub.run(asked(stub.id, {"of": "Rome"})) == "Rome False"
    assert await answer("a", far=True) == "a True"


async def test_what_the_answering_function_raises_is_raised() -> None:
    stub = stub_of(str)

    @stub.answer
    def answer(of: str, far: bool) -> str:
        raise PermissionError(f"{of} {far}")

    with pytest.raises(PermissionError, match="Rome False"):
        await stub.run(asked(stub.id, {"of": "Rome"}))


async def test_a_stub_made_of_schemas_hands_over_the_arguments_as_they_are() -> None:
    stub = client_tool(name="find", input_schema={"type": "object"})
    stub.answer(lambda **given: given)

    assert await stub.run(asked(stub.id, {"of": "Rome"})) == {"of": "Rome"}
    assert await stub.run(asked(stub.id, None)) == {}
    with pytest.raises(ToolError, match="should be an object"):
        await stub.run(asked(stub.id, ["Rome"]))


def test_a_function_that_does_not_take_the_stub_s_parameters_is_refused() -> None:
    stub = stub_of(str)
    with pytest.raises(TypeError, match=r"answers client\.locate must take its parameters"):
        stub.answer(lambda of: of)
    assert stub.answering is None


async def test_an_unbound_stub_does_not_answer() -> None:
    stub = stub_of(str)
    with pytest.raises(SdkError, match=r"bind one with @locate\.answer"):
        await stub.run(asked(stub.id, {"of": "Rome"}))
    with pytest.raises(SdkError, match=r"bind one with @locate\.answer"):
        ClientToolAnswers(stub)


async def test_answers_give_each_call_to_the_stub_of_its_name() -> None:
    near, far = stub_of(str, name="near"), stub_of(str, name="far")
    near.answer(lambda of, far: f"near {of}")  # noqa: ARG005 - takes the stub's parameters
    far.answer(lambda of, far: f"far {of}")  # noqa: ARG005 - takes the stub's parameters
    answers = ClientToolAnswers(near, far)

    assert await answers(asked("client.near", {"of": "a"})) == "near a"
    assert await answers(asked("client.far", {"of": "a"})) == "far a"
    assert answers.answers("client.near")
    assert not answers.answers("client.other")
    with pytest.raises(SdkError, match=r"client\.other is not answered here; answered are: client\.far, client\.near"):
        await answers(asked("client.other", {}))


def test_two_stubs_of_one_id_cannot_both_answer() -> None:
    one, other = stub_of(str), stub_of(int)
    for stub in (one, other):
        stub.answer(lambda of, far: None)  # noqa: ARG005 - takes the stub's parameters

    assert ClientToolAnswers(one, one).answers(one.id)
    with pytest.raises(SdkError, match=r"two stubs have the id client\.locate"):
        ClientToolAnswers(one, other)


def test_an_id_that_two_stubs_share_has_no_stub_to_check_by() -> None:
    one, other, third = stub_of(str), stub_of(int), stub_of(str, name="third")

    assert stubs_by_id([one, third, "no tool"]) == {one.id: one, third.id: third}
    assert stubs_by_id([one, one]) == {one.id: one}
    assert stubs_by_id([one, other, third]) == {one.id: None, third.id: third}
    assert stubs_by_id([one, other, one]) == {one.id: None}
