"""What a server sends that the client library cannot read: the call that it answers ends, and the connection goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from workers.source_connection import Connection
from workers.source_pool import SourcePool
from workers.sources import MCPServer
from workers.tools import ToolError

# A server that writes each answer as it stands here, with the call's id in place of ID, after a line that is none.
SERVER = r"""
import json, sys
ANSWERS = {
    "initialize": '{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}',
    "tools/list": '{"tools":[]}',
    "half": r'{"content":[{"type":"text","text":"cut \ud83d here"}]}',
    "whole": r'{"content":[{"type":"text","text":"\ud83d\ude00"}]}',
    "number": "5",
}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        name = asked["params"]["name"] if asked["method"] == "tools/call" else asked["method"]
        said = f'"result":{ANSWERS[name]}' if name in ANSWERS else '"error":{"code":-32601,"message":"no"}'
        print("a line of a log")
        print('{"jsonrpc":"2.0","id":' + json.dumps(asked["id"]) + "," + said + "}", flush=True)
"""


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    pool = SourcePool()
    yield await pool.take(MCPServer("raw", command=sys.executable, args=["-c", SERVER]).endpoint)
    await pool.close()


@pytest.mark.parametrize(("tool", "text"), [("half", "cut \ud83d here"), ("whole", "\U0001f600")])
async def test_half_a_character_is_no_reason_to_wait(connection: Connection, tool: str, text: str) -> None:
    async with asyncio.timeout(10):
        result = await connection.call(tool, {})
    assert [block.model_dump()["text"] for block in result.content] == [text]


async def test_an_answer_that_is_no_message_fails_its_call_alone(connection: Connection) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(ToolError, match="no message"):
            await connection.call("number", {})
        result = await connection.call("whole", {})
    assert not result.is_error
