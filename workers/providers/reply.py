"""A streamed reply, from the chunks of chat completions to deltas.

Servers are sloppy: a call's fragments come without an index, several calls under one index, without an id, without arguments.
What they mean is still plain, and is read so. A reply that has no end was cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from broker.protocol.records import TokenUsage
from broker.protocol.values import JsonValue, dumps, loads
from workers.models import (
    ModelDelta,
    ModelReasoning,
    ModelStop,
    ModelText,
    ModelToolCall,
    ModelUsage,
)
from workers.providers.failures import Failures
from workers.providers.names import WireNames

Chunk = Mapping[str, Any]

_AFTER_END_S: Final = 3.0
"""How long the usage may follow the end of a reply, whose server keeps the stream open."""

_ENDS: Final = {
    "stop": "end",
    "length": "length",
    "model_length": "length",
    "tool_calls": "end",
    "function_call": "end",
}


@dataclass
class _Call:
    index: int | None
    id: str = ""
    name: str = ""
    arguments: str = ""

    @property
    def whole(self) -> bool:
        """Whether the arguments are JSON already, so that what follows belongs to another call."""
        return bool(self.arguments.strip()) and not _parsed(self.arguments)[1]

    def delta(self, names: WireNames) -> ModelToolCall:
        """The call."""
        arguments, malformed = _parsed(self.arguments)
        return ModelToolCall(self.id, names.tool_id(self.name), arguments, malformed)


def _parsed(arguments: str) -> tuple[JsonValue, bool]:
    if not arguments.strip():
        return {}, False
    try:
        return loads(arguments), False
    except ValueError:
        return arguments, True


class _Calls:
    """A reply's calls, put together from their fragments."""

    def __init__(self) -> None:
        self.all: list[_Call] = []

    def take(self, fragment: Mapping[str, Any]) -> None:
        """Take a fragment of a call."""
        function = fragment.get("function") or {}
        call_id, name, arguments = fragment.get("id") or "", function.get("name") or "", function.get("arguments")
        if call_id == "null":
            call_id = ""  # what Mistral's client makes of a fragment without one
        index = fragment.get("index")
        call = self._open(index, call_id, name)
        call.id = call.id or call_id
        if not call.name:
            call.name = name
        elif name != call.name and not call.arguments:
            call.name += name
        call.arguments += _as_text(arguments)

    def _open(self, index: int | None, call_id: str, name: str) -> _Call:
        """The call that a fragment continues, or a new one."""
        last = self.all[-1] if self.all else None
        call = last if index is None else next((c for c in reversed(self.all) if c.index == index), None)
        if call is not None and not self._another(call, index, call_id, name):
            return call
        self.all.append(_Call(index))
        return self.all[-1]

    @staticmethod
    def _another(call: _Call, index: int | None, call_id: str, name: str) -> bool:
        """Whether a fragment under an open call's index, or under none, begins another call."""
        if call_id and call.id:
            return call_id != call.id
        return bool(name) and (call.whole or (index is None and bool(call.name)))


def _as_text(arguments: Any) -> str:
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    return dumps(arguments).decode()


class ReplyReader:
    """Reads one reply. `take` each chunk, then `end`."""

    def __init__(self, names: WireNames, failures: Failures) -> None:
        self._names = names
        self._failures = failures
        self._calls = _Calls()
        self._usage: Mapping[str, Any] | None = None
        self._refused = False
        self._finish: str | None = None
        self._chosen = False  # whether any chunk held a piece of the reply
        self.begun = False

    @property
    def finished(self) -> bool:
        """Whether the reply is whole: only its usage may follow."""
        return self._finish is not None

    def take(self, chunk: Chunk) -> Iterator[ModelDelta]:
        """Yield what a chunk adds; an empty text when it is only a sign of life. Raises `ModelError` for an error in it."""
        self.begun = True
        if (error := chunk.get("error")) or (error := chunk if chunk.get("object") == "error" else None):
            raise self._failures.within(error)
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices") or ()
        if not choices:
            if self._chosen and chunk.get("usage") and self._finish is None:
                self._finish = "stop"  # the usage comes last: the reply is whole, though nobody said so
            return
        self._chosen = True
        choice = choices[0]
        delta = choice.get("delta") or {}
        said = list(self._said(delta))
        for fragment in delta.get("tool_calls") or ():
            self._calls.take(fragment)
        self._finish = choice.get("finish_reason") or self._finish
        yield from said or [ModelText("")]

    def _said(self, delta: Mapping[str, Any]) -> Iterator[ModelDelta]:
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            yield ModelReasoning(str(thought))
        content = delta.get("content") or ()
        parts: Sequence[Chunk] = [{"text": content}] if isinstance(content, str) else content
        for part in parts:
            if part.get("type") == "thinking":
                yield from (ModelReasoning(text) for each in part.get("thinking") or () if (text := each.get("text")))
            elif text := part.get("text"):
                yield ModelText(text)
        if refusal := delta.get("refusal"):
            self._refused = True
            yield ModelText(refusal)

    def end(self) -> Iterator[ModelDelta]:
        """Yield the calls, the usage and the stop. Raises `ModelError` for a reply that was cut, withheld or failed."""
        match self._finish:
            case None:
                raise self._failures.cut()
            case "content_filter":
                raise self._failures.filtered()
            case "error" | "insufficient_system_resource":
                raise self._failures.unavailable()
            case finish:
                reason = _ENDS.get(finish, finish)
        calls = [call.delta(self._names) for call in self._calls.all]
        yield from calls
        if self._usage is not None:
            yield ModelUsage(_usage(self._usage))
        if reason == "end":
            reason = "refusal" if self._refused else "tool_calls" if calls else "end"
        yield ModelStop(reason)


def _usage(usage: Mapping[str, Any]) -> TokenUsage:
    read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    details = usage.get("prompt_tokens_details") or usage.get("prompt_token_details") or {}
    cached = details.get("cached_tokens") or usage.get("num_cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
    total = usage.get("total_tokens") or read + written
    return TokenUsage(input_tokens=read, output_tokens=written, total_tokens=total, cached_input_tokens=cached)


async def deltas(chunks: AsyncGenerator[Chunk], reader: ReplyReader) -> AsyncGenerator[ModelDelta]:
    """Yield a reply's deltas. What goes wrong after its end is not the reply's. Raises `ModelError`, and what `chunks` does."""
    async with aclosing(chunks):
        while True:
            try:
                async with asyncio.timeout(_AFTER_END_S if reader.finished else None):
                    chunk = await anext(chunks, None)
            except Exception:
                if reader.finished:
                    break
                raise
            if chunk is None:
                break
            for delta in reader.take(chunk):
                yield delta
    for delta in reader.end():
        yield delta
