"""Client tools: declared with the agent, run by whoever waits at the client. The worker only asks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, overload

from pydantic import TypeAdapter, ValidationError

from broker.protocol.callbacks import ClientToolCall
from broker.protocol.errors import SdkError
from broker.protocol.values import JsonValue
from workers.models import ToolSpec
from workers.tools import Tool, ToolError, ToolResult, to_result


class ClientTool:
    """A client tool's stub. `id` is its full id; `@stub.answer` binds the function that answers its calls."""

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, JsonValue] | None = None,
        output_schema: Mapping[str, JsonValue] | None = None,
    ) -> None:
        if name is None and function is None:
            raise TypeError("client_tool needs a stub function or name=")
        self._tool = Tool(function, name=name, description=description) if function is not None else None
        self.name = name or (function.__name__ if function is not None else "")
        self.id = f"client.{self.name}"
        self.description = self._tool.description if self._tool else (description or "")
        self.output_schema = output_schema
        self._input_schema = input_schema
        self._returns = inspect.get_annotations(function, eval_str=True).get("return", Any) if function else Any
        self.answering: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<client tool {self.id}>"

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        if self._tool is not None and self._input_schema is None:
            return ToolSpec(self.id, self.description, self._tool.spec.parameters)
        return ToolSpec(self.id, self.description, self._input_schema or {"type": "object"})

    def answer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Bind the function that answers calls of this tool; sync or async, with the stub's parameters."""
        self.answering = function
        return function

    def check(self, value: Any) -> ToolResult:
        """Return a client's answer as a result. Raises `SdkError` when it breaks the stub's return type."""
        try:
            if (
                isinstance(value, ToolResult)
                or self.output_schema is not None
                or self._returns in (Any, inspect.Signature.empty)
            ):
                return to_result(value)
            if self._returns is ToolResult:
                raise SdkError(f"{self.id} answers with a ToolResult, not with {type(value).__name__}")
            kind: TypeAdapter[Any] = TypeAdapter(self._returns)
            return to_result(kind.dump_python(kind.validate_python(value), mode="json"))
        except ValidationError as bad:
            first = bad.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "answer"
            raise SdkError(f"The answer does not fit what {self.id} returns: {place}: {first['msg']}") from None
        except ToolError as bad:
            raise SdkError(str(bad)) from None

    async def run(self, call: ClientToolCall) -> Any:
        """Run the answering function for a call. Raises what it raises, and `ToolError` for arguments that do not fit."""
        if self.answering is None:
            raise SdkError(f"{self.id} has no answering function; bind one with @{self.name}.answer")
        arguments = self._tool.bind(call.arguments) if self._tool is not None else dict(call.arguments or {})
        value = self.answering(**arguments)
        return await value if inspect.isawaitable(value) else value


@overload
def client_tool(function: Callable[..., Any], /) -> ClientTool: ...
@overload
def client_tool(
    *, name: str | None = None, description: str | None = None, output_schema: Mapping[str, JsonValue] | None = None
) -> Callable[[Callable[..., Any]], ClientTool]: ...
@overload
def client_tool(
    *,
    name: str,
    description: str | None = None,
    input_schema: Mapping[str, JsonValue],
    output_schema: Mapping[str, JsonValue] | None = None,
) -> ClientTool: ...
def client_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, JsonValue] | None = None,
    output_schema: Mapping[str, JsonValue] | None = None,
) -> Any:
    """Declare a tool that runs at the client. With `output_schema` answers are sent unchecked.

    Bare, or with options, it decorates a stub function; with `name=` and `input_schema=` it makes the stub itself.
    """
    if function is not None:
        return ClientTool(function)
    if input_schema is not None:
        return ClientTool(name=name, description=description, input_schema=input_schema, output_schema=output_schema)

    def made(of: Callable[..., Any]) -> ClientTool:
        return ClientTool(of, name=name, description=description, output_schema=output_schema)

    return made


class ClientToolAnswers:
    """Answers client tools' calls with the functions bound to their stubs; pass it as `on_client_tool`."""

    def __init__(self, *stubs: ClientTool) -> None:
        self._stubs: dict[str, ClientTool] = {}
        for stub in stubs:
            if stub.answering is None:
                raise SdkError(f"{stub.id} has no answering function; bind one with @{stub.name}.answer")
            self._stubs[stub.id] = stub

    def answers(self, tool_id: str) -> bool:
        """Whether calls of this tool are answered here."""
        return tool_id in self._stubs

    async def __call__(self, call: ClientToolCall) -> Any:
        """Answer a call."""
        return await self._stubs[call.name].run(call)


OnClientTool = ClientToolAnswers | Callable[[ClientToolCall], Awaitable[Any] | Any]


def stubs_by_id(tools: Iterable[object]) -> dict[str, ClientTool | None]:
    """Return the stubs among tools; None for an id that two different stubs share, whose answers are not checked."""
    found: dict[str, ClientTool | None] = {}
    for item in tools:
        if isinstance(item, ClientTool):
            found[item.id] = item if found.get(item.id, item) is item else None
    return found
