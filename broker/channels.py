"""Connections that wait: a bell (a blocking pop) and a subscription. Each is one connection of its own, owned by one task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import redis.asyncio as aioredis
import redis.exceptions as redis_errors

from broker.broker import Broker
from broker.pipeline import refusal

PING_S: Final = 5.0
"""Silence after which a subscription is pinged: nothing else would tell that its connection is half-open."""


async def _read(connection: aioredis.Connection) -> Any:
    try:
        return await connection.read_response(disconnect_on_error=False)
    except redis_errors.ResponseError as refused:
        raise refusal(refused) from refused


async def pop_token(
    broker: Broker, keys: Sequence[str], seconds: float
) -> AsyncGenerator[tuple[str, str] | None, None]:
    """Yield each token popped from `keys`, with its key before it; None after `seconds` without one.

    Raises what a connection raises.
    """
    connection = broker.connection(timeout=seconds + broker.settings.socket_timeout)
    try:
        await connection.connect()  # type: ignore[no-untyped-call] # redis-py has no types here
        while True:
            await connection.send_command("BLPOP", *keys, seconds)
            reply = await _read(connection)
            yield (reply[0].decode(), reply[1].decode()) if reply else None
    finally:
        await connection.disconnect(nowait=True)


async def subscribe(broker: Broker, channels: Sequence[str]) -> AsyncGenerator[tuple[str, bytes] | None, None]:
    """Yield None once all channels are confirmed, then each message as (channel, body). Raises what a connection raises."""
    connection = broker.connection(timeout=None)
    try:
        await connection.connect()  # type: ignore[no-untyped-call] # redis-py has no types here
        await connection.send_command("SUBSCRIBE", *channels)
        confirmed = 0
        while True:
            match await _word(broker, connection):
                case [b"subscribe", _, _]:
                    confirmed += 1
                    if confirmed == len(channels):
                        yield None
                case [b"message", channel, body]:
                    yield channel.decode(), body
                case _:
                    pass  # a pong
    finally:
        await connection.disconnect(nowait=True)


async def _word(broker: Broker, connection: aioredis.Connection) -> Any:
    """The next word of a subscription; a silent one is pinged, and must answer."""
    if broker.embedded is not None:
        return await _read(connection)
    for patience in (PING_S, broker.settings.socket_timeout):
        try:
            async with asyncio.timeout(patience):
                return await _read(connection)
        except TimeoutError:
            await connection.send_command("PING")
    raise redis_errors.ConnectionError("the subscription connection is half-open: a ping got no answer")
