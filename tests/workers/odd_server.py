"""An MCP server over stdio, without the library: `python odd_server.py HEX TIMES [chatty]` writes a tool's text as raw bytes."""

from __future__ import annotations

import json
import sys


def answer(asked: dict[str, object], said: bytes) -> bytes | None:
    """Return the line that answers a request; None for a notification."""
    if "id" not in asked:
        return None
    head = b'{"jsonrpc":"2.0","id":' + json.dumps(asked["id"]).encode() + b","
    match asked["method"]:
        case "initialize":
            info = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "odd", "version": "1"},
            }
            return head + b'"result":' + json.dumps(info).encode() + b"}"
        case "tools/list":
            tools = [{"name": "say", "description": "Says it.", "inputSchema": {"type": "object"}}]
            return head + b'"result":' + json.dumps({"tools": tools}).encode() + b"}"
        case "tools/call":
            return head + b'"result":{"content":[{"type":"text","text":"' + said + b'"}]}}'
        case _:
            return head + b'"error":{"code":-32601,"message":"no such method"}}'


def main() -> None:
    said = bytes.fromhex(sys.argv[1]) * int(sys.argv[2])
    for line in sys.stdin.buffer:
        if (written := answer(json.loads(line), said)) is not None:
            if "chatty" in sys.argv:
                sys.stdout.buffer.write(b"starting \xff ...\n")
            sys.stdout.buffer.write(written + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
