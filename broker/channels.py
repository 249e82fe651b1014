"""Connections that wait: a bell (a blocking pop) and a subscription. Each is one connection of its own, owned by one task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from broker.broker import Broker


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
            reply = await connection.read_response()
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
            kind, channel, body = await connection.read_response()
            if kind == b"subscribe":
                confirmed += 1
                if confirmed == len(channels):
                    yield None
            elif kind == b"message":
                yield channel.decode(), body
    finally:
        await connection.disconnect(nowait=True)
