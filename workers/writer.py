"""A run's writes: one in flight, what piles up is the next. Each carries the run's fence, its number, and what it has seen.

A write waits past the end of the run's lease, until a renewal has confirmed it; and for as long as the broker is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from broker import runs
from broker.blobs import read_records
from broker.broker import Broker
from broker.log import read_raw
from broker.protocol.errors import BrokerUnavailableError, SessionBusyError
from broker.runs import Child, Gap, Write
from broker.transitions import Raw, session_key
from workers.effects import Effects, Record
from workers.fold import History
from workers.leases import Lease

T = TypeVar("T")

_PAGE = 200


class Writer:
    """Writes for one run of one turn, and keeps its history folded up to what it wrote.

    `on_gap` is called when the broker turns out to have lost writes: until `reload`, every write raises that `Gap`.
    """

    def __init__(
        self,
        broker: Broker,
        session_id: str,
        turn_id: str,
        fence: str,
        history: History,
        lease: Lease | None = None,
        on_gap: Callable[[], None] = lambda: None,
    ) -> None:
        self._broker = broker
        self._session_id = session_id
        self._turn_id = turn_id
        self._fence = fence
        self._op = 0
        self._next = Effects()
        self._text: tuple[str, str, list[str]] | None = None
        self._failed: Exception | None = None
        self._sending: asyncio.Future[Any] | None = None
        self._after: asyncio.Future[None] | None = None
        self._whole = asyncio.Event()
        self._whole.set()
        self._on_gap = on_gap
        self.lease = lease or Lease()
        self.history = history

    async def write(self, effects: Effects) -> None:
        """Apply effects; returns when they are in the log and folded.

        Raises `Superseded`, `Gap`, and what an earlier write met.
        """
        if self._failed is not None:
            raise self._failed
        self._take_text()
        self._next.extend(effects)
        await asyncio.shield(self._scheduled())

    def more_text(self, kind: str, entry_id: str, text: str) -> None:
        """Keep text of an open entry, and publish a message's: at once when no write is in flight, else with what piles up.

        Raises what an earlier write met, so that nobody streams into a turn that is not theirs any more.
        """
        if self._failed is not None:
            raise self._failed
        if self._text is not None and self._text[1] == entry_id:
            self._text[2].append(text)
        else:
            self._take_text()
            self._text = (kind, entry_id, [text])
        self._scheduled()

    async def flush(self) -> None:
        """Wait until everything handed in is in the log."""
        self._take_text()
        if self._next or self._sending is not None:
            await asyncio.shield(self._scheduled())

    def _take_text(self) -> None:
        if self._text is not None:
            kind, entry_id, pieces = self._text
            self._text = None
            self._next.more_text(kind, entry_id, "".join(pieces))

    async def spawn(self, child: Child, effects: Effects, limit: int) -> bool:
        """Start a subagent, with effects on this session; False when `limit` of them run already. Raises as `write`."""
        await self.flush()
        while self._sending is not None:
            await asyncio.shield(self._sending)
        if self._failed is not None:
            raise self._failed
        spawning = asyncio.ensure_future(self._spawn(child, effects, limit))
        self._sending = spawning
        return await asyncio.shield(spawning)

    async def _spawn(self, child: Child, effects: Effects, limit: int) -> bool:
        try:
            done = await self._ask(
                lambda stamp: runs.spawn(self._broker, stamp, child, effects.values, limit=limit, budget=self._budget)
            )
            if done is not None:
                await self._folded(effects, *done)
        except SessionBusyError:
            self._op -= 1  # refused whole: the next write is the one that the broker expects
            raise
        else:
            return done is not None
        finally:
            self._sending = asyncio.ensure_future(self._send()) if self._after is not None else None

    def _scheduled(self) -> asyncio.Future[None]:
        """The write that will carry what is handed in now: the next one, or one that starts at once."""
        if self._after is None:
            self._after = asyncio.get_running_loop().create_future()
            self._after.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may have no waiter
            if self._sending is None:
                self._sending = asyncio.ensure_future(self._send())
        return self._after

    async def _send(self) -> None:
        try:
            while (done := self._after) is not None:
                self._after = None
                self._take_text()
                effects, self._next = self._next, Effects()
                try:
                    if effects:
                        await self._append(effects)
                except BaseException as error:
                    self._fail(done, error)
                    raise
                if not done.done():
                    done.set_result(None)
        except Exception as error:  # noqa: BLE001 - whoever handed effects in has it, and whoever comes next
            self._failed = error
        finally:
            self._sending = None

    def _fail(self, done: asyncio.Future[None], error: BaseException) -> None:
        for waiting in (done, self._after):
            if waiting is not None and not waiting.done():
                if isinstance(error, asyncio.CancelledError):
                    waiting.cancel()
                else:
                    waiting.set_exception(error)
        self._after = None
        self._next, self._text = Effects(), None  # whoever handed it in knows now

    async def _append(self, effects: Effects) -> None:
        stored = await self._ask(lambda stamp: runs.append(self._broker, stamp, effects.values, budget=self._budget))
        await self._folded(effects, *stored)

    async def _ask(self, write: Callable[[Write], Awaitable[T]], seen: str | None = None) -> T:
        """Make the next write, for as long as it takes: the same one again, with its number, while the broker is away."""
        self._op += 1
        op, seen = self._op, self.history.last if seen is None else seen
        try:
            return await self._held(
                lambda: write(Write(self._session_id, self._fence, op, seen, until=self.lease.until))
            )
        except Gap as gap:
            self._lost(gap)
            raise

    def _lost(self, gap: Gap) -> None:
        self._failed = gap
        self._whole.clear()
        self._on_gap()

    @property
    def _budget(self) -> float:
        """For how long one try of a write may go on."""
        return min(self._broker.settings.lease, max(self.lease.left, 0.0))

    async def _held(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the broker, again and again while it is away, but only while the lease stands."""
        while True:
            await self.lease.stands()
            try:
                return await ask()
            except BrokerUnavailableError:
                continue

    async def _folded(self, effects: Effects, first: int, last: str) -> None:
        """Fold what a write stored; where something else came between, read the log instead."""
        if first != self.history.n + 1:
            await self.catch_up()
            return
        ms = last.partition("-")[2]
        for at, record in enumerate(effects.records):
            self.history.apply(f"{first + at}-{ms}", {"turnId": self._turn_id, **record})
        self.history.last, self.history.n = last, int(last.partition("-")[0])

    async def catch_up(self) -> None:
        """Fold what the log holds beyond the history: news from people, or what another write put between.

        Raises `Gap` when it no longer holds what was folded: to go on behind a hole would hide it.
        """
        more = True
        while more:
            more = await self._held(self._next_page)

    async def _next_page(self) -> bool:
        page, there = await asyncio.gather(
            read_raw(self._broker, self._session_id, last := self.history.last, _PAGE), self._is_there(last)
        )
        if not there:
            gap = Gap()
            self._lost(gap)
            raise gap
        await fold_raw(self._broker, self._session_id, self.history, page)
        return len(page) >= _PAGE

    async def _is_there(self, event: str) -> bool:
        key = self._broker.keys.of("log", self._session_id)
        return event == "0-0" or bool((await self._broker.read(("XRANGE", key, event, event)))[0])

    @property
    def gap(self) -> bool:
        """Whether the broker has lost writes, and nobody has reloaded yet."""
        return not self._whole.is_set()

    async def reload(self, first: Callable[[], Effects] = Effects) -> None:
        """Drop the fold after a `Gap`: read what the broker still has, write `first` there, and go on.

        Raises `Gap` anew, and what a write behind the gap met: where the turn is another's, there is nothing to go on with.
        """
        if not self.gap:
            return
        while self._sending is not None:
            await asyncio.wait({self._sending})
        if self._failed is not None and not isinstance(self._failed, Gap):
            raise self._failed
        (op,) = await self._held(lambda: self._broker.read(("HGET", session_key(self._broker, self._session_id), "op")))
        self._op, self.history = int(op or 0), History()
        await self.catch_up()
        if effects := first():
            await self._append(effects)
        self._failed = None
        self._whole.set()

    async def whole(self) -> None:
        """Wait until what the broker lost is known: until `reload`."""
        await self._whole.wait()

    async def park(self) -> bool:
        """Park the turn; False when there is news to fold first."""
        await self.flush()
        return await self._ask(lambda stamp: runs.park(self._broker, stamp, budget=self._budget))

    async def finish(
        self, state: Record, effects: Effects | None = None, *, regardless: bool = False, report: bytes = b""
    ) -> bool:
        """End the turn, after these effects; False when there is news to fold first, and nothing was written.

        `regardless`: a failure, or a hook, ends it whatever came. `report` is, of a subagent, the completed tail of its
        spawn call's result.
        """
        await self.flush()
        effects = effects or Effects()
        ended = effects.stored({"type": "turnEnded", "state": state})
        values = effects.values
        return await self._ask(
            lambda stamp: runs.finish(self._broker, stamp, ended, values, report=report, budget=self._budget),
            seen="" if regardless else None,
        )

    async def close(self) -> None:
        """Stop writing. What is in flight may still arrive; what waits does not."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


async def fold_raw(broker: Broker, session_id: str, history: History, raws: Sequence[Raw]) -> None:
    """Fold raw records, the next ones of the log. What was folded while they were read is passed over."""
    records: list[tuple[str, dict[str, Any]]] = await read_records(broker, session_id, raws)
    for stream_id, record in records:
        if int(stream_id.partition("-")[0]) > history.n:
            history.apply(stream_id, record)
