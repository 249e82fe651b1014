"""Tools: what the model is told of them, which arguments fit, and how a call ends."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import date
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from broker.protocol.content import ImageContentBlock, TextContentBlock, UnknownContentBlock
from workers.tools import Tool, ToolAnnotations, ToolError, ToolResult, to_result, tool

LIMIT = 5.0


def text_of(result: ToolResult) -> str:
    (block,) = tuple(result.content)
    assert isinstance(block, TextContentBlock)
    return block.text


class Alert(BaseModel):
    """An alert."""

    id: str
    level: int = 1


@tool
async def get_alert(alert_id: str, limit: Annotated[int, Field(ge=1, description="at most")] = 10) -> dict[str, Any]:
    """Return an alert.

    Also its history.
    """
    return {"id": alert_id, "limit": limit}


# What the model is told.


def test_a_tool_has_a_full_id_a_description_and_a_schema_from_its_function() -> None:
    spec = get_alert.spec

    assert get_alert.id == spec.id == "client.get_alert"
    assert spec.description == "Return an alert.\n\nAlso its history."
    assert spec.parameters["required"] == ["alert_id"]
    assert spec.parameters["additionalProperties"] is False
    assert spec.parameters["properties"]["alert_id"]["type"] == "string"
    assert spec.parameters["properties"]["limit"] == {
        "default": 10, "description": "at most", "minimum": 1, "title": "Limit", "type": "integer"
    }  # fmt: skip


def test_options_go_before_what_the_function_says() -> None:
    hints = ToolAnnotations(read_only_hint=True)

    @tool(name="fetch", description="Fetch it.", annotations=hints, retry_safe=True, timeout=3)
    def other() -> None:
        """Do something else."""

    assert (other.id, other.name, other.description) == ("client.fetch", "fetch", "Fetch it.")
    assert (other.annotations, other.retry_safe, other.timeout) == (hints, True, 3)
    assert (get_alert.annotations, get_alert.retry_safe, get_alert.timeout) == (None, False, None)


async def test_a_tool_is_still_the_function() -> None:
    assert await get_alert("4711", limit=2) == {"id": "4711", "limit": 2}
    assert get_alert.__name__ == "get_alert"
    assert get_alert.__doc__ is not None


def test_a_parameter_may_have_a_type_of_the_function_around_it() -> None:
    class Local(BaseModel):
        size: int

    @tool
    def measure(of: Local, more: list[Local] | None = None) -> int:
        return of.size + len(more or ())

    bound = measure.bind({"of": {"size": 3}})
    assert bound == {"of": Local(size=3), "more": None}


def test_what_a_tool_returns_need_not_be_known_at_run_time() -> None:
    @tool
    def fetch(url: str) -> OnlyForTypeCheckers:  # type: ignore[name-defined] # noqa: F821 - an import under TYPE_CHECKING
        return url

    assert fetch.bind({"url": "a"}) == {"url": "a"}


@pytest.mark.parametrize("name", ["copy", "json", "_hidden", "model_config", "schema", "p0"])
async def test_a_parameter_may_have_any_name(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def echo(p_hidden: int, {name}: str = 'none') -> str: return {name}", scope)  # noqa: S102 - one function per name
    echo: Tool[..., str] = tool(scope["echo"])

    assert list(echo.spec.parameters["properties"]) == ["p_hidden", name]
    assert text_of(await echo.call({"p_hidden": 1, name: "given"}, {}, LIMIT)) == "given"
    assert text_of(await echo.call({"p_hidden": 1}, {}, LIMIT)) == "none"
    with pytest.raises(ToolError, match=f" {name}: Input should be a valid string"):
        echo.bind({"p_hidden": 1, name: 5})


class Box:
    def __init__(self, size: int) -> None:
        self.size = size

    def grow(self, by: int) -> int:
        return self.size + by


async def test_a_bound_method_is_a_tool_and_an_unbound_one_is_refused() -> None:
    assert text_of(await tool(Box(4).grow).call({"by": 2}, {}, LIMIT)) == "6"
    with pytest.raises(TypeError, match="grow: it is a method without its object"):
        tool(Box.grow)


def positional(a: int, /) -> None: ...
def many(*items: int) -> None: ...
def anything(**items: int) -> None: ...
def unknown_type(x: NotDefinedAnywhere) -> None: ...  # type: ignore[name-defined] # noqa: F821 - what is tested
def no_json(x: threading.Lock) -> None: ...
def called_back(x: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (positional, "parameter a must be passable by keyword"),
        (many, "parameter items must be passable by keyword"),
        (anything, "parameter items must be passable by keyword"),
        (unknown_type, "annotation of 'x' is not known here: name 'NotDefinedAnywhere'"),
        (no_json, "no_json: its parameters have no JSON schema"),
        (called_back, "called_back: its parameters have no JSON schema"),
        (Alert, "a tool is made of a function"),
        (partial(positional, 1), "a tool is made of a function"),
    ],
)
def test_a_function_that_no_json_can_call_is_refused_when_the_tool_is_made(
    function: Callable[..., Any], said: str
) -> None:
    with pytest.raises(TypeError, match=said):
        tool(function)


@pytest.mark.parametrize("name", ["", "two words", "a*", "météo", "x" * 65, "line\n"])
def test_a_name_that_a_model_cannot_be_told_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="give name="):
        tool(name=name)(Box(1).grow)


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(ValueError, match="give name="):
        tool(lambda: 1)
    assert tool(name="one")(lambda: 1).id == "client.one"


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_timeout_is_more_than_nothing(seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout must be more than 0"):
        tool(timeout=seconds)(positional)


# Arguments.


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: date
    pair: tuple[int, int]


@tool
def typed(day: date, choice: Literal["a", "b"], alert: Alert, strict: Strict | None = None) -> None:
    """Take arguments."""


def test_arguments_become_the_types_that_the_function_declares() -> None:
    bound = typed.bind({"day": "2026-01-02", "choice": "b", "alert": {"id": "1"}})

    assert bound == {"day": date(2026, 1, 2), "choice": "b", "alert": Alert(id="1"), "strict": None}


def test_a_strict_type_takes_the_form_that_json_has_for_it() -> None:
    given = {"day": "2026-01-02", "pair": [1, 2]}
    bound = typed.bind({"day": "2026-01-02", "choice": "a", "alert": {"id": "1"}, "strict": given})

    assert bound["strict"] == Strict(day=date(2026, 1, 2), pair=(1, 2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"alert_id": "1", "limit": 0}, "limit: Input should be greater than or equal to 1"),
        ({"limit": 1}, "alert_id: Field required"),
        ({"alert_id": ["s3cret"]}, "alert_id: Input should be a valid string"),
        ({"alert_id": "1", "extra": "s3cret"}, "extra: Extra inputs are not permitted"),
        ("s3cret", "arguments: Input should be an object"),
        (["s3cret"], "arguments: Input should be an object"),
        (None, "alert_id: Field required"),
        ({"alert_id": "1", "limit": float("nan")}, "limit: nan is no JSON number"),
    ],
)
def test_bad_arguments_are_told_by_field_and_never_by_value(arguments: Any, said: str) -> None:
    with pytest.raises(ToolError) as refused:
        get_alert.bind(arguments)

    assert said in str(refused.value)
    assert str(refused.value).startswith("The arguments do not fit client.get_alert: ")
    assert "s3cret" not in str(refused.value)


async def test_a_call_with_bad_arguments_is_a_failed_result_and_does_not_run() -> None:
    result = await get_alert.call({"limit": 1}, {}, LIMIT)

    assert result.is_error
    assert text_of(result) == "The arguments do not fit client.get_alert: alert_id: Field required."


def test_no_arguments_at_all_are_an_empty_object() -> None:
    assert tool(name="none")(lambda: None).bind(None) == {}


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    @tool
    def collect(into: list[int] = []) -> None:  # noqa: B006 - what is tested
        into.append(1)

    collect.bind({})["into"].append(1)
    assert collect.bind({}) == {"into": []}


# Results.


class Color(StrEnum):
    RED = "red"


IMAGE = ImageContentBlock(uri="https://example.org/a.png")
BLOCK = TextContentBlock(text="hi")


@pytest.mark.parametrize(
    ("value", "texts", "structured"),
    [
        (None, [], None),
        ("plain", ["plain"], None),
        ("", [""], None),
        ({"a": [1, None]}, ['{"a":[1,null]}'], {"a": [1, None]}),
        (Alert(id="é"), ['{"id":"é","level":1}'], {"id": "é", "level": 1}),
        ([Alert(id="1")], ['[{"id":"1","level":1}]'], [{"id": "1", "level": 1}]),
        ({"of": (Alert(id="1"),)}, ['{"of":[{"id":"1","level":1}]}'], {"of": [{"id": "1", "level": 1}]}),
        ([1, "two"], ['[1,"two"]'], [1, "two"]),
        ([], ["[]"], []),
        (3, ["3"], 3),
        (2**70, [str(2**70)], 2**70),
        (False, ["false"], False),
        (1.5, ["1.5"], 1.5),
        (Color.RED, ["red"], None),
    ],
)
def test_json_that_a_tool_returns_is_structured_content_and_one_text_block(
    value: Any, texts: list[str], structured: Any
) -> None:
    result = to_result(value)

    assert result == ToolResult(tuple(TextContentBlock(text=text) for text in texts), structured)


@pytest.mark.parametrize("value", [BLOCK, IMAGE, UnknownContentBlock(original_type="hologram")])
def test_content_blocks_are_the_content(value: Any) -> None:
    assert to_result(value) == ToolResult((value,))
    assert to_result([value, BLOCK]) == ToolResult((value, BLOCK))
    assert to_result((value,)) == ToolResult((value,))


def test_a_tool_result_is_taken_whole() -> None:
    result = to_result(ToolResult("no", Alert(id="1"), {"trace": "t"}, is_error=True))

    assert result == ToolResult((TextContentBlock(text="no"),), {"id": "1", "level": 1}, {"trace": "t"}, is_error=True)
    assert to_result(ToolResult([BLOCK])) == ToolResult((BLOCK,))


def test_half_characters_are_replaced_wherever_a_result_has_text() -> None:
    result = to_result(ToolResult("a\ud800", {"k\ud800": ["\ud83d\ude00"]}, {"m": "\udc00"}))

    assert result == ToolResult((TextContentBlock(text="a\ufffd"),), {"k\ufffd": ["😀"]}, {"m": "\ufffd"})
    assert to_result("a\ud800").content == (TextContentBlock(text="a\ufffd"),)


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "result: object is no JSON value"),
        ({"a": [date(2026, 1, 1)]}, r"result\.a\[0\]: date is no JSON value"),
        ({1: "a"}, "result: the key 1 is no text"),
        (float("nan"), "nan is no JSON number"),
        (["text", BLOCK], r"result\[1\]: TextContentBlock is no JSON value"),
        (LOOP, "nested too deeply"),
        (ToolResult(structured_content=object()), "structured_content: object is no JSON value"),
        (ToolResult(meta={"a": object()}), r"meta\.a: object is no JSON value"),
        (ToolResult(meta=[1]), "meta is a dict, not list"),  # type: ignore[arg-type] # what is tested
        (ToolResult(5), "not int"),  # type: ignore[arg-type] # what is tested
        (ToolResult(["a"]), r"\[0\] is str"),  # type: ignore[list-item] # what is tested
        (TextContentBlock(text=5), r"content\[0\] is no text block: text must be a text, not int"),  # type: ignore[arg-type] # what is tested
    ],
)
def test_what_is_no_result_is_a_tool_error_that_names_the_type(value: Any, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        to_result(value)


# How a call ends.


def synchronous(act: Callable[[], Any]) -> Tool[..., Any]:
    return tool(name="act")(lambda: act())  # noqa: PLW0108 - whatever can be called, as a function


def asynchronous(act: Callable[[], Any]) -> Tool[..., Any]:
    async def run() -> Any:
        return act()

    return tool(name="act")(run)


def failing(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


class FaultError(Exception):
    pass


class MuteError(Exception):
    __str__ = None  # type: ignore[assignment] # it cannot say what it is


@pytest.mark.parametrize("made", [synchronous, asynchronous])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ToolError("no such alert"), "no such alert"),
        (FaultError("broken \ud800"), "FaultError: broken \ufffd"),
        (FaultError(), "FaultError"),
        (MuteError(), "MuteError"),
        (KeyError("id"), "KeyError: 'id'"),
        (TimeoutError("the other side is slow"), "TimeoutError: the other side is slow"),
        (SystemExit(2), "SystemExit: 2"),
    ],
)
async def test_what_a_tool_raises_is_a_failed_result(
    made: Callable[[Callable[[], Any]], Tool[..., Any]], error: BaseException, said: str
) -> None:
    result = await made(failing(error)).call({}, {}, LIMIT)

    assert (text_of(result), result.is_error) == (said, True)


async def test_a_stop_iteration_is_a_failed_result_too() -> None:
    """`asyncio.to_thread` never ends for it."""
    result = await asyncio.wait_for(synchronous(lambda: next(iter(()))).call({}, {}, LIMIT), 2)

    assert (text_of(result), result.is_error) == ("StopIteration", True)


async def test_a_cancellation_inside_the_tool_is_its_failure_and_not_the_call_s() -> None:
    @tool
    async def wait() -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    result = await wait.call({}, {}, LIMIT)

    assert (text_of(result), result.is_error) == ("CancelledError", True)


async def test_a_cancelled_call_is_cancelled() -> None:
    ended: list[str] = []

    @tool
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cleaned up")

    task = asyncio.create_task(wait.call({}, {}, LIMIT))
    await asyncio.sleep(0.01)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cleaned up"]


@pytest.mark.parametrize(("own", "limit"), [(0.02, 60.0), (None, 0.02)])
async def test_an_async_tool_past_its_time_is_stopped(own: float | None, limit: float) -> None:
    stopped = False

    @tool(timeout=own)
    async def slow() -> None:
        nonlocal stopped
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped = True
            raise

    result = await slow.call({}, {}, limit)

    assert (text_of(result), result.is_error) == ("client.slow did not end within 0.02 s and was stopped.", True)
    assert stopped


async def test_tools_that_hang_keep_no_other_tool_from_running() -> None:
    """Far more of them than a pool has threads; the model hears that they may still run."""
    release = threading.Event()
    hanging = tool(name="hang", timeout=0.05)(lambda: release.wait(30))
    try:
        results = await asyncio.gather(*(hanging.call({}, {}, LIMIT) for _ in range(40)))
        said = {text_of(result) for result in results}
        assert said == {"client.hang did not end within 0.05 s and may still be running."}
        assert text_of(await synchronous(lambda: "ran").call({}, {}, LIMIT)) == "ran"
    finally:
        release.set()


def test_a_tool_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = (
        "import asyncio, time; from workers.tools import tool\n"
        "hang = tool(name='hang', timeout=0.05)(lambda: time.sleep(60))\n"
        "print(asyncio.run(hang.call({}, {}, 5)).is_error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)

    assert (done.stdout, done.stderr) == ("True\n", "")


async def test_synchronous_tools_run_side_by_side_and_hold_up_nothing() -> None:
    barrier = threading.Barrier(3, timeout=5)
    meet = synchronous(barrier.wait)

    results = await asyncio.gather(*(meet.call({}, {}, LIMIT) for _ in range(3)))

    assert not any(result.is_error for result in results)


async def test_a_synchronous_tool_sees_the_caller_s_context() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("from the caller")

    assert text_of(await synchronous(variable.get).call({}, {}, LIMIT)) == "from the caller"


async def test_a_function_that_returns_an_awaitable_is_awaited() -> None:
    async def inner() -> str:
        return "awaited"

    def outer() -> Coroutine[Any, Any, str]:
        return inner()

    assert text_of(await tool(outer).call({}, {}, LIMIT)) == "awaited"


async def test_a_thread_that_ends_after_its_call_disturbs_nobody() -> None:
    ended = threading.Event()

    def late() -> None:
        time.sleep(0.05)
        ended.set()

    result = await tool(late).call({}, {}, 0.01)

    assert result.is_error
    assert await asyncio.get_running_loop().run_in_executor(None, ended.wait, 5)
    await asyncio.sleep(0.01)  # where an outcome set twice would be raised
