"""Tools: functions that the model may call, run by the worker."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, update_wrapper
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

from pydantic import BaseModel

from broker.protocol.content import (
    BLOCKS,
    ContentBlock,
    TextContentBlock,
    UnknownContentBlock,
    content_text,
    misfit,
)
from broker.protocol.values import JsonValue, clean_json, clean_text, dumps, show_defaults
from workers.inputs import InputRejectedError, SessionInput, input_parameters, resolve_inputs
from workers.models import ToolSpec
from workers.threads import Raised, in_thread
from workers.tool_schema import Arguments

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class ToolAnnotations:
    """MCP annotations of a tool: hints for clients, never a permission."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


@show_defaults
@dataclass(frozen=True)
class ToolResult:
    """A tool's result in full. `content` is a text or content blocks; `meta` is for the client and the model never sees it."""

    content: str | Sequence[ContentBlock] = ()
    structured_content: JsonValue = None
    meta: dict[str, JsonValue] = field(default_factory=dict)
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text of its text blocks, joined; `""` when it has none."""
        return self.content if isinstance(self.content, str) else content_text(self.content)


class ToolError(Exception):
    """A tool's own failure: the model reads the message. Any other exception is shown with its type."""


def error_result(message: str) -> ToolResult:
    """Return the result of a call that failed with this message."""
    return ToolResult((TextContentBlock(text=clean_text(message)),), is_error=True)


_BLOCK_TYPES: Final = (*BLOCKS.values(), UnknownContentBlock)


def holds_blocks(value: object) -> bool:
    """Whether a value is a content block or a sequence of some."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, _BLOCK_TYPES) for item in value)
    return isinstance(value, _BLOCK_TYPES)


def to_result(value: Any) -> ToolResult:
    """Return the result of what a tool returned: text, JSON, a model, content blocks, a `ToolResult`, or None.

    Raises `ToolError` naming a type that is none of them.
    """
    match value:
        case None:
            return ToolResult()
        case ToolResult():
            if not isinstance(value.meta, Mapping):
                raise ToolError(f"A ToolResult's meta is a dict, not {type(value.meta).__name__}.")
            structured = _json(value.structured_content, "structured_content")
            meta = _json(dict(value.meta), "meta")
            return ToolResult(_blocks(value.content), structured, meta, bool(value.is_error))
        case str():
            return ToolResult(_blocks(value))
        case _ if holds_blocks(value):
            return ToolResult(_blocks(value if isinstance(value, (list, tuple)) else (value,)))
        case _:
            structured = _json(value, "result")
            return ToolResult((TextContentBlock(text=dumps(structured).decode()),), structured)


def _blocks(content: object) -> tuple[ContentBlock, ...]:
    if isinstance(content, str):
        return (TextContentBlock(text=clean_text(content)),)
    if not isinstance(content, Sequence):
        raise ToolError(f"A result's content is a text or a sequence of content blocks, not {type(content).__name__}.")
    for at, block in enumerate(content):
        if not isinstance(block, _BLOCK_TYPES):
            raise ToolError(f"A result's content is made of content blocks; [{at}] is {type(block).__name__}.")
        wrong = None if isinstance(block, UnknownContentBlock) else misfit(block)
        if wrong is not None:
            raise ToolError(f"A result's content[{at}] is no {block.type} block: {wrong}.")
    return tuple(content)


def _json(value: Any, place: str) -> JsonValue:
    try:
        cleaned = clean_json(_dumped(value), place)
        dumps(cleaned)
    except (ValueError, RecursionError) as bad:
        said = "it is nested too deeply" if isinstance(bad, RecursionError) else str(bad)
        raise ToolError(f"The tool returned what it may not: {said}.") from None
    return cleaned


def _dumped(value: Any) -> JsonValue:
    """A value whose models, at any depth, have become JSON."""
    match value:
        case BaseModel():
            return value.model_dump(mode="json")
        case dict():
            return {key: _dumped(item) for key, item in value.items()}
        case list() | tuple():
            return [_dumped(item) for item in value]
        case _:
            return value


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def full_id(name: str) -> str:
    """Return the full id of a tool of this name. Raises `ValueError` for a name that a model cannot be told."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"tool {name!r}: a tool's name is 1 to 64 of A-Z a-z 0-9 _ . -; give name=")
    return f"client.{name}"


@runtime_checkable
class RunnableTool(Protocol):
    """What a worker can run: a function of this process, a tool of a server. `id` is its full id."""

    @property
    def id(self) -> str:
        """The full id, such as `client.search`."""
        ...

    @property
    def name(self) -> str:
        """The name without its namespace."""
        ...

    @property
    def description(self) -> str:
        """What it does, for the model."""
        ...

    @property
    def retry_safe(self) -> bool:
        """Whether it may run again when its worker was lost in the middle."""
        ...

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        ...

    async def call(self, arguments: JsonValue, inputs: Mapping[str, Any], limit: float) -> ToolResult:
        """Run it for at most its own limit, else `limit` seconds. Failures are results; only cancellation raises."""
        ...


class Tool(Generic[P, R]):
    """A tool: still the function it was made of, and what the engine knows about it. `id` is its full id."""

    __name__: str  # as the function's other names, set by update_wrapper

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        annotations: ToolAnnotations | None = None,
        retry_safe: bool = False,
        timeout: float | None = None,
    ) -> None:
        if not (inspect.isfunction(function) or inspect.ismethod(function)):
            raise TypeError(f"a tool is made of a function or a method, not of {type(function).__name__}")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be more than 0 seconds, not {timeout}")
        update_wrapper(self, function, updated=())
        self.function: Callable[P, R] = function
        self.name = function.__name__ if name is None else name
        self.id = full_id(self.name)
        self.description = description if description is not None else inspect.getdoc(function) or ""
        self.annotations = annotations
        self.retry_safe = retry_safe
        self.timeout = timeout
        self._inputs = input_parameters(function)
        self._arguments = Arguments(function, self._inputs)
        self._spec = ToolSpec(self.id, self.description, self._arguments.schema)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.id}>"

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return self._spec

    @property
    def inputs(self) -> Mapping[str, type[SessionInput]]:
        """The parameters that are session inputs: the model never hears of them."""
        return self._inputs

    def bind(self, arguments: JsonValue) -> dict[str, Any]:
        """Return checked keyword arguments. Raises `ToolError` naming the field; never holds its value."""
        try:
            return self._arguments.bind(arguments)
        except ValueError as bad:
            raise ToolError(f"The arguments do not fit {self.id}: {bad}.") from None

    async def call(self, arguments: JsonValue, inputs: Mapping[str, Any], limit: float) -> ToolResult:
        """Run the tool for at most its own `timeout`, else `limit` seconds. Failures are results; only cancellation raises.

        A synchronous function runs in a thread; past its time it is left behind, since a thread cannot be ended.
        """
        seconds = self.timeout if self.timeout is not None else limit
        clock = asyncio.timeout(seconds)
        current = asyncio.current_task()
        cancels = current.cancelling() if current is not None else 0
        try:
            bound = {**self.bind(arguments), **resolve_inputs(self._inputs, inputs)}
            async with clock:
                value = await self._run(bound)
            return _failure(value.error) if isinstance(value, Raised) else to_result(value)
        except asyncio.CancelledError as cancelled:
            if current is None or current.cancelling() > cancels:
                raise
            return _failure(cancelled)  # not this call was cancelled, but something that the tool awaited
        except (Exception, SystemExit) as failed:  # noqa: BLE001 - whatever a tool raises is the model's to read
            if isinstance(failed, TimeoutError) and clock.expired():
                left = "was stopped" if inspect.iscoroutinefunction(self.function) else "may still be running"
                return error_result(f"{self.id} did not end within {seconds:g} s and {left}.")
            return _failure(failed)

    async def _run(self, bound: Mapping[str, Any]) -> Any:
        function = cast("Callable[..., Any]", self.function)
        if inspect.iscoroutinefunction(function):
            return await _in_its_task(function(**bound))
        ended = await in_thread(partial(function, **bound), self.id)
        if isinstance(ended, Raised):
            return ended
        return await _in_its_task(ended.value) if inspect.isawaitable(ended.value) else ended.value


async def _in_its_task(working: Awaitable[Any]) -> Any:
    """Await in a task of its own: a tool that cancels the task that it runs in ends its call, not the turn's run."""

    async def awaited() -> Any:
        try:
            return await working
        except (Exception, SystemExit, GeneratorExit) as failed:  # noqa: BLE001 - a task that meets a SystemExit ends its loop
            return Raised(failed)

    return await asyncio.create_task(awaited())


def _failure(failed: BaseException) -> ToolResult:
    try:
        said = str(failed)
    except Exception:  # noqa: BLE001 - an error that cannot say what it is fails its call all the same
        said = ""
    if isinstance(failed, (ToolError, InputRejectedError)):
        return error_result(said)
    return error_result(f"{type(failed).__name__}: {said}" if said else type(failed).__name__)


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    annotations: ToolAnnotations | None = None,
    retry_safe: bool = False,
    timeout: float | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    annotations: ToolAnnotations | None = None,
    retry_safe: bool = False,
    timeout: float | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a function: its schema from annotated parameters, its description from the docstring.

    `retry_safe`: the tool may run again when its worker was lost in the middle. `timeout` is in seconds. Raises `TypeError`
    for what is no function and for parameters that no JSON object can give, `ValueError` for a bad name or timeout.
    """

    def made(of: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            of, name=name, description=description, annotations=annotations, retry_safe=retry_safe, timeout=timeout
        )

    return made if function is None else made(function)
