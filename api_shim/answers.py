"""Answering a callback: read it once, check the answer against it, send it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from api_shim.local import Place
from broker import transitions
from broker.blobs import read_records
from broker.keys import new_id
from broker.protocol.callbacks import (
    AllowApproval,
    DenyApproval,
    KeepCallbackOpen,
    OpenApproval,
    OpenCallback,
    OpenClientToolCall,
    OpenSignIn,
    SignInAnswer,
    answer_from_wire,
    answer_to_wire,
    callback_from_wire,
)
from broker.protocol.errors import SdkError
from broker.protocol.records import AlreadySettled, Answered, NotFound
from broker.protocol.values import JsonValue, clean_text, watch_replaced
from broker.protocol.wire import entry_tail, resolved_tail
from broker.transitions import Raw

if TYPE_CHECKING:
    from workers.agent import AgentDefinition

_PLATFORM: Final = ("connectors.", "mcp.", "agents.")
"""Namespaces of tools that never run at a client."""


def checked_id(callback_id: str) -> str:
    """Return a callback's id. Raises `ValueError` when it is no UUID."""
    try:
        return str(uuid.UUID(callback_id))
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"callback_id must be a UUID, as in Blocked.callbacks, not {callback_id!r}") from None


async def find_callback(place: Place, session_id: str, callback_id: str) -> OpenCallback | AlreadySettled | NotFound:
    """Read how a callback of a session stands, or one that is open below it. Raises `SessionNotFoundError`, `SdkError`."""
    broker, keys = place.broker, place.broker.keys
    exists, asked, settled = await broker.read(
        ("EXISTS", transitions.session_key(broker, session_id)),
        ("HGET", keys.of("asked", session_id), callback_id),
        ("HGET", keys.of("settled", session_id), callback_id),
        said=f"Session {session_id}: the broker did not answer",
    )
    if not exists:
        raise transitions.no_session(session_id)
    if asked is None:
        return NotFound() if settled is None else AlreadySettled()
    places = asked.decode().splitlines()
    if len(places) > 1:
        raise SdkError(
            f"Two subagents of session {session_id} have an open callback {callback_id}; answer it in its own session."
        )
    # Its own callback's id, or of a subagent's: its place here, its session and its id there.
    *below, stream_id = places[0].split(" ")
    of = below[1] if below else session_id
    (page,) = await broker.read(("XRANGE", keys.of("log", of), stream_id, stream_id))
    raws = [Raw(found.decode(), fields[1]) for found, fields in page]
    for _, record in await read_records(place.broker, of, raws):
        return callback_from_wire(record["callback"], of, record.get("turnId"))
    return NotFound()


async def send_answer(
    place: Place, session_id: str, callback_id: str, answer: object, definition: AgentDefinition | None
) -> Answered | AlreadySettled | NotFound:
    """Answer a callback. Raises `ValueError`, `SdkError`; then nothing was sent."""
    callback_id = checked_id(callback_id)
    if isinstance(answer, KeepCallbackOpen):
        raise SdkError("KeepCallbackOpen() is what a handler returns; to leave a callback open, do not answer it")
    found = await find_callback(place, session_id, callback_id)
    if isinstance(found, (AlreadySettled, NotFound)):
        return found
    with watch_replaced() as replaced:
        wire, call, result = _checked(found, answer, definition)
    if replaced:
        wire["replaced"] = True  # so that the worker flags the entry it becomes
    resolved = resolved_tail(callback_id, "answered", wire)
    of = found.session_id
    sent = await transitions.answer(place.broker, of, callback_id, resolved, call=call, result=result)
    match sent:
        case transitions.Answered():
            return Answered(answer_from_wire(wire), of)
        case transitions.Lost(record):
            return await _lost(place, of, record)
        case _:
            return NotFound()


async def _lost(place: Place, session_id: str, record: Raw) -> Answered | AlreadySettled:
    """The race was lost: the answer that counted; or nothing counted, since the turn was cut meanwhile."""
    for _, winner in await read_records(place.broker, session_id, [record]):
        private = winner.get("private") or {}
        if private.get("outcome") == "answered":
            return Answered(answer_from_wire(private.get("answer")), session_id)
    return AlreadySettled()


def _checked(
    callback: OpenCallback, answer: object, definition: AgentDefinition | None
) -> tuple[dict[str, JsonValue], str, bytes]:
    """The answer's stored form, and for a client tool its call's open field and the bytes that complete it from now on."""
    match callback:
        case OpenApproval(request):
            if not isinstance(answer, (AllowApproval, DenyApproval)):
                raise SdkError(
                    f"An approval is answered with AllowApproval or DenyApproval, not {type(answer).__name__}"
                )
            if isinstance(answer, AllowApproval) and answer.scope == "session" and request.from_hook:
                raise SdkError("A hook's approval is allowed once; it has no session-wide scope")
            if isinstance(answer, DenyApproval) and answer.reason is not None:
                answer = DenyApproval(clean_text(answer.reason))
            return answer_to_wire(answer), "", b""
        case OpenSignIn(requests):
            if not isinstance(answer, SignInAnswer):
                raise SdkError(f"A sign-in is answered with SignInAnswer, not {type(answer).__name__}")
            named = [*answer.connected, *answer.denied]
            if sorted(named) != sorted(request.source_id for request in requests):
                raise SdkError("A SignInAnswer names each source that was asked exactly once, and no other")
            return answer_to_wire(answer), "", b""
        case OpenClientToolCall(call) if call.name.startswith(_PLATFORM):
            raise SdkError(f"{call.name} is a tool that runs at its source; no client answers its calls")
        case OpenClientToolCall(call):
            entry = _client_result(call.tool_call_id, call.name, answer, definition)
            completed = entry_tail("entryCompleted", entry)
            return {"type": "clientTool", "result": entry}, f"call:{call.tool_call_id}", completed
        case _:
            raise SdkError(f"This version cannot answer a callback of kind {callback.type!r}; a newer one can")


def _client_result(call_id: str, name: str, answer: object, definition: AgentDefinition | None) -> dict[str, JsonValue]:
    from workers.client_tools import stubs_by_id
    from workers.effects import stored_result
    from workers.tools import ToolError, to_result

    if isinstance(answer, (AllowApproval, DenyApproval, SignInAnswer)):
        raise SdkError(f"A client tool's call is answered with its result, not with {type(answer).__name__}")
    stub = None
    if definition is not None and all(unchecked.id != name for unchecked in definition.hook_stubs):
        stub = stubs_by_id(definition.stubs).get(name)
    try:
        result = stub.check(answer) if stub is not None else to_result(answer)
    except ToolError as bad:
        raise SdkError(str(bad)) from None
    return stored_result(new_id(), call_id, name, result)
