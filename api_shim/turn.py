"""`Turn`: a turn of a session, by its id."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from api_shim.answers import send_answer
from api_shim.arguments import check_wait
from api_shim.sends import build_message
from api_shim.states import TurnRead, lost_turn, read_turn
from api_shim.waits import Wait, WaitOptions, after_position
from broker import dead_letters, transitions
from broker.protocol.content import ImageContentBlock, TextContentBlock
from broker.protocol.errors import SessionNotFoundError
from broker.protocol.events import Event, TurnEnded
from broker.protocol.records import AlreadySettled, Answered, Busy, NotFound, TurnConflict, TurnState, parse_output
from broker.protocol.values import clean_text
from broker.protocol.wire import START, format_cursor

if TYPE_CHECKING:
    from api_shim.session import Session


class Turn:
    """A turn, by its id. Making a handle sends nothing. Handles of the same turn of the same session are equal."""

    def __init__(self, session: Session, turn_id: str, *, started: bool | None = None, sent: bool = False) -> None:
        self._session = session
        self._id = clean_text(turn_id)
        self._started = started
        self._sent = sent

    @property
    def id(self) -> str:
        """The turn's id."""
        return self._id

    @property
    def started(self) -> bool | None:
        """True when a send started this turn, False when a send joined it, None for a handle that no send returned."""
        return self._started

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Turn) and self._id == other._id and self._session == other._session

    def __hash__(self) -> int:
        return hash((self._id, self._session))

    def __repr__(self) -> str:
        return f"<Turn {self._id} of {self._session.id}>"

    async def _read(self) -> TurnRead:
        place = await self._session._place()  # noqa: SLF001 - a turn is part of its session's handle
        return await read_turn(place, self._session.id, self._id, sent=self._sent)

    async def get(self) -> TurnState[Any]:
        """Read the turn's state now; its cursor is the session's last event.

        Raises `TurnNotFoundError`; for a turn that a send returned, `ObservationLost` instead.
        """
        read = await self._read()
        state = replace(read.state, cursor=format_cursor(self._session.id, read.last))
        return parse_output(state, self._session._output_type)  # noqa: SLF001 - a turn is part of its session's handle

    async def result(
        self,
        *,
        output_type: type[BaseModel] | None = None,
        after: TurnState[object] | str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the specification's name; an expired wait returns a record
        on_event: Callable[[Event], Awaitable[None] | None] | None = None,
    ) -> TurnState[Any]:
        """Wait until the turn ends or waits on a callback opened after `after`; at `timeout` seconds, return how it stands.

        Raises `TurnNotFoundError`, `InvalidCursorError`, `ObservationLost`, `ClientToolAnswerError`, what a handler raised,
        and what `on_event` raised. Leaving the wait stops nothing.
        """
        check_wait(timeout, on_event)
        session = self._session
        options = WaitOptions(after_position(session.id, after), timeout, on_event)
        wait = Wait(
            await session._place(),  # noqa: SLF001 - a turn is part of its session's handle
            (session.id, self._id),
            options,
            sent=self._sent,
            handlers=session._handlers,  # noqa: SLF001 - as above
            definition=session._definition,  # noqa: SLF001 - as above
        )
        return parse_output(await wait.run(), output_type or session._output_type)  # noqa: SLF001 - as above

    async def iter_events(self, *, after: TurnState[object] | str | None = None) -> AsyncIterator[Event]:
        """Yield every event of the session from after `after`, or after the previous turn's end, up to this turn's end.

        The first iteration raises `TurnNotFoundError`, `InvalidCursorError`; any may raise `ObservationLost`.
        """
        position = after_position(self._session.id, after)
        read = await self._read()
        start = read.previous_end or START
        if position is not None:
            start = max(start, position)
        if read.end is not None and start >= read.end:
            return
        place = await self._session._place()  # noqa: SLF001 - a turn is part of its session's handle

        def ended(event: Event) -> bool:
            return isinstance(event, TurnEnded) and event.turn_id == self._id

        async with contextlib.aclosing(place.hub.follow(self._session.id, start, ended)) as events:
            async for event in events:
                yield event

    async def steer(
        self, content: str | Sequence[TextContentBlock | ImageContentBlock | Mapping[str, Any]]
    ) -> Turn | TurnConflict:
        """Add a message to this turn; `TurnConflict` when it is not the active one, and then nothing is added."""
        place = await self._session._place()  # noqa: SLF001 - a turn is part of its session's handle
        message = build_message(content, place.broker.settings)
        conflict = await transitions.steer(place.broker, self._session.id, self._id, message)
        if conflict is not None:
            return TurnConflict(conflict.turn)
        return Turn(self._session, self._id, started=False, sent=True)

    async def answer(self, callback_id: str, answer: object) -> Answered | AlreadySettled | NotFound:
        """Answer any open callback of the session; the turn's id is not used.

        Raises `ValueError` for a callback id that is no UUID, `SdkError` for an answer that does not fit; then nothing is sent.
        """
        place = await self._session._place()  # noqa: SLF001 - a turn is part of its session's handle
        try:
            return await send_answer(place, self._session.id, callback_id, answer, self._session._definition)  # noqa: SLF001
        except SessionNotFoundError as missing:
            if not self._sent:
                raise
            raise lost_turn(self._session.id, self._id) from missing

    async def retry(self) -> Turn | Busy:
        """Take this turn out of the dead letters: start a new one with its input, and return that; a repeat returns it again.

        `Busy` when another turn is active. Raises `TurnNotFoundError` when it is not in the dead letters,
        `UnsupportedSessionProcedureError` for a subagent's, `SessionTerminatedError`, `SessionBusyError`.
        """
        place = await self._session._place()  # noqa: SLF001 - a turn is part of its session's handle
        retried = await dead_letters.retry(place.broker, self._session.id, self._id)
        if isinstance(retried, transitions.ActiveTurn):
            return Busy(Turn(self._session, retried.turn or "", sent=True))
        return Turn(self._session, retried.turn, started=True, sent=True)

    async def interrupt(self) -> Turn | TurnConflict:
        """Stop this turn; the session stays open. `TurnConflict` when it is not the active one."""
        place = await self._session._place()  # noqa: SLF001 - a turn is part of its session's handle
        conflict = await transitions.interrupt(place.broker, self._session.id, self._id)
        return self if conflict is None else TurnConflict(conflict.turn)
