"""Models behind a chat-completions server, by OpenAI's own client: OpenAI, vLLM, Ollama, llama.cpp, and many a gateway."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from broker.protocol.values import JsonValue
from workers.models import ModelDelta, ModelError, ModelRequest
from workers.providers.clients import CONNECT_S, LoopClients, checked_timeout, checked_url, host_of, need_extra
from workers.providers.content import MEDIA, Medium, PartWriter
from workers.providers.failures import Failures
from workers.providers.names import WireNames
from workers.providers.reply import Chunk, ReplyReader, deltas
from workers.providers.request import chat_arguments, wire_names

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream
    from openai.types.chat import ChatCompletionChunk


class OpenAIModel:
    """A model of a chat-completions server; by default OpenAI's.

    - `base_url`: another server's, such as `http://localhost:11434/v1`; default `OPENAI_BASE_URL`, else OpenAI.
    - `api_key`: default `OPENAI_API_KEY`; a server at a `base_url` may need none.
    - `timeout`: seconds of silence that end a call, in place of the worker's `model_timeout`; a slow stream is never cut.
    - `headers`: more headers of each request, for gateways.
    - `options`: more fields of each request, as the server names them: `{"max_completion_tokens": 1000}`.
    - `accepts`: the media that the model takes; of others it reads a line that names them.
    - `strict_order`: keep Mistral's rules of what may follow what, as vLLM does for Mistral's models, and some chat templates;
      by default only at mistral.ai.

    Raises `SdkError` without the extra `turnstream[openai]`, `ValueError` for a base_url, a timeout or media that are none.
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
        strict_order: bool | None = None,
    ) -> None:
        need_extra("openai", "openai")
        self.name = name
        self.base_url = checked_url(base_url)
        self.timeout = checked_timeout(timeout)
        self._key = api_key
        self._headers = dict(headers or {})
        self._options = dict(options or {})
        self._writer = PartWriter("openai", accepts)
        self._strict_order = strict_order
        self._clients: LoopClients[AsyncOpenAI] = LoopClients("openai.resources.chat.completions", self._open)

    def __repr__(self) -> str:
        where = f" at {host_of(self.base_url)}" if self.base_url else ""
        return f"OpenAIModel({self.name!r}{where})"

    def _open(self) -> tuple[AsyncOpenAI, Callable[[], Awaitable[None]]]:
        from openai import AsyncOpenAI, Timeout

        elsewhere = self.base_url or os.environ.get("OPENAI_BASE_URL")
        key = self._key or os.environ.get("OPENAI_API_KEY") or ("none" if elsewhere else None)
        client = AsyncOpenAI(
            api_key=key,
            base_url=self.base_url,
            timeout=Timeout(self.timeout, connect=CONNECT_S, pool=None),
            max_retries=0,  # the turn's own tries honour Retry-After, and show in its log
            default_headers=self._headers,
        )
        return client, client.close

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the reply's deltas. Raises `ModelError`."""
        names = wire_names(request)
        server = self.base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com"
        failures = Failures(f"{self.name} at {host_of(server)}")
        reader = ReplyReader(names, failures)
        try:
            client = await self._clients.get()
            async with (
                await client.chat.completions.create(**self._arguments(request, names)) as chunks,
                aclosing(deltas(_read(chunks, failures), reader)) as said,
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

    def _arguments(self, request: ModelRequest, names: WireNames) -> dict[str, Any]:
        """The client's arguments for a request."""
        strict = self._strict_order
        if strict is None:
            strict = f".{urlsplit(self.base_url or '').hostname}".endswith(".mistral.ai")
        arguments = chat_arguments(self.name, request, names, self._writer, strict=strict)
        return {**arguments, "stream": True, "stream_options": {"include_usage": True}, "extra_body": self._options}

    def _failure(self, error: Exception, failures: Failures, *, begun: bool) -> ModelError | None:
        """The failure that an error of the library is; None for what is no error of its."""
        import openai

        match error:
            case openai.APITimeoutError():
                connecting = type(error.__cause__).__name__ == "ConnectTimeout"
                return failures.unavailable() if connecting else failures.silent(self.timeout)
            case openai.APIConnectionError():
                return failures.cut() if begun else failures.unavailable()
            case openai.APIStatusError():
                return failures.refused(error.status_code, error.body, error.response.headers)
            case openai.APIError():
                return failures.within(error.body)
            case openai.OpenAIError():
                return failures.no_key("set OPENAI_API_KEY, or give api_key")
            case ValueError():  # a chunk that is no JSON, or no UTF-8
                return failures.cut()
            case _:
                return None


async def _read(chunks: AsyncStream[ChatCompletionChunk], failures: Failures) -> AsyncGenerator[Chunk]:
    """Yield the chunks as they were written. Raises `ModelError` for an answer that is no stream, and the library's errors."""
    some = False
    async for chunk in chunks:
        some = True
        yield chunk.to_dict(warnings=False)
    media_type = chunks.response.headers.get("content-type", "")
    if not some and not media_type.startswith("text/event-stream"):
        raise failures.no_stream(media_type)
