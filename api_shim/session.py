"""`Session`: a session, by its id."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from api_shim.arguments import check_limit, check_wait, checked_title
from api_shim.handlers import Handlers
from api_shim.listing import SessionInfo, children_of, read_history, read_info, read_turn_ids
from api_shim.local import Host, Place, place_key, place_of
from api_shim.sends import send
from api_shim.turn import Turn
from api_shim.waits import after_position
from broker import transitions
from broker.contents import replaced_note
from broker.protocol.content import ImageContentBlock, TextContentBlock
from broker.protocol.entries import HistoryEntry
from broker.protocol.events import Event
from broker.protocol.records import Busy, TurnState
from broker.protocol.values import dumps, watch_replaced
from broker.transitions import ActiveTurn

if TYPE_CHECKING:
    from workers.agent import AgentDefinition


class Session:
    """A session, by its id. Making a handle sends nothing. Handles of the same session at the same place are equal."""

    def __init__(
        self,
        session_id: str,
        *,
        host: Host,
        definition: AgentDefinition | None = None,
        handlers: Handlers | None = None,
        child: bool = False,
    ) -> None:
        if not isinstance(session_id, str):
            raise TypeError(f"session_id must be a text, not {type(session_id).__name__}")
        self._id = session_id
        self._host = host
        self._definition = definition
        self._handlers = handlers or Handlers()
        self._child = child

    @property
    def id(self) -> str:
        """The session's id."""
        return self._id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and self._id == other._id and self._where == other._where

    def __hash__(self) -> int:
        return hash((self._id, self._host))

    def __repr__(self) -> str:
        return f"<Session {self._id}>"

    @property
    def _where(self) -> object:
        return place_key(self._host)

    @property
    def _output_type(self) -> type[BaseModel] | None:
        """What the agent's output is; a subagent's is its own."""
        if self._definition is None or self._child:
            return None
        return self._definition.output_type

    async def _place(self) -> Place:
        place = place_of(self._host)
        await place.ready()
        if self._definition is not None:
            await place.serve(self._definition)
        return place

    def turn(self, turn_id: str) -> Turn:
        """Return a handle of one of the session's turns; sends nothing."""
        if not isinstance(turn_id, str):
            raise TypeError(f"turn_id must be a text, not {type(turn_id).__name__}")
        return Turn(self, turn_id)

    async def send_message(
        self,
        content: str | Sequence[TextContentBlock | ImageContentBlock | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
    ) -> Turn:
        """Send a message: it starts a turn, or joins the active one; `turn.started` says which.

        The same key gives the same turn. Raises `ValueError` or `TypeError` naming the argument, `SessionNotFoundError`,
        `SessionTerminatedError`, `SessionIdempotencyConflictError`, `SessionBusyError`, `OutcomeUnknownError`.
        """
        place = await self._place()
        sent = await send(place.broker, self._id, content, key=idempotency_key, join=True)
        if isinstance(sent, ActiveTurn):
            raise AssertionError("a message that may join is never refused as busy")
        return Turn(self, sent.turn, started=sent.started, sent=True)

    async def start_turn(
        self,
        content: str | Sequence[TextContentBlock | ImageContentBlock | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
    ) -> Turn | Busy:
        """Start a turn; `Busy`, with the active turn, when one is active, and then the key is not used up.

        Raises as `send_message`.
        """
        place = await self._place()
        sent = await send(place.broker, self._id, content, key=idempotency_key, join=False)
        if isinstance(sent, ActiveTurn):
            return Busy(Turn(self, sent.turn or "", sent=True))
        return Turn(self, sent.turn, started=True, sent=True)

    async def run(
        self,
        content: str | Sequence[TextContentBlock | ImageContentBlock | Mapping[str, Any]],
        *,
        output_type: type[BaseModel] | None = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the specification's name; an expired wait returns a record
        on_event: Callable[[Event], Awaitable[None] | None] | None = None,
    ) -> TurnState[Any] | Busy:
        """Start a turn and wait until it ends or waits on a callback: `start_turn`, then `turn.result`. Raises as both."""
        check_wait(timeout, on_event)
        turn = await self.start_turn(content, idempotency_key=idempotency_key)
        if isinstance(turn, Busy):
            return turn
        return await turn.result(output_type=output_type, timeout=timeout, on_event=on_event)

    async def iter_events(self, *, after: TurnState[object] | str | None = None) -> AsyncIterator[Event]:
        """Yield the session's events after a record or cursor, or from its start, until the session ends.

        The first iteration raises `InvalidCursorError`, `SessionNotFoundError`; any may raise `ObservationLost`.
        """
        position = after_position(self._id, after)
        place = await self._place()
        async with contextlib.aclosing(place.hub.follow(self._id, position)) as events:
            async for event in events:
                yield event

    async def cancel(self) -> None:
        """End the session and its subagents; its history stays readable. One that has ended stays as it is."""
        await transitions.cancel((await self._place()).broker, self._id)

    async def subagents(self) -> list[Session]:
        """Return handles of the session's direct subagents, newest first; they share this handle's handlers."""
        place = await self._place()
        return [
            Session(child, host=self._host, definition=self._definition, handlers=self._handlers, child=True)
            for child in await children_of(place.broker, self._id)
        ]

    # Beyond the reference pages.

    async def info(self) -> SessionInfo:
        """Return what is known about the session. Raises `SessionNotFoundError`."""
        return await read_info((await self._place()).broker, self._id)

    async def history(
        self, *, after: TurnState[object] | str | None = None, limit: int | None = None
    ) -> AsyncIterator[HistoryEntry]:
        """Yield the session's complete entries, oldest first, at most `limit`."""
        check_limit(limit)
        position = after_position(self._id, after)
        place = await self._place()
        async with contextlib.aclosing(read_history(place.broker, self._id, position, limit)) as entries:
            async for entry in entries:
                yield entry

    async def turns(self) -> list[Turn]:
        """Return handles of the session's turns, oldest first."""
        place = await self._place()
        return [Turn(self, turn_id) for turn_id in await read_turn_ids(place.broker, self._id)]

    async def rename(self, title: str) -> None:
        """Set the session's title."""
        with watch_replaced() as replaced:
            stored = dumps(checked_title(title))
        note = replaced_note("session", "The title") if replaced else None
        await transitions.retitle((await self._place()).broker, self._id, title=stored, note=note)

    async def archive(self, archived: bool = True) -> None:
        """Archive the session, or take it back."""
        await transitions.retitle((await self._place()).broker, self._id, archived=bool(archived))
