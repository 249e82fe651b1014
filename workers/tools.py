"""Tools: functions that the model may call, run by the worker."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from pydantic import BaseModel, ValidationError, create_model

from broker.protocol.content import BLOCKS, ContentBlock, TextContentBlock, UnknownContentBlock
from broker.protocol.values import JsonValue, clean_json, clean_text, dumps, show_defaults
from workers.inputs import InputRejectedError, input_parameters, resolve_inputs
from workers.models import ToolSpec

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


class ToolError(Exception):
    """A tool's own failure: the model reads the message. Any other exception is shown with its type."""


def error_result(message: str) -> ToolResult:
    """Return the result of a call that failed with this message."""
    return ToolResult((TextContentBlock(text=clean_text(message)),), is_error=True)


def to_result(value: Any) -> ToolResult:
    """Return the result of what a tool returned: text, JSON, a model, content blocks, a `ToolResult`, or None.

    Raises `ToolError` naming a type that is none of them.
    """
    match value:
        case None:
            return ToolResult()
        case ToolResult():
            content = value.content
            blocks = (TextContentBlock(text=clean_text(content)),) if isinstance(content, str) else tuple(content)
            return ToolResult(blocks, clean_json(value.structured_content), clean_json(value.meta), value.is_error)
        case str():
            return ToolResult((TextContentBlock(text=clean_text(value)),))
        case BaseModel():
            return _structured(value.model_dump(mode="json"))
        case _ if isinstance(value, (*BLOCKS.values(), UnknownContentBlock)):
            return ToolResult((cast("ContentBlock", value),))
        case list() | tuple() if value and all(isinstance(item, tuple(BLOCKS.values())) for item in value):
            return ToolResult(tuple(value))
        case _:
            return _structured(value)


def _structured(value: JsonValue) -> ToolResult:
    try:
        cleaned = clean_json(value, "result")
    except ValueError as bad:
        raise ToolError(f"The tool returned what it may not: {bad}.") from None
    return ToolResult((TextContentBlock(text=dumps(cleaned).decode()),), cleaned)


def _first_paragraph(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").strip()


def _arguments_model(function: Callable[..., Any], left_out: Mapping[str, Any]) -> type[BaseModel]:
    hints = inspect.get_annotations(function, eval_str=True)
    parameters: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in left_out:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {function.__name__}: parameter {name} must be passable by keyword")
        default = ... if parameter.default is parameter.empty else parameter.default
        parameters[name] = (hints.get(name, Any), default)
    return create_model(function.__name__, __config__={"extra": "forbid"}, **parameters)


class Tool(Generic[P, R]):
    """A tool: still the function it was made of, and what the engine knows about it. `id` is its full id."""

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
        self.function = function
        self.name = name or function.__name__
        self.id = f"client.{self.name}"
        self.description = description if description is not None else _first_paragraph(function)
        self.annotations = annotations
        self.retry_safe = retry_safe
        self.timeout = timeout
        self._inputs = input_parameters(function)
        self._arguments = _arguments_model(function, self._inputs)
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.id}>"

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return ToolSpec(self.id, self.description, self._arguments.model_json_schema())

    def bind(self, arguments: JsonValue) -> dict[str, Any]:
        """Return checked keyword arguments. Raises `ToolError` naming the field; never holds its value."""
        try:
            model = self._arguments.model_validate({} if arguments is None else arguments)
        except ValidationError as bad:
            problems = bad.errors(include_input=False, include_url=False)
            said = "; ".join(
                f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}" for item in problems[:5]
            )
            raise ToolError(f"The arguments do not fit {self.id}: {said}.") from None
        return {name: getattr(model, name) for name in type(model).model_fields}

    async def call(self, arguments: JsonValue, inputs: Mapping[str, Any], limit: float) -> ToolResult:
        """Run the tool for at most its own `timeout`, else `limit` seconds. Failures are results; only cancellation raises.

        A synchronous function runs in a thread; past its time it is left behind, since a thread cannot be ended.
        """
        seconds = self.timeout if self.timeout is not None else limit
        clock = asyncio.timeout(seconds)
        try:
            bound = {**self.bind(arguments), **resolve_inputs(self._inputs, inputs)}
            function = cast("Callable[..., Any]", self.function)
            async with clock:
                if inspect.iscoroutinefunction(function):
                    value = await function(**bound)
                else:
                    value = await asyncio.to_thread(function, **bound)
            return to_result(value)
        except (ToolError, InputRejectedError) as refused:
            return error_result(str(refused))
        except Exception as failed:  # noqa: BLE001 - whatever a tool raises is the model's to read
            if isinstance(failed, TimeoutError) and clock.expired():
                return error_result(f"{self.id} did not end within {seconds:g} s and was stopped.")
            return error_result(f"{type(failed).__name__}: {failed}")


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
    for parameters that cannot be passed by keyword.
    """

    def made(of: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            of, name=name, description=description, annotations=annotations, retry_safe=retry_safe, timeout=timeout
        )

    return made if function is None else made(function)
