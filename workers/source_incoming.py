"""What a tool source's server sends, before the client library reads it.

The library drops an answer that it cannot read, and whoever waits for it would wait until the call's time is up.
"""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

from broker.protocol.values import clean_json


class Incoming:
    """A transport's stream of messages, which says when it has ended. Answers that could not be read are mended, or errors."""

    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        """As the stream's."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message. Raises as the stream does."""
        try:
            message = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended.set()
            raise
        return mended(message) if isinstance(message, ValidationError) else message

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Incoming:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def mended(unread: ValidationError) -> SessionMessage | ValidationError:
    """Return the message that could not be read for half characters, as JavaScript writes in escapes, or bytes of no UTF-8.

    They stay in it, so that whoever stores it says that they were replaced. An answer that is none even so is an error of its
    call. What is no answer, such as a line of a log, stays as it is.
    """
    sent = _sent(unread)
    if not isinstance(sent, dict):
        return unread
    try:
        clean_json(sent)  # what else ours may not hold
        return SessionMessage(jsonrpc_message_adapter.validate_python(sent, by_name=False))
    except (ValueError, RecursionError):
        call = sent.get("id")
        if isinstance(call, bool) or not isinstance(call, (str, int)) or "method" in sent:
            return unread
    error = ErrorData(code=PARSE_ERROR, message="the server answered with what is no message")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=call, error=error))


def _sent(unread: ValidationError) -> Any:
    """What the server sent, as JSON that may hold what ours may not; None for what is no JSON."""
    for wrong in unread.errors(include_url=False):
        sent = wrong["input"]
        if wrong["type"] not in ("json_invalid", "string_unicode"):
            if isinstance(sent, dict) and "jsonrpc" in sent:
                return sent
            continue
        try:
            return json.loads(sent)
        except (ValueError, RecursionError):
            return None
    return None
