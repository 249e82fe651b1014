"""The proxy of the broker's tests does to a connection what it says, no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from eventually import eventually
from proxy import Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A server that sends back each line, in capitals."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while line := await reader.readline():
                writer.write(line.upper())
        except OSError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with echo() as port, Proxy(port) as opened:
        yield opened


@asynccontextmanager
async def dialled(proxy: Proxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def ask(streams: Streams, word: str) -> str:
    streams[1].write(f"{word}\n".encode())
    async with asyncio.timeout(5):
        return (await streams[0].readline()).decode().strip()


async def test_it_passes_everything(proxy: Proxy) -> None:
    async with dialled(proxy) as streams:
        assert await ask(streams, "one") == "ONE"
        large = "x" * 60_000
        assert await ask(streams, large) == large.upper()
    await eventually(lambda: proxy.links, "the link ends with its client", until=lambda links: not links)


async def test_a_cut_is_a_reset_and_a_new_connection_is_whole(proxy: Proxy) -> None:
    async with dialled(proxy) as streams:
        assert await ask(streams, "one") == "ONE"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await ask(streams, "two")
    async with dialled(proxy) as streams:
        assert await ask(streams, "three") == "THREE"


async def test_a_cut_in_the_midst_of_a_reply(proxy: Proxy) -> None:
    async with dialled(proxy) as streams:
        assert await ask(streams, "one") == "ONE"
        proxy.cut(after=len("two\n") + 2)
        assert await ask(streams, "two") == "TW"


async def test_what_is_held_comes_later_and_what_is_swallowed_never(proxy: Proxy) -> None:
    async with dialled(proxy) as streams:
        assert await ask(streams, "one") == "ONE"
        (link,) = proxy.links

        proxy.hold("replies")
        streams[1].write(b"two\n")
        await eventually(lambda: bytes(link.waiting("replies")), "the reply waits", until=lambda told: told == b"TWO\n")
        proxy.go_on()
        assert await ask(streams, "three") == "TWO"
        assert await streams[0].readline() == b"THREE\n"

        proxy.swallow("requests")
        streams[1].write(b"four\n")
        await eventually(lambda: link.lost, "the request is lost", until=lambda lost: lost == len(b"four\n"))
        proxy.go_on()
        assert await ask(streams, "five") == "FIVE"


async def test_what_is_held_of_a_client_that_is_gone_arrives_late() -> None:
    heard = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read() == b"late":
            heard.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Proxy(server.sockets[0].getsockname()[1]) as proxy:
        async with dialled(proxy) as streams:
            (link,) = await eventually(lambda: proxy.links, "it is connected")
            link.hold("requests")
            streams[1].write(b"late")
            await eventually(lambda: bytes(link.waiting("requests")), "it waits")
        await eventually(lambda: len(proxy.ends), "the client is gone", until=lambda ends: ends == 1)
        assert not heard.is_set()
        link.go_on()
        async with asyncio.timeout(5):
            await heard.wait()


async def test_it_refuses_and_is_turned_to_another_broker(proxy: Proxy) -> None:
    proxy.refusing = True
    async with dialled(proxy) as streams:
        with pytest.raises(ConnectionResetError):
            await ask(streams, "one")
    proxy.refusing = False
    async with echo() as other:
        proxy.target = other
        async with dialled(proxy) as streams:
            assert await ask(streams, "two") == "TWO"
