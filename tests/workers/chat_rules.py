"""What a strict server refuses: every rule of every server that we know of, for a request's body."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

Message = Mapping[str, Any]

NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAY_FOLLOW: Final = {
    "system": {"user", "assistant", "system"},
    "user": {"assistant", "system", "user"},
    "assistant": {"assistant", "user", "tool"},
    "tool": {"assistant", "tool"},
}
"""Mistral's table."""


def refusal(body: dict[str, Any], *, strict: bool) -> str | None:
    """Return what is wrong with a request, None when nothing is. `strict` adds the rules that only Mistral's servers have."""
    json.dumps(body).encode()
    return next(_wrongs(body, strict=strict), None)


def checks(*, strict: bool) -> Callable[[dict[str, Any]], str | None]:
    """A server's check."""
    return lambda body: refusal(body, strict=strict)


def _wrongs(body: Mapping[str, Any], *, strict: bool) -> Iterator[str]:
    messages = body["messages"]
    if not messages:
        yield "no messages"
    for at, message in enumerate(messages):
        for wrong in _wrong_message(message):
            yield f"messages[{at}]: {wrong}"
        if message["role"] == "system" and at:
            yield f"messages[{at}]: a system message is not the first"
    if messages[-1]["role"] not in ("user", "tool"):
        yield f"the last message is the {messages[-1]['role']}'s"
    yield from _wrong_order(messages, strict=strict)
    yield from _wrong_calls(messages, re.compile(r"[a-zA-Z0-9]{9}" if strict else r"\S{1,40}"))
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if len(set(names)) < len(names):
        yield "two tools of one name"
    for tool in body.get("tools") or ():
        if not NAME.fullmatch(tool["function"]["name"]) or tool["function"]["parameters"]["type"] != "object":
            yield f"no tool: {tool}"


def _wrong_message(message: Message) -> Iterator[str]:
    content, calls = message.get("content"), message.get("tool_calls")
    match message["role"]:
        case "user" if isinstance(content, list):
            yield from (f"no part: {part}" for part in content if not _is_part(part))
            if all(part["type"] == "text" for part in content):
                yield "text in parts"
        case "assistant" if calls:
            for call in calls:
                if call["type"] != "function" or not NAME.fullmatch(call["function"]["name"]):
                    yield f"no function: {call}"
                if not isinstance(json.loads(call["function"]["arguments"]), dict):
                    yield f"arguments that are no object: {call}"
        case "system" | "user" | "assistant" | "tool":
            if not (isinstance(content, str) and content):
                yield "no content"
        case role:
            yield f"no role: {role}"


def _is_part(part: Mapping[str, Any]) -> bool:
    match part:
        case {"type": "text", "text": str(text)}:
            return bool(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return bool(re.match(r"https?://|data:image/(png|jpeg|gif|webp)[;,]", url, re.IGNORECASE))
        case {"type": "input_audio", "input_audio": str(data) | {"data": str(data), "format": "wav" | "mp3"}}:
            return not data.startswith("data:")
        case {"type": "file", "file": {"filename": str(), "file_data": str()}}:
            return True
        case {"type": "document_url", "document_url": str()}:
            return True
    return False


def _wrong_order(messages: Sequence[Message], *, strict: bool) -> Iterator[str]:
    for before, message in pairwise(messages):
        was, role = before["role"], message["role"]
        if was == role == "user":
            yield "two messages of a person in a row"
        if was == role == "assistant" and not (strict and message.get("tool_calls") and not before.get("tool_calls")):
            yield "two replies in a row"
        if strict and role not in _MAY_FOLLOW[was]:
            yield f"unexpected role {role} after {was}"
        if strict and message.get("content") and message.get("tool_calls"):
            yield "a reply with both text and calls"


def _wrong_calls(messages: Sequence[Message], shape: re.Pattern[str]) -> Iterator[str]:
    seen: set[str] = set()
    due: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not due or message["tool_call_id"] != due.pop(0):
                yield "a result without its call, or out of order"
        elif due:
            yield "a call without its result"
        due += [call["id"] for call in message.get("tool_calls") or ()]
        for call_id in due:
            if not shape.fullmatch(call_id):
                yield f"no call id: {call_id!r}"
        for call in message.get("tool_calls") or ():
            if call["id"] in seen:
                yield "a call id twice"
            seen.add(call["id"])
    if due:
        yield "a call without its result"
