"""What a tool server writes that is no clean text (F43): a result all the same, at once, and flagged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest
from eventually import eventually
from sourcing import use
from turns import Steps, staged

from broker.broker import Broker
from workers.sources import MCPServer

SERVER: Final = Path(__file__).with_name("odd_server.py")


@pytest.mark.parametrize(
    ("said", "times", "shown"),
    [
        ("a\u2028b\u2029c\x85d".encode(), 1, "a\u2028b\u2029c\x85d"),
        (rb"nul \u0000, tab \t, \u2028", 1, "nul \x00, tab \t, \u2028"),
        (b"x", 1_000_000, "x" * 1_000_000),
        (rb"pair \ud83d\ude00", 1, "pair 😀"),
        (rb"half \ud83d.", 1, "half \ufffd."),
        (b"caf\xe9 \xff.txt", 1, "caf\ufffd \ufffd.txt"),
    ],
    ids=["separators", "escapes", "a megabyte in one line", "a pair", "half a pair", "not UTF-8"],
)
async def test_a_result_of_any_bytes(redis_broker: Broker, said: bytes, times: int, shown: str) -> None:
    server = MCPServer("odd", command=sys.executable, args=[str(SERVER), said.hex(), str(times)])
    async with staged(redis_broker, Steps([use("mcp.odd.say")]), mcps=[server]) as stage:
        await stage.send()
        assert (await eventually(stage.results, "the result is there", within=15)) == {"c1": shown}
        await stage.ended()

        (result,) = await stage.entries("toolResult")
        flagged = [record["source"] for record in await stage.records() if record["type"] == "notice"]
        assert flagged == ([f"entry:{result['id']}"] if "\ufffd" in shown else [])
        assert result["isError"] is False


async def test_lines_that_are_no_messages_are_passed_over(redis_broker: Broker) -> None:
    server = MCPServer("odd", command=sys.executable, args=[str(SERVER), b"said".hex(), "1", "chatty"])
    async with staged(redis_broker, Steps([use("mcp.odd.say")]), mcps=[server]) as stage:
        await stage.send()
        await stage.ended()
        assert await stage.results() == {"c1": "said"}
