"""A request's messages in the form of chat completions, in an order that every server takes.

Servers differ in what they refuse. What all of them take: one system message, first; people's messages in a row are one; a
reply's calls are followed at once by all their results; the last message is not the model's. `strict` holds Mistral's rules too:
call ids of nine letters and digits, no reply with both text and calls, no person's message right after a result.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broker.protocol.content import content_text
from broker.protocol.values import JsonValue, clean_text, dumps
from workers.models import (
    AssistantMessage,
    ContextNote,
    ModelMessage,
    ModelRequest,
    RequestedCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from workers.providers.content import Part, PartWriter, is_text, text_part
from workers.providers.names import WireNames

WireMessage = dict[str, Any]

_BETWEEN: Final = "OK."
"""What the model says, for servers that want a reply of it between a result and a person's message."""
_GO_ON: Final = "Go on."
"""What a person says when the model's own message would be the last."""

_FREE_ID: Final = re.compile(r"[\x21-\x7e]{1,40}")
_STRICT_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_DIGITS: Final = string.digits + string.ascii_letters


def _made_id(call_id: str, attempt: int) -> str:
    """Nine letters and digits, the same for the same id each time."""
    number = int.from_bytes(hashlib.sha256(f"{attempt}:{call_id}".encode("utf-8", "surrogatepass")).digest()[:8], "big")
    made = ""
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        made += _DIGITS[digit]
    return made


class _CallIds:
    """Call ids as the server takes them, each once in the request."""

    def __init__(self, *, strict: bool) -> None:
        self._shape = _STRICT_ID if strict else _FREE_ID
        self._used: set[str] = set()

    def wire(self, call_id: str) -> str:
        """Return the id of one more call."""
        made, attempt = call_id, 0
        while made in self._used or not self._shape.fullmatch(made):
            made, attempt = _made_id(call_id, attempt), attempt + 1
        self._used.add(made)
        return made


def _arguments(value: JsonValue) -> str:
    """Arguments as the text of a JSON object; servers read nothing else, whatever the model had written."""
    if value is None or value == "":
        value = {}
    return dumps(value if isinstance(value, dict) else {"invalid_arguments": value}).decode()


@dataclass
class _Conversation:
    names: WireNames
    writer: PartWriter
    strict: bool
    messages: list[WireMessage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ids = _CallIds(strict=self.strict)

    @property
    def _last(self) -> str:
        return str(self.messages[-1]["role"]) if self.messages else ""

    def user(self, parts: Sequence[Part]) -> None:
        """Add what a person said to what the person said just before."""
        if self._last == "user":
            self.messages[-1]["content"].extend(parts)
            return
        if self._last == "tool" and self.strict:
            self.messages.append({"role": "assistant", "content": _BETWEEN})
        self.messages.append({"role": "user", "content": list(parts)})

    def context(self, parts: Sequence[Part]) -> None:
        """Add text that is not the person's own, and is marked so."""
        if parts and all(is_text(part) for part in parts):
            self.user([text_part(f"<context>\n{_joined(parts)}\n</context>")])
        elif parts:
            self.user([text_part("<context>"), *parts, text_part("</context>")])

    def reply(self, reply: AssistantMessage, results: Mapping[str, ToolMessage]) -> None:
        """Add a reply, and the results of its calls."""
        text = reply.text or None
        if text is not None and self._last == "assistant":
            text = f"{self.messages.pop()['content']}\n\n{text}"
        elif self._last == "assistant" and reply.calls and not self.strict:
            text = self.messages.pop()["content"]
        if text is not None and (self.strict or not reply.calls):
            self.messages.append({"role": "assistant", "content": text})
            text = None
        if not reply.calls:
            return
        wired = [(call, self._ids.wire(call.id)) for call in reply.calls]
        calls = [self._call(call, call_id) for call, call_id in wired]
        self.messages.append({"role": "assistant", "content": "" if self.strict else text, "tool_calls": calls})
        media: list[Part] = []
        for call, call_id in wired:
            media += self._result(call, call_id, results.get(call.id))
        if media:
            self.user(media)

    def _call(self, call: RequestedCall, call_id: str) -> WireMessage:
        function = {"name": self.names.wire(call.name), "arguments": _arguments(call.arguments)}
        return {"id": call_id, "type": "function", "function": function}

    def _result(self, call: RequestedCall, call_id: str, result: ToolMessage | None) -> list[Part]:
        """Add a call's result; return what of it no result can hold, for a person's message after all of them."""
        name = self.names.wire(call.name)
        parts = self.writer.parts(result.content) if result is not None else [text_part("It has no result.")]
        media = [part for part in parts if not is_text(part)]
        shown = [part for part in parts if is_text(part)]
        if media:
            shown.append(text_part(f"[{len(media)} more below]"))
        said = _joined(shown) or "(no output)"
        if result is None or result.is_error:
            said = f"Error: {said}"
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": said})
        return [text_part(f"[from {name}, call {call_id}]"), *media] if media else []

    def whole(self) -> list[WireMessage]:
        """Return the messages. Those of text alone hold it as plain text, which every server takes."""
        if self._last in ("", "assistant"):
            self.user([text_part(_GO_ON)])
        for message in self.messages:
            if message["role"] == "user" and all(is_text(part) for part in message["content"]):
                message["content"] = _joined(message["content"])
        return self.messages


def _joined(parts: Iterable[Part]) -> str:
    return "\n\n".join(part["text"] for part in parts)


def _results_after(messages: Sequence[ModelMessage], at: int) -> dict[str, ToolMessage]:
    """The results of the reply at an index: those before the next reply."""
    found: dict[str, ToolMessage] = {}
    for message in messages[at + 1 :]:
        if isinstance(message, AssistantMessage) and message.calls:
            break
        if isinstance(message, ToolMessage):
            found[message.call_id] = message
    return found


def wire_messages(request: ModelRequest, names: WireNames, writer: PartWriter, *, strict: bool) -> list[WireMessage]:
    """Return a request's messages as the server takes them. A result without its call is left out."""
    conversation = _Conversation(names, writer, strict)
    system = [clean_text(request.instructions)] if request.instructions else []
    for at, message in enumerate(request.messages):
        match message:
            case SystemMessage():
                system.append(content_text(message.content))
            case ContextNote():
                conversation.context(writer.parts(message.content))
            case UserMessage():
                conversation.user(writer.parts(message.content) or [text_part("(an empty message)")])
            case AssistantMessage():
                conversation.reply(message, _results_after(request.messages, at) if message.calls else {})
            case ToolMessage():
                pass  # stands with its call
    text = "\n\n".join(said for said in system if said)
    return [*([{"role": "system", "content": text}] if text else []), *conversation.whole()]
