"""Events as JSON, for programs in any language: the public form, in camelCase.

Every event has `id` (its cursor), `sessionId`, `turnId` (null when it names no turn) and `type`, then the type's own fields:

    turnStarted     turnUpdated {status}    turnEnded {state}       sessionUpdated {status, title, archived}
    entryAdded {entry}      entryCompleted {entry}      textDelta {entryId, text}
    callbackOpened {callback}       callbackResolved {callbackId}   notice {message, level, source, details}

`entry` and `callback` are as they are stored (`broker.protocol`), `state` too, with its `cursor`. What this version does not
know keeps its own type and fields.
"""

from __future__ import annotations

import re
from typing import Final

from broker.protocol.callbacks import (
    OpenApproval,
    OpenCallback,
    OpenClientToolCall,
    OpenSignIn,
    approval_to_wire,
    client_call_to_wire,
    sign_in_to_wire,
)
from broker.protocol.entries import entry_to_wire
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
from broker.protocol.records import (
    Completed,
    EndedState,
    Failed,
    Interrupted,
    UnknownOutcome,
    completed_to_wire,
    failed_to_wire,
)
from broker.protocol.values import JsonValue, UnknownValue, dumps

_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029]")


def event_to_json(event: Event) -> dict[str, JsonValue]:
    """Return an event's public form."""
    common: dict[str, JsonValue] = {"id": event.id, "sessionId": event.session_id, "turnId": event.turn_id}
    if isinstance(event, UnknownEvent):
        return {**common, "type": event.type, **event.raw, "id": event.id, "sessionId": event.session_id}
    return common | _own(event)


def event_line(event: Event) -> str:
    """Return an event as JSON on one line."""
    return json_text(event_to_json(event))


def json_text(value: JsonValue) -> str:
    """Return JSON on one line, whoever splits the lines, and safe to show on a terminal."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", dumps(value).decode())


def _own(event: Event) -> dict[str, JsonValue]:
    wire: dict[str, JsonValue]
    match event:
        case TurnStarted():
            wire = {"type": "turnStarted"}
        case TurnUpdated(status):
            wire = {"type": "turnUpdated", "status": _plain(status)}
        case TurnEnded(state):
            wire = {"type": "turnEnded", "state": _state(state)}
        case CallbackOpened(callback):
            wire = {"type": "callbackOpened", "callback": _callback(callback)}
        case CallbackResolved(callback_id):
            wire = {"type": "callbackResolved", "callbackId": callback_id}
        case SessionUpdated(status, title, archived):
            wire = {"type": "sessionUpdated", "status": _plain(status), "title": title, "archived": archived}
        case Notice(message, level, source, details):
            told: dict[str, JsonValue] = {"message": message, "level": _plain(level)}
            wire = {"type": "notice", **told, "source": source, "details": details}
        case EntryAdded(entry):
            wire = {"type": "entryAdded", "entry": entry_to_wire(entry)}
        case EntryCompleted(entry):
            wire = {"type": "entryCompleted", "entry": entry_to_wire(entry)}
        case TextDelta(entry_id, text):
            wire = {"type": "textDelta", "entryId": entry_id, "text": text}
        case _:
            raise TypeError(f"{type(event).__name__} is no event of this library")
    return wire


def _plain(value: str | UnknownValue) -> str:
    return value.value if isinstance(value, UnknownValue) else value


def _state(state: EndedState) -> dict[str, JsonValue]:
    match state:
        case Completed():
            wire = completed_to_wire(state.text, state.tool_calls, state.stop_reason, state.usage)
        case Interrupted(cause):
            wire = {"type": "interrupted", "cause": _plain(cause), "text": state.text}
        case Failed(error):
            wire = failed_to_wire(error, state.text)
        case UnknownOutcome(outcome, raw):
            wire = {"type": outcome, **raw}
    return {**wire, "cursor": state.cursor}


def _callback(callback: OpenCallback) -> dict[str, JsonValue]:
    match callback:
        case OpenApproval(request):
            return approval_to_wire(callback.id, request, callback.opened_at, callback.title)
        case OpenSignIn(requests):
            return sign_in_to_wire(callback.id, requests, callback.opened_at, callback.title)
        case OpenClientToolCall(call):
            return client_call_to_wire(callback.id, call, callback.opened_at) | {"title": callback.title}
        case _:
            return {**callback.raw, "type": callback.type, "id": callback.id, "title": callback.title}
