"""Where the embedded broker differs from a real one: each known difference is here, and a new one fails (F45).

No claim about blocking, scripts, expiry or cancellation rests on the embedded broker alone; `broker/embedded.py` lists how each
difference is handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.exceptions as redis_errors

from broker.broker import Broker

Operation = Callable[[Broker], Awaitable[Any]]


def script(body: str, *values: str) -> Operation:
    async def run(broker: Broker) -> Any:
        return await broker.commands.command("EVAL", body, 1, f"{broker.settings.prefix}k", *values)

    return run


async def stream_replies(broker: Broker) -> Any:
    key = f"{broker.settings.prefix}s"
    await broker.commands.command("XADD", key, "1-5", "e", "a")
    await broker.commands.command("XADD", key, "2-5", "e", "b")
    found = await broker.commands.command("XRANGE", key, "(1-5", "+", "COUNT", 10)
    await broker.commands.command("DEL", key)
    return found


async def lower_stream_id(broker: Broker) -> Any:
    key = f"{broker.settings.prefix}s"
    await broker.commands.command("XADD", key, "2-5", "e", "a")
    try:
        await broker.commands.command("XADD", key, "1-5", "e", "b")
    except redis_errors.ResponseError as refused:
        return type(refused).__name__
    finally:
        await broker.commands.command("DEL", key)
    return "taken"


async def info(broker: Broker) -> Any:
    try:
        return "redis_version" in str(await broker.commands.command("INFO", "server"))
    except redis_errors.ResponseError:
        return "refused"


async def cancelled_pop(broker: Broker) -> Any:
    """A pop that was cancelled, then a push: how many tokens are left."""
    key = f"{broker.settings.prefix}w"
    connection = broker.connection(timeout=None)
    await connection.connect()  # type: ignore[no-untyped-call] # redis-py has no types here
    await connection.send_command("BLPOP", key, 5)
    popping = asyncio.create_task(connection.read_response())
    await asyncio.sleep(0.05)
    popping.cancel()
    await asyncio.gather(popping, return_exceptions=True)
    await connection.disconnect(nowait=True)
    await asyncio.sleep(0.05)
    await broker.commands.command("LPUSH", key, "1")
    await asyncio.sleep(0.05)
    left = await broker.commands.command("LLEN", key)
    await broker.commands.command("DEL", key)
    return left


SAME: dict[str, tuple[Operation, Any]] = {
    "a missing value is false in Lua": (script("return tostring(redis.call('GET', KEYS[1]))"), b"false"),
    "an array ends at nil": (script("return {1, 2, nil, 4}"), [1, 2]),
    "a fraction is cut": (script("return 3.9"), 3),
    "bytes pass through": (script("return ARGV[1]", '{"a":"é\\u0000/"}'), '{"a":"é\\u0000/"}'.encode()),
    "large integers format whole": (script("return string.format('%.0f', 1796007237646 + 1)"), b"1796007237647"),
    "a score keeps its digits": (
        script(
            "redis.call('ZADD', KEYS[1], '1796007237646', 'm') local s = redis.call('ZSCORE', KEYS[1], 'm') "
            "redis.call('DEL', KEYS[1]) return s"
        ),
        b"1796007237646",
    ),
    "patterns find the shard": (script("return string.match('ts:{s12}:session:x', '^(.-{s%d+}:)')"), b"ts:{s12}:"),
    "TIME before a write is fine": (
        script("local t = redis.call('TIME') redis.call('SET', KEYS[1], t[1]) return redis.call('DEL', KEYS[1])"),
        1,
    ),
    "an entry is an id and its fields": (stream_replies, [[b"2-5", [b"e", b"b"]]]),
    "a lower stream id is refused": (lower_stream_id, "ResponseError"),
}

DIFFERENT: dict[str, tuple[Operation, Any, Any]] = {
    # operation, embedded, real
    "INFO": (info, "refused", True),
    "an empty list through cjson": (
        script("return cjson.encode(cjson.decode('{\"a\":[]}'))"),
        b'{"a":[]}',
        b'{"a":{}}',
    ),
    "a cancelled BLPOP swallows the next token": (cancelled_pop, 0, 1),
}


@pytest.mark.parametrize("name", SAME)
async def test_both_brokers_answer_the_same(name: str, broker: Broker) -> None:
    operation, expected = SAME[name]

    assert await operation(broker) == expected


@pytest.mark.parametrize("name", DIFFERENT)
async def test_a_known_difference_is_as_it_was(name: str, embedded_broker: Broker, redis_broker: Broker) -> None:
    operation, embedded, real = DIFFERENT[name]

    assert await operation(embedded_broker) == embedded
    assert await operation(redis_broker) == real
