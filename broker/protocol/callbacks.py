"""Callbacks: what a turn asks a person or a client, and the answers.

Stored forms (camelCase): `{"type": "approval", "id", "title", "openedAt", "request": {"tool": {"id", "name",
"description"}, "toolCallId", "arguments", "fromHook"}}`, `signIn {"requests": [{"sourceId", "title", "url"}]}`,
`clientTool {"call": {"toolCallId", "name", "arguments"}}`. Answers: `{"type": "allow", "scope"}`, `{"type": "deny",
"reason"}`, `{"type": "signIn", "connected", "denied"}`; a client tool's is `{"type": "clientTool", "result": {a tool
result's fields}}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from broker.protocol.values import Brief, JsonValue, show_defaults


@dataclass(frozen=True, kw_only=True)
class ApprovalTool:
    """The tool that an approval is about; `id` is its full id."""

    __match_args__ = ("id", "name", "description")
    id: str
    name: str
    description: str | None = None


@dataclass(frozen=True, kw_only=True)
class ApprovalRequest(Brief):
    """What a person is asked to allow: one call of a tool."""

    __match_args__ = ("tool", "tool_call_id", "arguments", "from_hook")
    tool: ApprovalTool
    tool_call_id: str
    arguments: JsonValue
    from_hook: bool = False


@dataclass(frozen=True, kw_only=True)
class SignInRequest:
    """One source that a person is asked to sign in to."""

    __match_args__ = ("source_id", "title", "url")
    source_id: str
    title: str
    url: str


@dataclass(frozen=True, kw_only=True)
class ClientToolCall(Brief):
    """A call of a tool that runs at the client."""

    __match_args__ = ("tool_call_id", "name", "arguments")
    tool_call_id: str
    name: str
    arguments: JsonValue


@dataclass(frozen=True, kw_only=True)
class _Open(Brief):
    id: str
    session_id: str
    turn_id: str | None
    title: str
    opened_at: datetime


@dataclass(frozen=True, kw_only=True)
class OpenApproval(_Open):
    """A tool call waits for a person's approval: answer with `AllowApproval` or `DenyApproval`."""

    __match_args__ = ("request",)
    request: ApprovalRequest


@dataclass(frozen=True, kw_only=True)
class OpenSignIn(_Open):
    """Tool sources wait for a sign-in: answer with `SignInAnswer`, naming exactly these sources."""

    __match_args__ = ("requests",)
    requests: tuple[SignInRequest, ...]


@dataclass(frozen=True, kw_only=True)
class OpenClientToolCall(_Open):
    """A tool call waits for the client that runs it: answer with the tool's result."""

    __match_args__ = ("call",)
    call: ClientToolCall


@show_defaults
@dataclass(frozen=True, kw_only=True)
class UnknownOpenCallback(_Open):
    """A callback of a kind added after this version; `raw` is its data in camelCase."""

    __match_args__ = ("type", "raw")
    type: str
    raw: dict[str, JsonValue] = field(default_factory=dict)


OpenCallback = OpenApproval | OpenSignIn | OpenClientToolCall | UnknownOpenCallback


@dataclass(frozen=True)
class AllowApproval:
    """The call may run; with scope `"session"`, later calls of the same tool in this session too."""

    scope: Literal["once", "session"] = "once"

    def __post_init__(self) -> None:
        if self.scope not in ("once", "session"):
            raise ValueError(f"scope must be 'once' or 'session', not {self.scope!r}")


@dataclass(frozen=True)
class DenyApproval:
    """The call must not run; the model reads the reason."""

    reason: str | None = None


@dataclass(frozen=True)
class SignInAnswer:
    """Sources that were signed in to, and sources that were refused: together exactly those asked."""

    connected: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


@dataclass(frozen=True)
class KeepCallbackOpen:
    """A handler's way to leave a callback to someone else. Never an answer."""


Answer = AllowApproval | DenyApproval | SignInAnswer


def title_line(text: str) -> str:
    """Return text as one line for a person, at most 200 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"


def approval_to_wire(
    callback_id: str, request: ApprovalRequest, opened_at: datetime, title: str | None = None
) -> dict[str, JsonValue]:
    """Return the stored form of an approval."""
    tool = request.tool
    return {
        "type": "approval",
        "id": callback_id,
        "title": title_line(title or f"Allow {tool.name}?"),
        "openedAt": opened_at.isoformat(),
        "request": {
            "tool": {"id": tool.id, "name": tool.name, "description": tool.description},
            "toolCallId": request.tool_call_id,
            "arguments": request.arguments,
            "fromHook": request.from_hook,
        },
    }


def sign_in_to_wire(
    callback_id: str, requests: tuple[SignInRequest, ...], opened_at: datetime, title: str | None = None
) -> dict[str, JsonValue]:
    """Return the stored form of a question for sign-ins."""
    return {
        "type": "signIn",
        "id": callback_id,
        "title": title_line(title or f"Sign in to {', '.join(item.title for item in requests)}"),
        "openedAt": opened_at.isoformat(),
        "requests": [{"sourceId": item.source_id, "title": item.title, "url": item.url} for item in requests],
    }


def client_call_to_wire(callback_id: str, call: ClientToolCall, opened_at: datetime) -> dict[str, JsonValue]:
    """Return the stored form of a client tool's call."""
    return {
        "type": "clientTool",
        "id": callback_id,
        "title": title_line(f"Run {call.name} at the client"),
        "openedAt": opened_at.isoformat(),
        "call": {"toolCallId": call.tool_call_id, "name": call.name, "arguments": call.arguments},
    }


def _opened_at(raw: dict[str, Any]) -> datetime:
    try:
        opened = datetime.fromisoformat(raw["openedAt"])
    except (KeyError, TypeError, ValueError):
        return datetime.fromtimestamp(0, UTC)
    return opened if opened.tzinfo is not None else opened.replace(tzinfo=UTC)


def callback_from_wire(raw: dict[str, Any], session_id: str, turn_id: str | None) -> OpenCallback:
    """Return the callback of a stored form; one that this version cannot type becomes `UnknownOpenCallback`."""
    common: dict[str, Any] = {
        "id": str(raw.get("id", "")),
        "session_id": session_id,
        "turn_id": turn_id,
        "title": str(raw.get("title", "")),
        "opened_at": _opened_at(raw),
    }
    kind = str(raw.get("type", ""))
    try:
        if kind == "approval":
            request = raw["request"]
            tool = ApprovalTool(
                id=request["tool"]["id"], name=request["tool"]["name"], description=request["tool"].get("description")
            )
            return OpenApproval(
                **common,
                request=ApprovalRequest(
                    tool=tool,
                    tool_call_id=request["toolCallId"],
                    arguments=request.get("arguments"),
                    from_hook=bool(request.get("fromHook")),
                ),
            )
        if kind == "signIn":
            requests = tuple(
                SignInRequest(source_id=item["sourceId"], title=item["title"], url=item["url"])
                for item in raw["requests"]
            )
            return OpenSignIn(**common, requests=requests)
        if kind == "clientTool":
            call = raw["call"]
            return OpenClientToolCall(
                **common,
                call=ClientToolCall(
                    tool_call_id=call["toolCallId"], name=call["name"], arguments=call.get("arguments")
                ),
            )
    except (KeyError, TypeError, AttributeError):
        pass  # a known kind in a shape of another version is raw data too
    return UnknownOpenCallback(**common, type=kind, raw=raw)


def answer_to_wire(answer: Answer) -> dict[str, JsonValue]:
    """Return an answer's stored form."""
    match answer:
        case AllowApproval(scope):
            return {"type": "allow", "scope": scope}
        case DenyApproval(reason):
            return {"type": "deny", "reason": reason}
        case SignInAnswer(connected, denied):
            return {"type": "signIn", "connected": list(connected), "denied": list(denied)}


def answer_from_wire(raw: dict[str, Any] | None) -> AllowApproval | DenyApproval | None:
    """Return the approval's answer of a stored form; None for another kind, where the first result sent counts."""
    match raw or {}:
        case {"type": "allow", **rest}:
            return AllowApproval("session" if rest.get("scope") == "session" else "once")
        case {"type": "deny", **rest}:
            return DenyApproval(rest.get("reason"))
        case _:
            return None
