"""Client tools: declared with the agent, run by whoever waits at the client. The worker only asks."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Union, get_args, get_origin, overload

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from broker.protocol.callbacks import ClientToolCall
from broker.protocol.errors import SdkError
from broker.protocol.values import JsonValue
from workers.models import ToolSpec
from workers.tool_schema import returned_type, what_misfits
from workers.tools import Tool, ToolError, ToolResult, full_id, holds_blocks, to_result


class ClientTool:
    """A client tool's stub. `id` is its full id; `@stub.answer` binds the function that answers its calls.

    Raises `TypeError` for a stub without a name or with types that no JSON can give, `ValueError` for a bad name.
    """

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, JsonValue] | None = None,
        output_schema: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self._tool = Tool(function, name=name, description=description) if function is not None else None
        if self._tool is not None:
            if self._tool.inputs:
                raise TypeError(f"{self._tool.id}: a client tool runs at the client and reads no session inputs")
            name, description = self._tool.name, self._tool.description
        elif name is None:
            raise TypeError("client_tool needs a stub function or name=")
        self.name = name or ""
        self.id = full_id(self.name)
        self.description = description or ""
        self.output_schema = output_schema
        if input_schema is None:
            input_schema = self._tool.spec.parameters if self._tool is not None else {"type": "object"}
        self._spec = ToolSpec(self.id, self.description, input_schema)
        self._returns: _Returns | None = None
        if function is not None and output_schema is None:
            self._returns = _Returns(self.id, returned_type(function))
        self.answering: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<client tool {self.id}>"

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        return self._spec

    def answer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Bind the function that answers calls of this tool; sync or async, with the stub's parameters.

        Raises `TypeError` when it does not take them.
        """
        if self._tool is not None:
            try:
                inspect.signature(function).bind(**dict.fromkeys(inspect.signature(self._tool.function).parameters))
            except TypeError as bad:
                raise TypeError(f"the function that answers {self.id} must take its parameters: {bad}") from None
        self.answering = function
        return function

    def check(self, value: Any) -> ToolResult:
        """Return a client's answer as a result. Raises `SdkError` when it breaks the stub's return type."""
        try:
            if self._returns is not None and not isinstance(value, ToolResult):
                value = self._returns.fit(value)
            return to_result(value)
        except ToolError as bad:
            raise SdkError(f"The answer to {self.id} is no result: {bad}") from None

    async def run(self, call: ClientToolCall) -> Any:
        """Run the answering function for a call. Raises what it raises, and `ToolError` for arguments that do not fit."""
        if self.answering is None:
            raise SdkError(f"{self.id} has no answering function; bind one with @{self.name}.answer")
        if self._tool is not None:
            arguments = self._tool.bind(call.arguments)
        elif isinstance(call.arguments, dict | None):
            arguments = dict(call.arguments or {})
        else:
            raise ToolError(f"The arguments do not fit {self.id}: arguments: Input should be an object.")
        value = self.answering(**arguments)
        return await value if inspect.isawaitable(value) else value


class _Returns:
    """What a stub returns. A `ToolResult` is always taken as it is, so it says nothing about other values."""

    def __init__(self, tool_id: str, returned: Any) -> None:
        self._id = tool_id
        self._anything = returned is Any
        kinds = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned,)
        plain = tuple(kind for kind in kinds if kind is not ToolResult)
        try:
            self._adapter: TypeAdapter[Any] | None = TypeAdapter(reduce(or_, plain)) if plain else None
        except PydanticUserError as bad:
            raise TypeError(f"{tool_id}: what it returns is no JSON: {bad.message}") from None

    def fit(self, value: Any) -> Any:
        """Return the value as the declared type has it. Raises `SdkError` for a value that breaks it."""
        if self._anything:
            return value
        if self._adapter is None:
            raise SdkError(f"{self._id} answers with a ToolResult, not with {type(value).__name__}")
        try:
            fitting = self._adapter.validate_python(value)
        except ValidationError as bad:
            raise SdkError(f"The answer does not fit what {self._id} returns: {what_misfits(bad, 'answer')}") from None
        if holds_blocks(fitting):
            return fitting
        try:
            return self._adapter.dump_python(fitting, mode="json")
        except ValueError as bad:  # pydantic's serialization errors are ValueErrors
            raise SdkError(f"The answer to {self._id} is no JSON: {bad}") from None


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
    """Answers client tools' calls with the functions bound to their stubs; pass it as `on_client_tool`.

    Raises `SdkError` for a stub without an answering function, and for two stubs that share an id.
    """

    def __init__(self, *stubs: ClientTool) -> None:
        self._stubs: dict[str, ClientTool] = {}
        for stub in stubs:
            if stub.answering is None:
                raise SdkError(f"{stub.id} has no answering function; bind one with @{stub.name}.answer")
            if self._stubs.setdefault(stub.id, stub) is not stub:
                raise SdkError(f"two stubs have the id {stub.id}; calls name only the id, so one of them must answer")

    def answers(self, tool_id: str) -> bool:
        """Whether calls of this tool are answered here."""
        return tool_id in self._stubs

    async def __call__(self, call: ClientToolCall) -> Any:
        """Answer a call. Raises `SdkError` for a tool that is not answered here."""
        if call.name not in self._stubs:
            raise SdkError(
                f"{call.name} is not answered here; answered are: {', '.join(sorted(self._stubs)) or 'none'}"
            )
        return await self._stubs[call.name].run(call)


OnClientTool = ClientToolAnswers | Callable[[ClientToolCall], Awaitable[Any] | Any]


def stubs_by_id(tools: Iterable[object]) -> dict[str, ClientTool | None]:
    """Return the stubs among tools; None for an id that two different stubs share, whose answers are not checked."""
    found: dict[str, ClientTool | None] = {}
    for item in tools:
        if isinstance(item, ClientTool):
            found[item.id] = item if found.get(item.id, item) is item else None
    return found
