"""A real MCP server, on the official library: `python mcp_server.py stdio | http`. The test decides how it behaves, at any time.

A case is a JSON file, named by the variable MCP_CASE, the header x-case or the query's case, and read at each request:

    add     names of further tools              status    what each HTTP request is answered with
    list    the raw result of tools/list        refuse    {method, or tool that is called: HTTP status}
    go      the tool `slow` may end
    hang    a method that is never answered     era       "legacy": no server/discover
    token   the only bearer token that is good

What it did is added to the file beside it, `<case>.log`, a line each.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OBJECT: dict[str, Any] = {"type": "object"}
SUM = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}


def case_of(ctx: Any) -> Path | None:
    """The case of a request."""
    request = getattr(ctx, "request", None)
    named = os.environ.get("MCP_CASE") if request is None else named_by(request.headers, request.url.query)
    return Path(named) if named else None


def named_by(headers: Any, query: str) -> str | None:
    """The case that a request names."""
    return headers.get("x-case") or dict(parse_qsl(query)).get("case")


def read(case: Path | None) -> dict[str, Any]:
    """How to behave now."""
    return dict(json.loads(case.read_text())) if case is not None and case.exists() else {}


def note(case: Path | None, line: str) -> None:
    """Say what was done."""
    if case is not None:
        with case.with_suffix(".log").open("a") as log:
            log.write(line + "\n")


def text(said: str, **more: Any) -> types.CallToolResult:
    """A result of one text."""
    return types.CallToolResult(content=[types.TextContent(text=said)], **more)


async def on_list_tools(ctx: Any, _params: Any) -> types.ListToolsResult:
    """Tell the tools."""
    case = case_of(ctx)
    note(case, f"list {os.getpid()}")
    names = [
        "bare",
        "big",
        "blocks",
        "die",
        "fail",
        "grow",
        "hang",
        "misfit",
        "refuse",
        "slow",
        "whoami",
        *read(case).get("add", []),
    ]
    tools = [types.Tool(name=name, description=f"Does {name}.", input_schema=OBJECT) for name in names]
    numbers = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
    tools.append(types.Tool(name="add", title="Adding", input_schema=numbers, output_schema=SUM))
    for tool in tools:
        if tool.name == "misfit":
            tool.output_schema = SUM
    return types.ListToolsResult(tools=tools)


async def on_call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Run a tool."""
    case, given = case_of(ctx), params.arguments or {}
    note(case, f"call {params.name}")
    if params.name in RESULTS:
        return RESULTS[params.name]()
    match params.name:
        case "add":
            result = {"sum": given["a"] + given["b"]}
            return text(json.dumps(result), structured_content=result, _meta={"took": 3})
        case "die":
            os._exit(3)
        case "grow":
            await BUS.publish(ToolsListChanged())
            if ctx.protocol_version < "2026":
                await ctx.session.send_tool_list_changed()
        case "hang":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                note(case, "cancelled")
                raise
        case "slow":
            await may_go(case)
        case "whoami":
            headers = getattr(ctx.request, "headers", {})
            return text(headers.get("authorization") or os.environ.get("MCP_TOKEN") or "nobody")
    return text(f"{params.name} ran")


async def may_go(case: Path | None) -> None:
    """Wait until the case says so."""
    for _ in range(1000):
        if read(case).get("go"):
            return
        await asyncio.sleep(0.01)


def refuse() -> types.CallToolResult:
    """Answer with an error of the protocol."""
    raise MCPError(code=-32050, message="not today")


def blocks() -> types.CallToolResult:
    """One block of each kind."""
    for_user = types.Annotations(audience=["user"], priority=0.5, last_modified="2026-01-01T00:00:00Z")
    page = types.TextResourceContents(uri="file:///a.txt", mime_type="text/plain", text="page")
    return types.CallToolResult(
        content=[
            types.TextContent(text="for both", _meta={"k": 1}),
            types.TextContent(text="for the user", annotations=for_user),
            types.ImageContent(data="aGk=", mime_type="image/png"),
            types.AudioContent(data="aGk=", mime_type="audio/wav"),
            types.ResourceLink(uri="file:///a.txt", name="a", title="A", mime_type="text/plain", size=4),
            types.EmbeddedResource(resource=page),
        ]
    )


RESULTS: dict[str, Callable[[], types.CallToolResult]] = {
    "bare": lambda: types.CallToolResult(content=[], structured_content={"found": 2}),
    "big": lambda: types.CallToolResult(content=[types.ImageContent(data="a" * 10_000_004, mime_type="image/png")]),
    "blocks": blocks,
    "fail": lambda: text("it does not work", is_error=True),
    "refuse": refuse,
    "misfit": lambda: text("{}", structured_content={"sum": "none"}),
}
BUS = InMemorySubscriptionBus()
SERVER: Server[Any] = Server(
    "for tests", on_list_tools=on_list_tools, on_call_tool=on_call_tool, on_subscriptions_listen=ListenHandler(BUS)
)


class Behaving:
    """What a case says of HTTP itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the server do it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        named = named_by(headers, scope["query_string"].decode())
        case = Path(named) if named else None
        body, said = b"", read(case)
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = json.loads(body) if body else {}
        method = request.get("method", scope["method"])
        note(case, f"{scope['method']} {method}")
        refuse, called = said.get("refuse", {}), (request.get("params") or {}).get("name")
        status = said.get("status") or refuse.get(method) or refuse.get(called)
        if "token" in said and headers.get("authorization") != f"Bearer {said['token']}":
            status = 401
        if said.get("hang") == method:
            await asyncio.sleep(60)
        if status is not None:
            await answer(send, status, b"secret-of-the-server")
        elif method == "tools/list" and "list" in said:
            result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **said["list"]}
            await answer(send, 200, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())
        elif method == "server/discover" and said.get("era") == "legacy":
            error = {"code": -32601, "message": "Method not found"}
            await answer(send, 200, json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode())
        else:
            await self._app(scope, replayed(body, receive), send)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A request that was read, once more."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again


async def answer(send: Send, status: int, body: bytes) -> None:
    """Answer with JSON, or with what only says to be."""
    kind = b"application/json" if status == 200 else b"text/plain"
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


async def serve_http(port: int) -> None:
    """Serve on a port, 0 for a free one, and print it."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(128)
    print(listening.getsockname()[1], flush=True)
    app = Behaving(SERVER.streamable_http_app())
    await uvicorn.Server(uvicorn.Config(app, log_level="critical")).serve([listening])


async def serve_stdio() -> None:
    """Serve the process that started this one."""
    case = case_of(None)
    note(case, f"start {os.getpid()}")
    async with stdio_server() as (incoming, outgoing):
        options = SERVER.create_initialization_options(NotificationOptions(tools_changed=True))
        await SERVER.run(incoming, outgoing, options)
    note(case, f"end {os.getpid()}")


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        asyncio.run(serve_stdio())
    else:
        asyncio.run(serve_http(int(sys.argv[2]) if len(sys.argv) > 2 else 0))
