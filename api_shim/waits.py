"""Waiting for a turn: until it ends, or waits on a callback that nobody here answers.

A wait follows the session's events and reads the turn's record when something may have changed what it would return. Handlers run
beside the delivery of events. Leaving a wait sends nothing: the turn goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from api_shim.answers import send_answer
from api_shim.handlers import HandlerContext, Handlers, called
from api_shim.local import Place
from api_shim.states import TurnRead, read_turn
from broker.protocol.callbacks import (
    AllowApproval,
    DenyApproval,
    KeepCallbackOpen,
    OpenApproval,
    OpenCallback,
    OpenClientToolCall,
    OpenSignIn,
    SignInAnswer,
)
from broker.protocol.errors import AgentsError, ClientToolAnswerError, InvalidCursorError, ObservationLost, SdkError
from broker.protocol.events import CallbackOpened, CallbackResolved, Event, TurnEnded, TurnUpdated
from broker.protocol.records import AlreadySettled, Answered, Blocked, TurnState
from broker.protocol.wire import START, Position, parse_cursor

if TYPE_CHECKING:
    from workers.agent import AgentDefinition

_LOOK_S: Final = 5.0

OnEvent = Callable[[Event], Awaitable[None] | None]


def after_position(session_id: str, after: TurnState[Any] | str | None) -> Position | None:
    """Return the position of a record or cursor. Raises `InvalidCursorError` for one of another session or malformed.

    `TypeError` for what is neither.
    """
    if after is None:
        return None
    cursor = after if isinstance(after, str) else getattr(after, "cursor", None)
    if not isinstance(cursor, str):
        raise TypeError(f"after must be a record or a cursor, not {type(after).__name__}")
    return parse_cursor(session_id, cursor)


@dataclass(frozen=True)
class WaitOptions:
    """What a wait was asked for. `timeout` is in seconds."""

    after: Position | None = None
    timeout: float | None = None
    on_event: OnEvent | None = None


class _Clock:
    """Time left of a wait; it stands still while a client tool's answer is computed."""

    def __init__(self, timeout: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = None if timeout is None else self._loop.time() + max(timeout, 0)
        self._stopped: float | None = None

    def hold(self, held: bool) -> None:
        now = self._loop.time()
        if held and self._stopped is None:
            self._stopped = now
        elif not held and self._stopped is not None:
            if self._until is not None:
                self._until += now - self._stopped
            self._stopped = None

    @property
    def left(self) -> float | None:
        if self._until is None or self._stopped is not None:
            return None
        return max(self._until - self._loop.time(), 0)


class Wait:
    """One wait for one turn."""

    def __init__(
        self,
        place: Place,
        ids: tuple[str, str],
        options: WaitOptions,
        *,
        sent: bool,
        handlers: Handlers,
        definition: AgentDefinition | None,
    ) -> None:
        self._place = place
        self._session_id, self._turn_id = ids
        self._options = options
        self._sent = sent
        self._handlers = handlers
        self._definition = definition
        self._clock = _Clock(options.timeout)
        self._at: Position = START
        self._answering: dict[str, asyncio.Task[None]] = {}
        self._kept: set[str] = set()
        self._settled: set[str] = set()
        self._nudged = asyncio.get_running_loop().create_future()
        self._blocked = False  # as it was last read: then a nudge that got lost is made up for by looking now and then

    async def run(self) -> TurnState[Any]:
        """Return the turn's record once it has ended, waits on a callback, or time is up."""
        try:
            return await self._run()
        except asyncio.CancelledError as cancelled:
            cancelled.add_note(
                f"The wait was left; turn {self._turn_id} of session {self._session_id} goes on. "
                f"To stop it: await session.turn({self._turn_id!r}).interrupt()"
            )
            raise

    async def _run(self) -> TurnState[Any]:
        read = await self._read()
        on_event, after = self._options.on_event, self._options.after
        if read.end is not None and on_event is None:
            return read.state
        if after is not None:
            start = after  # also where nobody is handed events: reading from it tells whether the session ever had it
        elif on_event is None:
            start = read.last
        else:
            start = read.previous_end or START
        if read.end is not None and start >= read.end:
            return read.state
        try:
            while True:
                self._from, self._at = read.first, start
                try:
                    async with contextlib.aclosing(
                        self._place.hub.follow(self._session_id, start, nudged=self._nudge)
                    ) as events:
                        return await self._follow(events, read)
                except (ObservationLost, InvalidCursorError) as lost:
                    # Who is handed events, or counts from a place in the log, is told; a turn alone is waited for on.
                    if on_event is not None or after is not None or not self._is_rewritten(lost):
                        raise
                # It was there, so a send has returned it, whoever made this handle.
                read = await read_turn(self._place, self._session_id, self._turn_id, sent=True)
                start = read.last
        finally:
            for task in self._answering.values():
                task.cancel()
            await asyncio.gather(*self._answering.values(), return_exceptions=True)

    def _is_rewritten(self, lost: ObservationLost | InvalidCursorError) -> bool:
        """Whether the broker lost events that this wait had passed; not if it only stays away."""
        if isinstance(lost, InvalidCursorError):
            return True
        return lost.cursor is not None and parse_cursor(self._session_id, lost.cursor) < self._at

    def _nudge(self) -> None:
        if not self._nudged.done():
            self._nudged.set_result(None)

    async def _read(self) -> TurnRead:
        return await read_turn(self._place, self._session_id, self._turn_id, sent=self._sent)

    async def _follow(self, events: AsyncGenerator[Event, None], read: TurnRead) -> TurnState[Any]:
        """Deliver events until a read of the turn's record says what to return.

        A read is looked at once all events up to it are delivered, so that a handler never runs before its CallbackOpened.
        """
        due: TurnRead | None = read
        upcoming = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                if due is not None and self._at.n >= due.last.n:
                    if (state := self._look(due)) is not None:
                        return state
                    due = None
                waiting: set[asyncio.Future[Any]] = {upcoming, self._nudged, *self._answering.values()}
                done, _ = await asyncio.wait(waiting, timeout=self._patience, return_when=asyncio.FIRST_COMPLETED)
                look = self._reap() or self._nudged in done or (self._blocked and not done)
                if self._nudged.done():
                    self._nudged = asyncio.get_running_loop().create_future()
                if upcoming.done():
                    event = await upcoming
                    if event is None:  # the session ended, and with it its turn
                        return (await self._read()).state
                    await self._deliver(event)
                    if isinstance(event, TurnEnded) and event.turn_id == self._turn_id:
                        return event.state
                    look = self._noticed(event) or look
                    upcoming = asyncio.ensure_future(anext(events, None))
                if self._clock.left == 0:
                    return await self._expire(upcoming, events)
                if look:
                    due = await self._read()
        finally:
            upcoming.cancel()
            with contextlib.suppress(asyncio.CancelledError, AgentsError):
                await upcoming

    @property
    def _patience(self) -> float | None:
        left = self._clock.left
        if not self._blocked:
            return left
        return _LOOK_S if left is None else min(left, _LOOK_S)

    async def _expire(
        self, upcoming: asyncio.Future[Event | None], events: AsyncGenerator[Event, None]
    ) -> TurnState[Any]:
        """Time is up: return how the turn stands, once every event up to that is delivered."""
        read = await self._read()
        while self._options.on_event is not None and self._at.n < read.last.n:
            event = await upcoming
            if event is None:
                break
            await self._deliver(event)
            if isinstance(event, TurnEnded) and event.turn_id == self._turn_id:
                return event.state
            if self._at.n < read.last.n:
                upcoming = asyncio.ensure_future(anext(events, None))
        return read.state

    # Events.

    async def _deliver(self, event: Event) -> None:
        position = parse_cursor(self._session_id, event.id)
        self._at = position
        if self._options.on_event is None or position < self._from:
            return
        await called(self._options.on_event, event)

    def _noticed(self, event: Event) -> bool:
        """Whether an event may change what the wait returns."""
        if isinstance(event, CallbackResolved):
            task = self._answering.get(event.callback_id)
            if task is not None and not getattr(task, "client_tool", False):
                self._settled.add(event.callback_id)
                task.cancel()  # someone else settled it
            return False
        # That of a subagent opened no callback here: the turn's status says so.
        return isinstance(event, CallbackOpened) or (isinstance(event, TurnUpdated) and event.status == "blocked")

    # Callbacks.

    def _look(self, read: TurnRead) -> TurnState[Any] | None:
        """The record to return now; None while the turn runs on, or handlers of this wait answer what it waits for."""
        state = read.state
        self._blocked = isinstance(state, Blocked)
        if read.end is not None and self._options.on_event is None:
            return state
        for callback_id, task in self._answering.items():
            if callback_id not in read.opened and not getattr(task, "client_tool", False):
                self._settled.add(callback_id)
                task.cancel()  # someone else settled it
        if not isinstance(state, Blocked):
            return None
        after = self._options.after or START
        new = [callback for callback in state.callbacks if read.opened[callback.id] > after]
        open_to_others = False
        for callback in new:
            if callback.id in self._kept or not self._handlers.handles(callback, self._definition):
                open_to_others = True
            elif callback.id not in self._answering:
                self._answer(callback)
        # Not while handlers are at work: leaving would cancel them, and the record would hold what they are about to answer.
        return state if open_to_others and not self._answering else None

    def _answer(self, callback: OpenCallback) -> None:
        if isinstance(callback, OpenClientToolCall):
            self._clock.hold(held=True)
            task = asyncio.create_task(self._answer_client_tool(callback))
            task.client_tool = True  # type: ignore[attr-defined] # its time is not counted
        else:
            task = asyncio.create_task(self._answer_person(callback))
        self._answering[callback.id] = task

    def _reap(self) -> bool:
        """Take in what handlers did; raises what they raised. True when one is done: what is left may be for others."""
        looked = False
        for callback_id, task in list(self._answering.items()):
            if task.done():
                del self._answering[callback_id]
                if not task.cancelled() or callback_id not in self._settled:
                    task.result()  # a handler's own CancelledError is its exception like any other
                looked = True
        self._clock.hold(held=any(getattr(task, "client_tool", False) for task in self._answering.values()))
        return looked

    async def _answer_person(self, callback: OpenCallback) -> None:
        context = HandlerContext(callback.session_id, callback.turn_id, callback.id, callback.title)
        if isinstance(callback, OpenApproval) and self._handlers.on_approval is not None:
            answer = await called(self._handlers.on_approval, context, callback.request)
            allowed: tuple[type, ...] = (AllowApproval, DenyApproval)
        elif isinstance(callback, OpenSignIn) and self._handlers.on_sign_in is not None:
            answer = await called(self._handlers.on_sign_in, context, callback.requests)
            allowed = (SignInAnswer,)
        else:
            return
        if isinstance(answer, KeepCallbackOpen):
            self._kept.add(callback.id)
            return
        if not isinstance(answer, allowed):
            names = " or ".join(kind.__name__ for kind in (*allowed, KeepCallbackOpen))
            raise SdkError(
                f"The handler returned {type(answer).__name__}; it must return {names}. The callback stays open."
            )
        await send_answer(self._place, callback.session_id, callback.id, answer, self._definition)

    async def _answer_client_tool(self, callback: OpenClientToolCall) -> None:
        """Answer a call once in this event loop, whatever the number of waits."""
        shared = self._place.client_answers
        task = shared.get(callback.id)
        if task is None:
            task = shared[callback.id] = asyncio.create_task(self._compute(callback))
            task.add_done_callback(lambda _: shared.pop(callback.id, None))
        try:
            kept = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            kept = True  # the answering function was cancelled: its call is left to someone else
        if kept:
            self._kept.add(callback.id)

    async def _compute(self, callback: OpenClientToolCall) -> bool:
        from workers.tools import ToolError, error_result

        handler = self._handlers.client_tool_for(callback.call.name, self._definition)
        if handler is None:
            return True
        try:
            answer = await called(handler, callback.call)
            if isinstance(answer, KeepCallbackOpen):
                return True
        except Exception as failed:
            if self._definition is not None and self._definition.tool_errors == "raise":
                raise
            said = str(failed) if isinstance(failed, ToolError) else f"{type(failed).__name__}: {failed}"
            answer = error_result(said)
        try:
            sent = await send_answer(self._place, callback.session_id, callback.id, answer, self._definition)
        except (AgentsError, ValueError) as failed:
            raise ClientToolAnswerError(
                f"Session {callback.session_id}: the answer to {callback.call.name} could not be sent ({failed}); "
                f"its call stays open."
            ) from failed
        return not isinstance(sent, (Answered, AlreadySettled))
