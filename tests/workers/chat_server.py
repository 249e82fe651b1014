"""A local server of chat completions: each request gets the reply that is due, in pieces whose pace the test decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from turns import Gate

CUT: Final = object()
"""The connection breaks here."""

Piece = bytes | float | Gate | object


@dataclass(frozen=True)
class Answer:
    """An HTTP answer. A piece of it is bytes, seconds to wait, a gate, or `CUT`."""

    pieces: Sequence[Piece]
    status: int = 200
    media_type: str = "text/event-stream; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


def event(data: object) -> bytes:
    """One event of a stream."""
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


DONE: Final = event(b"[DONE]")


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chunk of a reply."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]
    known = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return event({**known, "choices": choices, **more})


def usage(read: int, written: int, **more: Any) -> bytes:
    """The chunk of a reply's usage."""
    counted = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    return chunk(usage={**counted, **more})


def saying(*texts: str) -> list[Piece]:
    """A whole reply of text, as OpenAI writes it."""
    return [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        *(chunk({"content": text}) for text in texts),
        chunk({}, "stop"),
        usage(7, len(texts)),
        DONE,
    ]


def calling(*calls: tuple[str, str, str]) -> list[Piece]:
    """A whole reply of tool calls (id, name, arguments), as OpenAI writes it: in fragments."""
    pieces: list[Piece] = [chunk({"role": "assistant", "content": None})]
    for at, (call_id, name, arguments) in enumerate(calls):
        first = {"index": at, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        pieces.append(chunk({"tool_calls": [first]}))
        for start in range(0, len(arguments), 5):
            more = {"index": at, "function": {"arguments": arguments[start : start + 5]}}
            pieces.append(chunk({"tool_calls": [more]}))
    return [*pieces, chunk({}, "tool_calls"), usage(7, 3), DONE]


def refusing(status: int, error: object, **headers: str) -> Answer:
    """An answer that is an error, as JSON or as text."""
    body = error.encode() if isinstance(error, str) else json.dumps(error).encode()
    media_type = "text/html" if isinstance(error, str) else "application/json"
    return Answer([body], status, media_type, {name.replace("_", "-"): text for name, text in headers.items()})


class ChatServer:
    """The server. `check` refuses a request body by what it returns; requests past the last answer are echoed."""

    def __init__(self) -> None:
        self.answers: list[Answer | Sequence[Piece]] = []
        self.asked: list[Asked] = []
        self.check: Callable[[dict[str, Any]], str | None] = lambda _: None
        self.connections = 0
        self.hung_up = asyncio.Event()
        self.url = ""
        self._open: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> int:
        """How many connections are open."""
        return len(self._open)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        asked = await _read_request(reader)
        self.asked.append(asked)
        wrong = self.check(asked.body)
        answer = refusing(400, {"error": {"message": wrong, "type": "invalid"}}) if wrong else self._due(asked)
        headers = {"content-type": answer.media_type, "transfer-encoding": "chunked", **answer.headers}
        lines = [f"HTTP/1.1 {answer.status} X", *(f"{name}: {text}" for name, text in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        leaving = asyncio.create_task(self._watch(reader))
        try:
            for piece in answer.pieces:
                match piece:
                    case b"":
                        pass
                    case bytes():
                        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        await writer.drain()
                    case float():
                        await asyncio.sleep(piece)
                    case Gate():
                        await piece.wait()
                    case _:
                        return False
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        return not reader.at_eof()

    async def _watch(self, reader: asyncio.StreamReader) -> None:
        """Note that the client hung up while it was answered; nothing else comes from it meanwhile."""
        if await reader.read(1) == b"":
            self.hung_up.set()

    def _due(self, asked: Asked) -> Answer:
        if not self.answers:
            return Answer(saying(json.dumps(asked.body["messages"][-1]["content"])))
        due = self.answers.pop(0)
        return due if isinstance(due, Answer) else Answer(due)

    async def close(self) -> None:
        """End every connection."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> Asked:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Asked(first.split(" ")[1], headers, json.loads(body))


@asynccontextmanager
async def chat_server() -> AsyncIterator[ChatServer]:
    """Run a server in this loop."""
    chat = ChatServer()
    server = await asyncio.start_server(chat.serve, "127.0.0.1", 0)
    chat.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield chat
    finally:
        server.close()
        await chat.close()
        await server.wait_closed()
