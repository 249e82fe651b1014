"""Following sessions live: any number of observers in a process share one subscription and one catch-up connection.

A new observer waits until its session's channel is confirmed, reads the log from its cursor, then goes on in the
session's ring, dropping what it has. A lost last message leaves no hole to see, so at each confirmation, and after a
silence, the hub reads the last ids of its sessions, one call for each shard, and fetches what is missing. An observer
never notices a dropped connection within the reconnect budget, and slowness alone never loses it: one that falls behind
the ring reads the log at its own pace.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any, Final

from broker import log, transitions
from broker.broker import Broker
from broker.feed import Feed
from broker.followed import Followed, Observer
from broker.keys import shard_of
from broker.log import Stored
from broker.protocol.errors import (
    BrokerUnavailableError,
    InvalidCursorError,
    ObservationLost,
    SdkError,
    SessionNotFoundError,
)
from broker.protocol.events import Event
from broker.protocol.wire import START, Position, format_cursor, parse_stream_id
from broker.ring import RING_BYTES, Ring, is_end
from broker.transitions import session_key

LINGER_S: Final = 10.0
"""How long a session stays subscribed after its last observer has left."""

_TICK_S: Final = 1.0
_SESSIONS_AT_ONCE: Final = 500
_logger = logging.getLogger(__name__)


class Hub:
    """What one process observes. It connects for the first observer, and hangs up after the last one has left."""

    def __init__(self, broker: Broker, *, ring_bytes: int = RING_BYTES) -> None:
        self._broker = broker
        self._ring_bytes = ring_bytes
        self._feed = Feed(broker, heard=self._heard, confirmed=self._confirmed, gave_up=self._gave_up)
        self._followed: dict[str, Followed] = {}
        self._by_channel: dict[str, Followed] = {}
        self._due = asyncio.Event()
        self._attendant: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._blind_since: float | None = None
        self._closed = False

    async def follow(
        self,
        session_id: str,
        after: Position | None = None,
        until: Callable[[Event], bool] | None = None,
        *,
        nudged: Callable[[], None] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield a session's events after a position (None: from the start), then each as it happens.

        Ends after an event for which `until` is true, and when the session has ended. `nudged` is called when a subagent's
        callback opened or closed, which is no event of this session. Raises `SessionNotFoundError`,
        `InvalidCursorError` for a position ahead of the log, and `ObservationLost`, with the cursor to go on from, when
        the log no longer holds the position or the broker stayed away for the setting `reconnect_budget`. Whoever stops
        early closes the generator (`aclose`).
        """
        session_key(self._broker, session_id)
        followed = self._join(session_id)
        observer = Observer(after or START)
        followed.observers.add(observer)
        try:
            async with aclosing(self._records(followed, observer)) as records:
                async for record in records:
                    if not record.events and nudged is not None:
                        nudged()
                    for event in record.events:
                        yield event
                        if until is not None and until(event):
                            return
        finally:
            self._leave(followed, observer)

    async def _records(self, followed: Followed, observer: Observer) -> AsyncGenerator[Stored, None]:
        """Yield from the log until the ring reaches back to the observer, then from the ring, and so on."""
        await self._ready(followed, observer)
        checked = False
        while True:
            page = await self._page(followed, observer, checked=checked)
            checked, over = True, page.terminated
            for record in page.records:
                observer.position = record.position
                over = page.terminated or is_end(record)
                yield record
            if (
                over
            ):  # nothing will come that is not in the log: a full page may be the last one, and only the next one tells
                if page.complete:
                    return
                continue
            if page.complete and not page.records and followed.ring.index_after(observer.position) is None:
                await self._recheck(followed, observer)  # the log ends here, and the ring is elsewhere
            while (item := await self._live(followed, observer)) is not None:
                if item.position > observer.position:
                    observer.position = item.position
                    yield item
                if is_end(item):
                    return

    async def close(self) -> None:
        """Close the connection. Observers that wait are cancelled, later ones are refused."""
        self._closed = True
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await self._feed.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        for followed in self._followed.values():
            for waiter in followed.waiting:
                waiter.cancel()
        self._followed.clear()
        self._by_channel.clear()

    # What an observer does.

    def _join(self, session_id: str) -> Followed:
        if self._closed:
            raise SdkError(f"Session {session_id} cannot be followed: this process has closed its connections.")
        followed = self._followed.get(session_id)
        if followed is None:
            channel = self._broker.keys.live(session_id)
            followed = Followed(session_id, channel, Ring(session_id, self._ring_bytes))
            self._followed[session_id] = self._by_channel[channel] = followed
            self._feed.want(channel)
            if self._attendant is None:
                self._attendant = self._spawn(self._attend(), "hub")
        followed.left = None
        return followed

    def _leave(self, followed: Followed, observer: Observer) -> None:
        followed.observers.discard(observer)
        if not followed.observers:
            followed.left = asyncio.get_running_loop().time()

    async def _ready(self, followed: Followed, observer: Observer) -> None:
        """Wait until the channel is confirmed and the log's end is known."""
        try:
            async with asyncio.timeout(self._broker.settings.reconnect_budget):
                while followed.ring.position is None:
                    await self._news(followed, observer)
        except TimeoutError:
            cursor = format_cursor(followed.session_id, observer.position)
            raise ObservationLost(
                f"Session {followed.session_id}: its events could not be subscribed to in time; "
                f"go on after the cursor.",
                cursor,
            ) from None

    async def _news(self, followed: Followed, observer: Observer) -> None:
        """Wait until something happens to the session. Raises what ended its observation."""
        if followed.failure is not None:
            raise followed.failure(observer.position)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            waiter.cancel()
        followed.waiting.add(waiter)
        try:
            await waiter
        finally:
            followed.waiting.discard(waiter)
        if followed.failure is not None:
            raise followed.failure(observer.position)

    async def _page(self, followed: Followed, observer: Observer, *, checked: bool) -> log.Page:
        """Read the log on from where the observer is. One that held before and holds no more: observation lost."""
        observer.index = None
        try:
            try:
                return await log.read_page(self._broker, followed.session_id, observer.position)
            except InvalidCursorError as ahead:
                if not checked:
                    raise
                raise await self._cut_short(followed, observer) from ahead
            except SessionNotFoundError as gone:
                if not checked:
                    raise
                raise followed.vanished() from gone
        except BrokerUnavailableError as away:
            raise ObservationLost(str(away), format_cursor(followed.session_id, observer.position)) from away

    async def _cut_short(self, followed: Followed, observer: Observer) -> ObservationLost:
        """What is raised where the log ends before the observer's position."""
        last = parse_stream_id((await transitions.tails(self._broker, [followed.session_id]))[0] or "0-0")
        common = await log.common_position(self._broker, followed.session_id, observer.position, last)
        return ObservationLost(
            f"Session {followed.session_id}: the broker lost events that had been read; go on from "
            f"{common.stream_id}, the last one that it still holds.",
            format_cursor(followed.session_id, common),
        )

    async def _live(self, followed: Followed, observer: Observer) -> Stored | None:
        """Wait for the observer's next item in the ring; None when it must read the log, being behind the ring."""
        ring = followed.ring
        index = ring.index_after(observer.position) if observer.index is None else observer.index
        observer.index = index
        while index == ring.end:
            await self._news(followed, observer)
        if index is None or index < ring.base:
            return None
        observer.index = index + 1
        return ring[index]

    async def _recheck(self, followed: Followed, observer: Observer) -> None:
        followed.unchecked = True
        self._due.set()
        await self._news(followed, observer)

    # What the subscription tells.

    def _heard(self, channel: str, message: bytes) -> None:
        followed = self._by_channel.get(channel)
        if followed is None:
            return
        followed.heard = asyncio.get_running_loop().time()
        ring = followed.ring
        if ring.position is None or followed.filling is not None:
            ring.hold(message)
        elif ring.take(message):
            followed.wake()
        else:
            ring.hold(message)
            self._fill(followed)

    def _confirmed(self, channel: str) -> None:
        followed = self._by_channel.get(channel)
        if followed is not None:
            followed.unchecked = True
            self._due.set()

    def _gave_up(self, reason: str) -> None:
        for followed in [*self._followed.values()]:
            self._drop(followed)
            followed.lose(reason)

    # What the hub does by itself.

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("observing stopped: a fault in %s", task.get_name(), exc_info=error)
            self._gave_up(f"observing stopped by a fault ({type(error).__name__})")

    async def _attend(self) -> None:
        """Check what was confirmed or is quiet, drop what everybody has read, unsubscribe from what nobody follows."""
        clock = asyncio.get_running_loop().time
        try:
            while self._followed:
                try:
                    async with asyncio.timeout(_TICK_S):
                        await self._due.wait()
                except TimeoutError:
                    pass
                self._due.clear()
                now = clock()
                for followed in [*self._followed.values()]:
                    if followed.left is not None and now - followed.left >= LINGER_S:
                        self._drop(followed)
                    followed.trim()
                await self._check([each for each in self._followed.values() if each.wants_check(now)])
        finally:
            self._attendant = None

    def _drop(self, followed: Followed) -> None:
        """Follow a session no longer, and unsubscribe."""
        if self._followed.get(followed.session_id) is followed:
            del self._followed[followed.session_id], self._by_channel[followed.channel]
            self._feed.forget(followed.channel)
        if followed.filling is not None:
            followed.filling.cancel()

    async def _check(self, those: Iterable[Followed]) -> None:
        """Compare where these sessions' logs end with what their rings know, and fetch what is missing."""
        shards: defaultdict[int | None, list[Followed]] = defaultdict(list)
        for followed in those:
            shards[shard_of(followed.session_id)].append(followed)
        groups = (
            group[at : at + _SESSIONS_AT_ONCE]
            for group in shards.values()
            for at in range(0, len(group), _SESSIONS_AT_ONCE)
        )
        await asyncio.gather(*(self._check_shard(group) for group in groups))

    async def _check_shard(self, group: list[Followed]) -> None:
        held = [followed.ring.held for followed in group]
        for followed in group:
            followed.unchecked = False
        try:
            ends = await transitions.tails(self._broker, [followed.session_id for followed in group])
            blind = "the broker is a replica that does not reach its primary" if await self._broker.is_cut_off() else ""
        except BrokerUnavailableError as away:
            blind = str(away)
        if blind:
            for followed in group:
                followed.unchecked = True
            self._see_nothing(blind)
            return
        self._blind_since = None
        for followed, end, settled in zip(group, ends, held, strict=True):
            self._compare(followed, end, settled)

    def _see_nothing(self, reason: str) -> None:
        """A subscription may stand while there is nothing to hear: observers are told of that, too, once the budget is over."""
        now = asyncio.get_running_loop().time()
        since = self._blind_since = self._blind_since or now
        if now - since > self._broker.settings.reconnect_budget:
            self._blind_since = None
            self._gave_up(reason)

    def _compare(self, followed: Followed, end: str | None, settled: int) -> None:
        followed.heard = asyncio.get_running_loop().time()
        ring = followed.ring
        if end is None:
            self._drop(followed)
            known = ring.position is not None
            if known and followed.observers:  # else its retention is over, as it should be
                _logger.warning("session %s: the broker holds it no longer: it lost writes", followed.session_id)
            followed.fail(
                lambda _position: followed.vanished() if known else transitions.no_session(followed.session_id)
            )
        elif ring.position is None:
            ring.start(parse_stream_id(end))
            if not ring.replay(settled):
                self._fill(followed)
        elif ring.position.stream_id != end:
            self._fill(followed)
        followed.wake()

    def _fill(self, followed: Followed) -> None:
        if followed.filling is None and followed.session_id in self._followed:
            followed.filling = self._spawn(self._read_on(followed), "hub: reading on")

    async def _read_on(self, followed: Followed) -> None:
        """Read the log from where the ring ends; meanwhile messages are held, and then taken."""
        ring = followed.ring
        try:
            while True:
                settled = ring.held
                page = await log.read_page(self._broker, followed.session_id, ring.position)
                ring.extend(page.records)
                followed.wake()
                if page.complete and ring.replay(settled):
                    return
        except (InvalidCursorError, ObservationLost):
            # Each observer finds out for itself whether its own position still holds.
            _logger.warning("session %s: the broker lost events: history was rewritten", followed.session_id)
            ring.reset()
            followed.unchecked = True
            self._due.set()
        except SessionNotFoundError:
            self._compare(followed, None, 0)
        except BrokerUnavailableError as away:
            self._drop(followed)
            followed.lose(str(away))
        finally:
            followed.filling = None
            followed.wake()
