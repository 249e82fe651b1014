"""Events as a person reads them: who, when and what, a line each; a reply as it is written."""

from __future__ import annotations

from typing import Any, Final

import click

from api_shim.cli.terminal import clock, json_line, one_line, plain
from broker.protocol.callbacks import OpenApproval, OpenCallback, OpenClientToolCall, OpenSignIn
from broker.protocol.content import TextContentBlock
from broker.protocol.entries import (
    ContextMessage,
    HistoryEntry,
    MessageEntry,
    ToolCallEntry,
    ToolResultEntry,
    UnknownEntry,
)
from broker.protocol.events import (
    CallbackOpened,
    CallbackResolved,
    EntryAdded,
    EntryCompleted,
    Event,
    Notice,
    SessionUpdated,
    TextDelta,
    TurnEnded,
    TurnStarted,
    TurnUpdated,
    UnknownEvent,
)
from broker.protocol.records import Blocked, Completed, Failed, Interrupted, TurnState, UnknownOutcome
from broker.protocol.values import UnknownValue

_WHO: Final = {"user": "you", "assistant": "agent", "system": "system", "context": "context"}
_COLOURS: Final = {"you": "cyan", "agent": "green", "tool": "blue", "asks": "yellow", "notice": "magenta"}
_WIDTH: Final = 8
_LEVELS: Final = {"info": "white", "warning": "yellow", "error": "red"}


_PROMPT: Final = object()


class Screen:
    """The terminal that printers share: who of them is in the middle of a line."""

    def __init__(self) -> None:
        self._writing: object = None

    def begins(self, who: object) -> None:
        """Note that the line is not ended yet."""
        self._writing = who

    def is_writing(self, who: object) -> bool:
        """Whether the line that is not ended is this one's."""
        return self._writing is who

    def end_line(self, *, typed: bool = False) -> None:
        """End the line that somebody is in the middle of; `typed`: the person's own Enter has ended it."""
        if self._writing is not None and not typed:
            click.echo()
        self._writing = None


class EventPrinter:
    """Prints one session's events for a person.

    `label` names this observer, where there are several on one `screen`. `streaming` prints a reply as it is written, not
    when it is complete.
    `own` is the text of a message that the person has just typed and need not read again.
    """

    def __init__(
        self, *, label: str = "", colour: str | None = None, streaming: bool = True, screen: Screen | None = None
    ) -> None:
        self.own: str | None = None
        self._screen = screen or Screen()
        self._label = click.style(f"{label} ", fg=colour) if label else ""
        self._streaming = streaming
        self._entry: str | None = None  # the reply whose text is being printed
        self._written = ""  # what of it is printed

    def show(self, event: Event) -> None:
        """Print an event."""
        match event:
            case TextDelta(entry_id, text):
                self._more(event, entry_id, text)
            case EntryCompleted(entry):
                self._completed(event, entry)
            case EntryAdded() | CallbackResolved() | TurnUpdated(status="running" | "terminated"):
                pass  # what they say, a line before or after says too
            case _:
                who, text, style = _told(event)
                self._line(event, who, text, **style)

    def line(self, who: str, text: str, **style: Any) -> None:
        """Print a line that is no event."""
        self.end_line()
        self._put("        ", who, text, style)

    def prompt(self, text: str) -> None:
        """Print a question whose answer is typed behind it."""
        self.end_line()
        click.secho(plain(text), nl=False, fg="yellow")
        self._screen.begins(_PROMPT)

    @property
    def prompting(self) -> bool:
        """Whether a question is the last thing on the screen."""
        return self._screen.is_writing(_PROMPT)

    def typed(self) -> None:
        """The person's own Enter has ended the line."""
        self._screen.end_line(typed=True)

    def end_line(self) -> None:
        """End a line that is still being written."""
        self._screen.end_line()

    def _line(self, event: Event, who: str, text: str, **style: Any) -> None:
        self.end_line()
        self._put(clock(event.session_id, event.id), who, text, style)

    def _put(self, at: str, who: str, text: str, style: dict[str, Any]) -> None:
        head = self._head(at, who)
        shown = self._indented(text)
        click.echo(f"{head}{click.style(shown, **style) if style else shown}")

    def _head(self, at: str, who: str) -> str:
        name = click.style(f"{who:<{_WIDTH}}", fg=_COLOURS.get(who))
        return f"{click.style(at, dim=True)} {self._label}{name}"

    def _indented(self, text: str) -> str:
        room = " " * (9 + len(click.unstyle(self._label)) + _WIDTH)
        return plain(text).replace("\n", f"\n{room}")

    # A reply's text.

    def _more(self, event: Event, entry_id: str, text: str) -> None:
        if not self._streaming:
            return
        if self._entry != entry_id:
            self.end_line()
            self._entry, self._written = entry_id, ""
        if not self._screen.is_writing(self):
            self.end_line()
            mark = "… " if self._written else ""
            click.echo(self._head(clock(event.session_id, event.id), "agent") + mark, nl=False)
            self._screen.begins(self)
        self._written += text
        click.echo(self._indented(text), nl=False)

    def _completed(self, event: Event, entry: HistoryEntry) -> None:
        match entry:
            case MessageEntry(role="assistant") if entry.id == self._entry and entry.text.startswith(self._written):
                if rest := entry.text[len(self._written) :]:
                    self._more(event, entry.id, rest)
                self.end_line()
                self._entry = None
            case MessageEntry(role="user") if self.own is not None and entry.text == self.own:
                self.own = None
            case _:
                if (told := entry_line(entry)) is not None:
                    who, text, style = told
                    self._line(event, who, text, **style)


def entry_line(entry: HistoryEntry) -> tuple[str, str, dict[str, Any]] | None:
    """Return who speaks, what, and in which style; None for an entry that says nothing to a person."""
    match entry:
        case ContextMessage():
            return "context", entry.text, {"dim": True}
        case MessageEntry(role, content):
            return (_WHO[role], _content(content), {"bold": True} if role == "user" else {}) if content else None
        case ToolCallEntry(name, arguments):
            return "tool", f"→ {one_line(name)}({json_line(arguments)})", {}
        case ToolResultEntry(name, content, _, is_error):
            text = one_line(_content(content)) or "(nothing)"
            return "tool", f"← {one_line(name or '')}: {text}", {"fg": "red"} if is_error else {}
        case UnknownEntry("reasoning", raw):
            return "agent", one_line(str(raw.get("text", ""))), {"dim": True, "italic": True}
        case UnknownEntry("message", raw):
            return "message", one_line(f"from {raw.get('sender', '?')}: {raw.get('text', raw.get('content', ''))}"), {}
        case UnknownEntry():
            return None


def _content(content: tuple[Any, ...]) -> str:
    """The text; for another block, what it is."""
    parts = (block.text if isinstance(block, TextContentBlock) else f"[{_named(block)}]" for block in content)
    return "".join(parts)


def _named(block: Any) -> str:
    kind = getattr(block, "original_type", block.type)
    uri = getattr(block, "uri", None)
    return one_line(kind if not isinstance(uri, str) or uri[:5] == "data:" else f"{kind} {uri}", 80)


def _told(event: Event) -> tuple[str, str, dict[str, Any]]:
    """Who, what and the style of an event that is no entry."""
    match event:
        case TurnStarted():
            return "turn", f"started {event.turn_id or ''}", {"dim": True}
        case TurnUpdated(status):
            return "turn", "parked: it waits for an answer" if status == "blocked" else _plain(status), {"fg": "yellow"}
        case TurnEnded(state):
            return "turn", *outcome(state)
        case CallbackOpened(callback):
            return "asks", question(callback), {"fg": "yellow"}
        case SessionUpdated(status, title, archived):
            name = f" “{one_line(title)}”" if title else ""
            return "session", f"{_plain(status)}{name}{', archived' if archived else ''}", {"dim": True}
        case Notice(message, level):
            return "notice", one_line(message, 500), {"fg": _LEVELS.get(_plain(level), "white")}
        case UnknownEvent(kind):
            return "event", f"of a newer version: {one_line(kind)}", {"dim": True}
        case _:
            raise TypeError(f"{type(event).__name__} is no event of this library")


def _plain(value: str | UnknownValue) -> str:
    return one_line(value.value) if isinstance(value, UnknownValue) else value


def question(callback: OpenCallback) -> str:
    """Return what a callback asks, on one line."""
    title = one_line(callback.title)
    match callback:
        case OpenApproval(request):
            return f"{title}  {one_line(request.tool.id)}({json_line(request.arguments)})"
        case OpenSignIn(requests):
            return f"{title}  {', '.join(one_line(request.url) for request in requests)}"
        case OpenClientToolCall(call):
            return f"{title}  ({json_line(call.arguments)})"
        case _:
            return f"{title}  (of a newer version: {one_line(callback.type)})"


def outcome(state: TurnState[Any]) -> tuple[str, dict[str, Any]]:
    """Return how a turn ended, and the style to say it in."""
    match state:
        case Completed(stop_reason=reason):
            return f"completed{f' ({reason})' if reason else ''}", {"fg": "green"}
        case Interrupted(cause):
            return f"stopped: {_plain(cause)}", {"fg": "yellow"}
        case Failed(error):
            return f"failed: {one_line(error.message, 500)} ({one_line(error.code or 'no code')})", {"fg": "red"}
        case UnknownOutcome(kind):
            return f"ended: {one_line(kind)}", {"fg": "yellow"}
        case Blocked(callbacks):
            return f"blocked on {len(callbacks)} callback{'s' * (len(callbacks) != 1)}", {"fg": "yellow"}
        case _:
            return "running", {}


def record_lines(state: TurnState[Any]) -> list[str]:
    """Return a turn's record, a field a line."""
    lines = [click.style(type(state).__name__, bold=True)]
    fields: dict[str, str] = {"turn_id": state.turn_id, "text": one_line(state.text, 400)}
    match state:
        case Completed(_, calls, _, usage):
            fields["tool_calls"] = ", ".join(f"{one_line(call.name)}({json_line(call.arguments)})" for call in calls)
            fields["usage"] = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        case _:
            fields["outcome"] = outcome(state)[0]
    fields["cursor"] = state.cursor
    return [*lines, *(f"  {name:<11}{value or '-'}" for name, value in fields.items())]
