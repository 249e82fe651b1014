"""The one subscription connection of a process, owned by one task; what to listen to is kept here, not by the client.

Channels are asked for through a set that the task empties, so that what is wanted in one tick travels in one command.
When the connection drops, it is opened again with back-off and every wanted channel is subscribed anew; each
confirmation is reported, since what was published before it may have been missed. A silent connection is pinged, so
that a half-open one is noticed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final

import redis.asyncio as aioredis
import redis.exceptions as redis_errors

from broker.broker import Broker
from broker.pipeline import TRANSIENT

_logger = logging.getLogger(__name__)

PING_S: Final = 5.0
"""Silence after which the connection is pinged."""

_SUSPECTED_S: Final = 1.0
"""How long a ping may take once another connection of this process was found to be half-open."""

_TICK_S: Final = 1.0
_CHANNELS_AT_ONCE: Final = 500
_BACKOFF_S: Final = (0.05, 1.0)


class Feed:
    """Messages of the wanted channels: `heard(channel, message)`; `confirmed(channel)` after each subscription.

    When no connection could be had for the setting `reconnect_budget`, `gave_up(reason)` is called, and nothing is
    wanted any more; the next `want` tries again.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        heard: Callable[[str, bytes], None],
        confirmed: Callable[[str], None],
        gave_up: Callable[[str], None],
    ) -> None:
        self._broker = broker
        self._heard = heard
        self._confirmed = confirmed
        self._gave_up = gave_up
        self._wanted: set[str] = set()
        self._asked: dict[str, bool] = {}
        self._asking = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None
        self._last_word = 0.0

    def want(self, channel: str) -> None:
        """Subscribe to a channel; connects when this is the first one."""
        self._wanted.add(channel)
        self._asked[channel] = True
        self._asking.set()
        if self._owner is None:
            self._owner = asyncio.create_task(self._own(), name="broker subscription")

    def forget(self, channel: str) -> None:
        """Unsubscribe from a channel; the connection is closed after the last one."""
        self._wanted.discard(channel)
        self._asked[channel] = False
        self._asking.set()

    async def close(self) -> None:
        """Close the connection and end its tasks."""
        self._wanted.clear()
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.gather(self._owner, return_exceptions=True)

    async def _own(self) -> None:
        clock = asyncio.get_running_loop().time
        wait, most = _BACKOFF_S
        away_since: float | None = None
        try:
            while self._wanted:
                opened = clock()
                try:
                    await self._serve()
                except (*TRANSIENT, redis_errors.RedisError) as away:
                    if self._last_word > opened or away_since is None:  # it served before it failed
                        away_since, wait = clock(), _BACKOFF_S[0]
                    if clock() - away_since + wait > self._broker.settings.reconnect_budget:
                        self._wanted.clear()
                        self._gave_up(f"the broker could not be reached ({type(away).__name__})")
                        away_since = None
                        continue
                    # Half of the wait is random, so that a fleet does not come back in step.
                    await asyncio.sleep(wait * (0.5 + random.random() / 2))  # noqa: S311 - jitter, not a secret
                    wait = min(wait * 2, most)
        except Exception as fault:  # nothing may end here unseen: observers would wait for ever
            _logger.exception("the subscription stopped: a fault")
            self._wanted.clear()
            self._gave_up(f"observing stopped by a fault ({type(fault).__name__})")
        finally:
            self._owner = None

    async def _serve(self) -> None:
        """Listen on one connection until it fails or nothing is wanted any more."""
        settings = self._broker.settings
        connection = self._broker.connection(timeout=None)
        tasks: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.timeout(settings.connect_timeout + settings.socket_timeout):
                await connection.connect()  # type: ignore[no-untyped-call] # redis-py has no types here
            self._asked = dict.fromkeys(self._wanted, True)
            self._asking.set()
            clock = asyncio.get_running_loop().time
            connected = clock()
            tasks = {
                asyncio.create_task(self._listen(connection), name="broker subscription: listen"),
                asyncio.create_task(self._ask(connection, connected), name="broker subscription: ask"),
            }
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # also when cancelled meanwhile
                if self._broker.embedded is not None and connection.is_connected:
                    await connection.send_command("UNSUBSCRIBE")  # fakeredis keeps what a closed connection subscribed
                await connection.disconnect(nowait=True)

    async def _listen(self, connection: aioredis.Connection) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            reply: Any = await connection.read_response(disconnect_on_error=False)
            self._last_word = clock()
            match reply:
                case [b"message", channel, message]:
                    self._heard(channel.decode(), message)
                case [b"subscribe", channel, _]:
                    self._confirmed(channel.decode())
                case _:
                    pass  # a pong, or an unsubscription

    async def _ask(self, connection: aioredis.Connection, connected: float) -> None:
        clock = asyncio.get_running_loop().time
        answer_s = patience = self._broker.settings.socket_timeout
        pinged: float | None = None
        suspicions = self._broker.suspicions
        while self._wanted:
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._asking.wait()
            except TimeoutError:
                pass
            self._asking.clear()
            asked, self._asked = self._asked, {}
            async with asyncio.timeout(answer_s):
                for command, on in (("SUBSCRIBE", True), ("UNSUBSCRIBE", False)):
                    channels = [channel for channel, wanted in asked.items() if wanted is on]
                    for at in range(0, len(channels), _CHANNELS_AT_ONCE):
                        await connection.send_command(command, *channels[at : at + _CHANNELS_AT_ONCE])
                last_word = max(self._last_word, connected)
                if pinged is not None and last_word >= pinged:
                    pinged = None
                suspected = self._broker.suspicions != suspicions
                if pinged is None and (suspected or clock() - last_word >= PING_S):
                    pinged, suspicions = clock(), self._broker.suspicions
                    patience = _SUSPECTED_S if suspected else answer_s
                    await connection.send_command("PING")
            if pinged is not None and clock() - pinged > patience:
                raise redis_errors.ConnectionError("the subscription connection is half-open: a ping got no answer")
