"""A tiny MCP server on the official library: a public library. Over stdio, or over HTTP for whoever has a token.

python examples/servers/library_mcp.py            # stdio: an agent starts it
python examples/servers/library_mcp.py 8931       # http://127.0.0.1:8931/mcp
"""

from __future__ import annotations

import asyncio
import sys
from typing import TypedDict

import uvicorn
from mcp.server import MCPServer
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

library = MCPServer("library", log_level="ERROR")
app = library.streamable_http_app()


class Book(TypedDict):
    """A book of the catalogue."""

    title: str
    year: int
    copies: int


@library.tool()
def find_book(title: str) -> Book:
    """Find a book by its title."""
    return {"title": title, "year": 1815, "copies": 2}


@library.tool()
def reserve(title: str) -> str:
    """Reserve a book."""
    return f"{title} is reserved."


@library.tool()
def burn(title: str) -> str:
    """Burn a book."""
    return f"{title} is ashes."


async def with_token(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve those who have a token of ours."""
    if scope["type"] == "http" and (b"authorization", b"Bearer card-of-ada") not in scope["headers"]:
        await PlainTextResponse("who are you?", 401)(scope, receive, send)
    else:
        await app(scope, receive, send)


async def serve_http(port: int) -> None:
    """Serve on a port, and say so on stdout."""
    server = uvicorn.Server(uvicorn.Config(with_token, port=port, log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not (server.started or serving.done()):  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await serving


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(serve_http(int(sys.argv[1])))
    else:
        library.run()
