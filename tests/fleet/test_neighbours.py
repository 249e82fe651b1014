"""Two deployments on one server, with the same ids everywhere, see nothing of each other (F46)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from leaks import drop_keys, leaked_keys
from real_server import RealServer

from broker import queue, transitions
from broker.broker import Broker
from broker.contents import Message
from broker.live import Hub
from broker.protocol.events import Event
from broker.protocol.wire import entry_tail
from broker.settings import Settings
from broker.transitions import SessionOptions

SESSION = "0-11111111-2222-3333-4444-555555555555"


@asynccontextmanager
async def deployment(url: str, prefix: str) -> AsyncIterator[Broker]:
    broker = Broker(Settings(redis_url=url, prefix=prefix))
    await drop_keys(broker.client, prefix)
    try:
        yield broker
        assert await leaked_keys(broker.client, prefix) == []
    finally:
        await drop_keys(broker.client, prefix)
        await broker.close()


def said(text: str) -> Message:
    entry = {"type": "message", "id": "u", "role": "user", "content": [{"type": "text", "text": text}]}
    return Message(tails=[entry_tail("entryCompleted", entry)], digest=text)


@pytest.mark.parametrize(("databases", "prefixes"), [((0, 0), ("n1:", "n2:")), ((0, 1), ("n:", "n:"))])
async def test_neighbours_see_nothing_of_each_other(
    databases: tuple[int, int], prefixes: tuple[str, str], real_server: RealServer
) -> None:
    base = real_server.url.rsplit("/", 1)[0]
    async with (
        deployment(f"{base}/{databases[0]}", prefixes[0]) as first,
        deployment(f"{base}/{databases[1]}", prefixes[1]) as second,
    ):
        for broker in (first, second):
            await transitions.open_session(broker, SESSION, SessionOptions(agent="a", queue="a", digest="d"))
        heard: list[Event] = []
        hub = Hub(second)

        async def listen() -> None:
            async for event in hub.follow(SESSION):
                heard.append(event)  # noqa: PERF401 - what was heard so far is looked at meanwhile

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.2)

        sent = await transitions.start(first, SESSION, said("for the first"), key="k", join=False)
        assert isinstance(sent, transitions.Sent)

        assert (await transitions.tails(second, [SESSION]))[0] == "0-0"
        key = second.keys.queue(0, "a")
        assert (await queue.claim(second, key, worker="w", slots=9, lease=9, budget=5)).jobs == []
        mine = await queue.claim(first, first.keys.queue(0, "a"), worker="w", slots=9, lease=9, budget=5)
        assert len(mine.jobs) == 1
        other = await transitions.start(second, SESSION, said("for the second"), key="k", join=False)
        assert isinstance(other, transitions.Sent)
        assert other.turn != sent.turn
        await asyncio.sleep(0.2)
        assert {event.turn_id for event in heard} == {other.turn, None}
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await hub.close()
