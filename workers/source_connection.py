"""A connection to an MCP server, on the official client; beside `workers.source_incoming` nothing else imports that.

One task owns a connection, since the client's task groups must be left where they were entered. Others call through it, and it is
theirs until it has `ended`, by its server or by us.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    CallToolResult,
    Implementation,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from workers.source_incoming import Incoming
from workers.sources import Endpoint, SourceError
from workers.tools import ToolError
from workers.version import installed_version

_CLOSE_S: Final = 5.0
"""Seconds in which a server that is left over HTTP may say goodbye. A program has its own, and is killed after them."""

_PAGES: Final = 100
_EVENT_LIMIT: Final = 16 * 2**20
_ERROR_LIMIT: Final = 2000


@dataclass
class _Exchange:
    """What the network said to one user of a connection; the client library hands on only some of it."""

    status: int | None = None
    error: Exception | None = None


_EXCHANGE: Final[ContextVar[_Exchange | None]] = ContextVar("turnstream_mcp_exchange", default=None)


class _Quiet(logging.Filter):
    """Drops what the client library logs for us: it holds addresses, headers and messages."""

    def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002 - who logs is what counts
        return _EXCHANGE.get() is None


_quiet: Final = _Quiet()


def _silence() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in ("mcp", "client", "httpx2", "httpcore2"):
            logging.getLogger(name).addFilter(_quiet)  # which a logger takes once


@contextmanager
def _exchange() -> Iterator[_Exchange]:
    exchange = _Exchange()
    before = _EXCHANGE.set(exchange)
    try:
        yield exchange
    finally:
        _EXCHANGE.reset(before)


class _Http(httpx2.AsyncClient):
    """Notes how requests went, and answers one that reached nobody with 503: the library would end the connection with it."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        exchange = _EXCHANGE.get()
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as failed:
            if exchange is not None:
                exchange.error = failed
            return httpx2.Response(503, request=request)
        if exchange is not None and request.method == "POST":
            exchange.status = response.status_code
        return response


@asynccontextmanager
async def _transport(endpoint: Endpoint, ended: asyncio.Event) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        if endpoint.url is not None:
            # Calls and the streams they answer on may last; whoever waits for them has a clock.
            timeout = httpx2.Timeout(None, connect=endpoint.timeout)
            limits = httpx2.Limits(max_connections=None)
            client = _Http(headers=dict(endpoint.headers), timeout=timeout, limits=limits)
            http = await stack.enter_async_context(client)
            over = streamable_http_client(endpoint.url, http_client=http, max_sse_event_size=_EVENT_LIMIT)
        else:
            server = StdioServerParameters(
                command=endpoint.command or "", args=list(endpoint.args), env=dict(endpoint.env), cwd=endpoint.cwd
            )
            # Bytes that are no UTF-8 come as halves of characters (workers/source_incoming.py); the library's own ways end the
            # connection, or replace them silently.
            server = server.model_copy(update={"encoding_error_handler": "surrogateescape"})
            over = stdio_client(server, errlog=sys.stderr if _has_file(sys.stderr) else sys.__stderr__ or sys.stderr)
        incoming, outgoing = await stack.enter_async_context(over)
        yield Incoming(incoming, ended), outgoing


def _has_file(stream: Any) -> bool:
    try:
        return isinstance(stream.fileno(), int)
    except (AttributeError, OSError, ValueError):
        return False


class Connection:
    """A connection that is being opened, open, or ended.

    `stale`: its server says that its tools have changed. `broken`: set by a user whom it failed, so that nobody new gets it.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        _silence()
        self.stale = False
        self.broken = False
        self.listing: tuple[Tool, ...] = ()
        self._endpoint = endpoint
        self._ended = asyncio.Event()
        self._relisted = asyncio.Event()
        self._client: Client | None = None
        self._listed = asyncio.Lock()
        self._scope = anyio.CancelScope()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may have no waiter
        # In a context of its own: it outlives the turn that it is opened for.
        self.task = asyncio.create_task(self._own(), name="mcp connection", context=Context())

    @property
    def ended(self) -> bool:
        """Whether no call can be made any more."""
        return self._ended.is_set() or self.task.done()

    async def opened(self) -> None:
        """Wait until it is open. Raises `SourceError`."""
        await asyncio.shield(self._ready)

    def close(self) -> None:
        """Begin to close; `task` ends when it is closed, within seconds."""
        self._ended.set()
        if self._client is None:
            self._scope.cancel()

    async def _own(self) -> None:
        late = asyncio.get_running_loop().call_later(self._endpoint.timeout, self._too_late)
        with _exchange() as exchange:
            try:
                with self._scope:
                    async with AsyncExitStack() as stack:
                        await self._open(stack)
                        late.cancel()
                        self._ready.set_result(None)
                        await self._ended.wait()
                        self._scope.deadline = anyio.current_time() + _CLOSE_S
            except Exception as failed:  # noqa: BLE001 - whatever the client raises, its users hear of it
                self._fail(_failure(failed, exchange))
            finally:
                late.cancel()
                self._ended.set()
                self._fail(SourceError("its connection was closed"))

    def _too_late(self) -> None:
        self._fail(SourceError(f"it did not answer within {self._endpoint.timeout:g} s", "timeout"))
        self.close()

    def _fail(self, failed: SourceError) -> None:
        if not self._ready.done():
            self._ready.set_exception(failed)

    async def _open(self, stack: AsyncExitStack) -> None:
        client = Client(
            _transport(self._endpoint, self._ended),
            cache=None,  # a listing is kept here until its server says that it changed
            client_info=Implementation(name="turnstream", version=installed_version()),
            message_handler=self._heard,
        )
        await stack.enter_async_context(client)
        self.listing = await _list(client)
        self._client = client
        tools = client.server_capabilities.tools
        if tools is not None and tools.list_changed and client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._follow, client)

    async def _heard(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.stale = True

    async def _follow(self, client: Client) -> None:
        """Hear of changed tools: newer servers tell only those who ask. When that is lost, the next listing asks anew."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self.stale = True
            except (MCPError, TimeoutError):
                return  # it does not tell after all
            except SubscriptionLost:
                pass
            self._relisted.clear()
            self.stale = True
            await self._relisted.wait()

    async def refresh(self) -> None:
        """List the tools again if they have changed. Raises `SourceError`."""
        async with self._listed:
            if not self.stale or self._client is None:
                return
            self.stale = False
            with _exchange() as exchange:
                try:
                    async with asyncio.timeout(self._endpoint.timeout):
                        self.listing = await _list(self._client)
                    self._relisted.set()
                except Exception as failed:  # noqa: BLE001 - as in its opening
                    self.stale = True
                    raise _failure(failed, exchange) from None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool. Cancelling tells the server. Raises `ToolError`, and `SourceError` when the source cannot be used."""
        if self._client is None or self.ended:
            raise SourceError("its connection had ended", "unreachable", unsent=True)
        with _exchange() as exchange:
            try:
                return await self._client.call_tool(name, dict(arguments))
            except MCPError as failed:
                modern = self._client.protocol_version in MODERN_PROTOCOL_VERSIONS
                raise _call_failure(failed, exchange, modern=modern) from None
            except ValidationError:
                raise ToolError("the server answered with what is no tool result") from None
            except RuntimeError as failed:
                # The client checks a result against the schema that the tool declares; what it says quotes both.
                if "structured content" in str(failed) or "schema" in str(failed):
                    raise ToolError(
                        "the server returned a result that does not fit the tool's own output schema"
                    ) from None
                raise _failure(failed, exchange) from None
            except Exception as failed:  # noqa: BLE001 - whatever the client raises is no fault of the agent's code
                raise _failure(failed, exchange) from None


async def _list(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except ValidationError as bad:
            first = ".".join(str(part) for part in bad.errors(include_input=False, include_url=False)[0]["loc"])
            raise SourceError(f"its list of tools is not valid at {first or 'its top'}", "invalid_catalog") from None
        except MCPError as failed:
            if failed.code == METHOD_NOT_FOUND and client.server_capabilities.tools is None:
                return ()
            raise
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools)
    raise SourceError(f"its list of tools has no end after {_PAGES} pages", "invalid_catalog")


def _leaf(error: BaseException) -> BaseException:
    """The first error of a group that is none itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _failure(failed: BaseException, exchange: _Exchange) -> SourceError:
    """Why a source cannot be used. Nothing that the server said is in it: servers quote credentials."""
    error = _leaf(failed)
    if isinstance(error, SourceError):
        return error
    if exchange.status in (401, 403):
        return _rejected(exchange)
    if isinstance(error, (MCPError, httpx2.TransportError)) and exchange.error is not None:
        error = exchange.error
    code = error.code if isinstance(error, MCPError) else None
    if code == REQUEST_TIMEOUT or isinstance(error, (httpx2.TimeoutException, TimeoutError)):
        return SourceError("it did not answer in time", "timeout")
    if code == CONNECTION_CLOSED:
        return SourceError("its connection was closed", "unreachable")
    if isinstance(error, (httpx2.TransportError, OSError)):
        return SourceError(f"it cannot be reached ({type(error).__name__})", "unreachable")
    if isinstance(error, (MCPError, ValidationError)):
        status = f"HTTP {exchange.status}" if (exchange.status or 0) >= 300 else "an error"
        return SourceError(f"the server answered with {status}", "request_failed")
    return SourceError(f"the client failed with {type(error).__name__}")


def _rejected(exchange: _Exchange) -> SourceError:
    said = f"the server refused the credentials (HTTP {exchange.status})"
    return SourceError(said, "credential_rejected", unsent=exchange.status == 401)


def _call_failure(failed: MCPError, exchange: _Exchange, *, modern: bool) -> SourceError | ToolError:
    if exchange.status in (401, 403):
        return _rejected(exchange)
    if isinstance(exchange.error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        return SourceError("it cannot be reached", "unreachable", unsent=True)
    if exchange.status == 404 and not modern:  # older servers have sessions, which end when they are started anew
        return SourceError("the server has forgotten the session", "unreachable", unsent=True)
    if exchange.error is not None or failed.code == CONNECTION_CLOSED:
        return SourceError("its connection was lost", "unreachable")
    if failed.code == PARSE_ERROR:  # the client's own message quotes what it could not read
        return ToolError("the server answered with what is no message")
    if (exchange.status or 0) >= 400 and failed.message == "Server returned an error response":
        return ToolError(f"the server answered with HTTP {exchange.status}")
    return ToolError(failed.message[:_ERROR_LIMIT])
