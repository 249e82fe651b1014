"""Mistral's models, by Mistral's own client."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from inspect import signature
from typing import TYPE_CHECKING

from broker.protocol.values import JsonValue, loads
from workers.models import ModelDelta, ModelError, ModelRequest
from workers.providers.clients import CONNECT_S, LoopClients, checked_timeout, checked_url, host_of, need_extra
from workers.providers.content import MEDIA, Medium, PartWriter
from workers.providers.failures import Failures
from workers.providers.reply import Chunk, ReplyReader, deltas
from workers.providers.request import chat_arguments, wire_names

if TYPE_CHECKING:
    import httpx2
    from mistralai.client import Mistral
    from mistralai.client.errors import MistralError
    from mistralai.client.models import CompletionEvent
    from mistralai.client.utils.eventstreaming import EventStreamAsync


class MistralModel:
    """A model of Mistral's.

    - `base_url`: another server that speaks Mistral's API; default Mistral's own.
    - `api_key`: default `MISTRAL_API_KEY`.
    - `timeout`: seconds of silence that end a call, in place of the worker's `model_timeout`; a slow stream is never cut.
    - `headers`: more headers of each request, for gateways.
    - `options`: more arguments of the client's `chat.stream_async`: `{"max_tokens": 1000, "safe_prompt": True}`.
    - `accepts`: the media that the model takes; of others it reads a line that names them.

    Raises `SdkError` without the extra `turnstream[mistral]`, `ValueError` for a base_url, a timeout or media that are none.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        options: Mapping[str, JsonValue] | None = None,
        accepts: Collection[Medium] = MEDIA,
    ) -> None:
        need_extra("mistral", "mistralai")
        self.name = name
        self.base_url = checked_url(base_url)
        self.timeout = checked_timeout(timeout)
        self._key = api_key
        self._headers = dict(headers or {})
        self._options = dict(options or {})
        self._writer = PartWriter("mistral", accepts)
        self._clients: LoopClients[Mistral] = LoopClients("mistralai.client.chat", self._open)

    def __repr__(self) -> str:
        where = f" at {host_of(self.base_url)}" if self.base_url else ""
        return f"MistralModel({self.name!r}{where})"

    def _open(self) -> tuple[Mistral, Callable[[], Awaitable[None]]]:
        import httpx2
        from mistralai.client import Mistral

        paces = httpx2.Timeout(self.timeout, connect=CONNECT_S, pool=None)

        async def pace(sent: httpx2.Request) -> None:
            # The library knows one number for everything, and takes five minutes when it is given none.
            sent.extensions["timeout"] = paces.as_dict()

        async def read_error(response: httpx2.Response) -> None:
            if response.is_error:
                await response.aread()  # the library trips over one without a body

        http = httpx2.AsyncClient(
            follow_redirects=True,
            limits=httpx2.Limits(max_connections=1000, max_keepalive_connections=100),
            event_hooks={"request": [pace], "response": [read_error]},
        )
        server = self.base_url.removesuffix("/v1") if self.base_url else None  # the library writes /v1 itself
        return Mistral(api_key=self._key, server_url=server, async_client=http), http.aclose

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the reply's deltas. Raises `ModelError`."""
        names = wire_names(request)
        failures = Failures(f"{self.name} at {host_of(self.base_url or 'https://api.mistral.ai')}")
        reader = ReplyReader(names, failures)
        client = await self._clients.get()
        arguments = chat_arguments(self.name, request, names, self._writer, strict=True)
        arguments |= {"http_headers": self._headers, **self._options}
        unknown = self._options.keys() - signature(client.chat.stream_async).parameters.keys()
        if unknown:
            raise failures.wrong(f"options: its client takes no {', '.join(sorted(unknown))}")
        try:
            async with (
                await client.chat.stream_async(**arguments) as events,
                aclosing(deltas(_read(events), reader)) as said,
            ):
                async for delta in said:
                    yield delta
        except ModelError:
            raise
        except Exception as error:
            known = self._failure(error, failures, begun=reader.begun)
            if known is None:
                raise
            raise known from None  # the error holds the request

    def _failure(self, error: Exception, failures: Failures, *, begun: bool) -> ModelError | None:
        """The failure that an error of the library is; None for what is no error of its."""
        import anyio
        import httpx2
        from mistralai.client import errors
        from mistralai.extra.exceptions import MistralClientException
        from pydantic import ValidationError

        match error:
            case errors.MistralError():
                return _answered(error, failures)
            case httpx2.TimeoutException() if not isinstance(error, httpx2.ConnectTimeout):
                return failures.silent(self.timeout)
            case errors.NoResponseError() | httpx2.RequestError() | ssl.SSLError() | anyio.EndOfStream():
                return failures.cut() if begun else failures.unavailable()
            case MistralClientException():
                return failures.no_key("the file of MISTRAL_SA_TOKEN_PATH cannot be used")
            case ValidationError():
                return failures.wrong(f"its client refuses {error.errors(include_input=False)[0]['loc'][0]}")
            case ValueError():  # a chunk that is no UTF-8
                return failures.cut()
            case _:
                return None


def _answered(error: MistralError, failures: Failures) -> ModelError:
    """The failure that an answer is which the library refused."""
    if error.status_code < 400:
        return failures.no_stream(error.headers.get("content-type", ""))
    return failures.refused(error.status_code, error.body, error.headers)


async def _read(events: EventStreamAsync[CompletionEvent]) -> AsyncGenerator[Chunk]:
    """Yield the chunks as the server wrote them. Raises the library's errors, and `ValueError` for what is no chunk.

    The library would make classes of its own for each chunk, which takes half a millisecond, and refuses one that lacks a field;
    so its stream is read again with a plainer decoder.
    """
    from mistralai.client.utils.eventstreaming import EventStreamAsync

    plain = EventStreamAsync(events.response, loads)
    async with aclosing(plain.generator) as read:
        async for event in read:
            match event:
                case {"data": {} as data}:
                    yield data
                case {"data": "[DONE]"}:
                    pass  # read on: only a connection whose answer was read whole can be used again
                case _:
                    raise ValueError("no chunk")
