"""A tool of a source, as a run calls it: what its server tells of it, checked; and its results as ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker import fault_points
from broker.protocol.content import ContentBlock, TextContentBlock, UnknownContentBlock, content_from_wire
from broker.protocol.values import JsonValue, clean_json, clean_text, dumps
from workers.models import ToolSpec
from workers.sources import Source, SourceError, takes
from workers.tools import ToolError, ToolResult, error_result, to_result

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")

Caller = Callable[[Source, str, Mapping[str, Any]], Awaitable["CallToolResult"]]
"""Calls a tool of a source by its own name. Raises `ToolError` when that failed, whatever failed."""


class SourceTool:
    """A tool that a source's server runs. Never run twice: what a server says of its tools is a hint, not a promise."""

    retry_safe = False

    def __init__(self, source: Source, name: str, description: str, schema: JsonValue, caller: Caller) -> None:
        self.id = f"{source.namespace}.{source.name}.{name}"
        self.name = name
        self.description = description
        self.spec = ToolSpec(self.id, description, schema)
        self._source = source
        self._caller = caller

    def __repr__(self) -> str:
        return f"<tool {self.id}>"

    async def call(self, arguments: JsonValue, inputs: Mapping[str, Any], limit: float) -> ToolResult:  # noqa: ARG002 - a server gets no inputs
        """Call it at its server, for at most the source's `call_timeout`, else `limit` seconds."""
        seconds = self._source.call_timeout or limit
        clock = asyncio.timeout(seconds)
        if not isinstance(arguments, dict | None):
            return error_result(f"The arguments do not fit {self.id}: arguments: Input should be an object.")
        try:
            async with clock:
                result = await self._caller(self._source, self.name, arguments or {})
            if fault_points.armed:
                await fault_points.reach("source.called")
            return to_result(_result(result))
        except ToolError as failed:
            return error_result(str(failed))
        except TimeoutError:
            if not clock.expired():
                raise
            return error_result(f"{self.id} did not end within {seconds:g} s and was stopped.")


def tools_of(source: Source, listing: Iterable[Tool], caller: Caller) -> tuple[SourceTool, ...]:
    """Return the tools that a source takes of its server's list. Raises `SourceError` when that is not valid."""
    made: dict[str, SourceTool] = {}
    for tool in listing:
        if not takes(source, tool.name):
            continue
        shown = clean_text(tool.name)[:80]
        if not _NAME.fullmatch(tool.name):
            raise _invalid(f"the name {shown!r} is not 1 to 128 of the characters A-Z a-z 0-9 _ . -")
        if tool.name in made:
            raise _invalid(f"two tools have the name {shown!r}")
        try:
            schema = clean_json(tool.input_schema, "schema")
        except (ValueError, RecursionError):
            raise _invalid(f"the input schema of {shown!r} is no JSON") from None
        made[tool.name] = SourceTool(
            source, tool.name, clean_text(tool.description or tool.title or ""), schema, caller
        )
    return tuple(made.values())


def _invalid(what: str) -> SourceError:
    return SourceError(f"its list of tools is not valid: {what}", "invalid_catalog")


def _result(result: CallToolResult) -> ToolResult:
    """Return a server's result as a tool's. Raises `ToolError` for content that is none here."""
    content = [_block(block.model_dump(by_alias=True, mode="json", exclude_none=True)) for block in result.content]
    for at, block in enumerate(content):
        if isinstance(block, UnknownContentBlock):
            raise ToolError(
                f"The server's result cannot be kept: content[{at}] is no {block.original_type} block of at most 10 MB."
            )
    structured = result.structured_content
    if not content and structured is not None:
        content = [TextContentBlock(text=dumps(structured).decode())]  # the model reads content only
    return ToolResult(content, structured, dict(result.meta or {}), result.is_error)


def _block(raw: dict[str, Any]) -> ContentBlock:
    """A block of MCP's as one of ours: data becomes a data: URI, a resource's fields become the block's own."""
    match raw:
        case {"type": ("image" | "audio") as kind, "data": data, "mimeType": media_type, **rest}:
            raw = {**rest, "type": kind, "uri": f"data:{media_type};base64,{data}", "mediaType": media_type}
        case {"type": "resource_link", **rest}:
            raw = _renamed(rest) | {"type": "resource_link"}
        case {"type": "resource", "resource": resource, **rest}:
            raw = _renamed(resource) | rest | {"type": "embedded_resource"}
        case _:
            pass
    return content_from_wire(raw)


def _renamed(raw: dict[str, Any]) -> dict[str, Any]:
    return {"mediaType" if key == "mimeType" else key: value for key, value in raw.items()}
