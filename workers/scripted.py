"""A model that follows a script: for examples, tests and benchmarks. The same request always gets the same reply.

Which reply is given depends on the request alone, so a call that is made again after a crash, in another process, gets the
same one: it is the reply whose index is the number of replies that the conversation already holds.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.protocol.content import content_text
from broker.protocol.errors import SdkError
from broker.protocol.records import TokenUsage
from broker.protocol.values import JsonValue
from workers.models import (
    AssistantMessage,
    Model,
    ModelDelta,
    ModelError,
    ModelReasoning,
    ModelRequest,
    ModelStop,
    ModelText,
    ModelToolCall,
    ModelUsage,
    UserMessage,
)

_WORDS: Final = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True)
class ScriptedCall:
    """A tool call of a scripted reply."""

    name: str
    arguments: JsonValue = None
    id: str | None = None


@dataclass(frozen=True)
class ScriptedReply:
    """One reply. `text` is streamed word by word, or as `chunks` are cut; `delay` seconds pass before each piece.

    `error` is raised after the text, as a model does that is cut off.
    """

    text: str = ""
    chunks: Sequence[str] | None = None
    reasoning: str = ""
    calls: Sequence[ScriptedCall] = ()
    delay: float = 0.0
    usage: TokenUsage | None = None
    error: ModelError | None = None


Script = Sequence[ScriptedReply] | Callable[[ModelRequest], ScriptedReply]


def replies_so_far(request: ModelRequest) -> int:
    """Return how many replies of the model the request holds."""
    return sum(isinstance(message, AssistantMessage) for message in request.messages)


def last_user_text(request: ModelRequest) -> str:
    """Return the text of the last message that a person sent, `""` if there is none."""
    return next(
        (content_text(message.content) for message in reversed(request.messages) if isinstance(message, UserMessage)),
        "",
    )


class ScriptedModel:
    """A model that follows `script`: a sequence of replies, or a function of the request.

    Past the end of a sequence its `otherwise` reply is given; by default the person's last text comes back. Raises `TypeError`
    naming what is no reply or no call.
    """

    def __init__(self, script: Script = (), *, otherwise: ScriptedReply | None = None) -> None:
        for at, reply in enumerate(() if callable(script) else script):
            if not isinstance(reply, ScriptedReply):
                raise TypeError(f"script[{at}] must be a ScriptedReply, not {type(reply).__name__}")
            for call in reply.calls:
                if not isinstance(call, ScriptedCall):
                    raise TypeError(f"script[{at}].calls are made of ScriptedCall, not {type(call).__name__}")
        self._script = script
        self._otherwise = otherwise

    def reply(self, request: ModelRequest) -> ScriptedReply:
        """Return the reply to a request."""
        if callable(self._script):
            return self._script(request)
        index = replies_so_far(request)
        if index < len(self._script):
            return self._script[index]
        return self._otherwise or ScriptedReply(text=last_user_text(request))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the reply's deltas. Raises the reply's `error`, if it has one."""
        reply = self.reply(request)
        index = replies_so_far(request)
        for piece in _WORDS.findall(reply.reasoning):
            await asyncio.sleep(reply.delay)
            yield ModelReasoning(piece)
        for piece in _WORDS.findall(reply.text) if reply.chunks is None else reply.chunks:
            await asyncio.sleep(reply.delay)
            yield ModelText(piece)
        if reply.error is not None:
            raise reply.error.with_traceback(None)  # one object raised at every call must not collect frames
        for at, call in enumerate(reply.calls):
            yield ModelToolCall(call.id or f"call_{index + 1}_{at + 1}", call.name, call.arguments)
        if reply.usage is not None:
            yield ModelUsage(reply.usage)
        yield ModelStop("tool_calls" if reply.calls else "end")


_MODELS: dict[str, Model] = {"echo": ScriptedModel()}


def register_scripted(name: str, model: Model) -> None:
    """Let `model="scripted:<name>"` mean this model in this process."""
    _MODELS[name] = model


def scripted_model(name: str) -> Model:
    """Return the model registered under a name. Raises `SdkError` for an unknown one."""
    try:
        return _MODELS[name]
    except KeyError:
        raise SdkError(f"model 'scripted:{name}': no such script; known: {', '.join(sorted(_MODELS))}") from None
