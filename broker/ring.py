"""The last events of one followed session, decoded once and shared by its observers. Pure: it reads and sends nothing.

An item has an index that never changes, so an observer keeps a number, not a queue. What falls out is in the log.

    dropped │ base … items … end     `floor`: the stored event before the first item; `position`: the last one known

A published message is taken only if it follows what the ring has. If it does not (a hole, a body kept as a blob, an id
that is not the one known), the caller reads the log after `position`, extends the ring, and replays what it held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

from broker.log import Stored, decode_records
from broker.protocol.events import SessionUpdated
from broker.protocol.values import loads
from broker.protocol.wire import START, Position, decode

RING_BYTES: Final = 1024 * 1024
"""Most bytes that a ring keeps, as stored. An observer that falls behind it goes back to reading the log."""


def is_end(record: Stored) -> bool:
    """Whether the session has ended with this record."""
    return any(isinstance(event, SessionUpdated) and event.status == "terminated" for event in record.events)


def _order(item: Stored) -> tuple[int, int]:
    return (item.position.n, item.position.k)


class Ring:
    """Events of one session, from `floor` on. Until `start`, and after `reset`, its position is None: not known."""

    def __init__(self, session_id: str, limit: int = RING_BYTES) -> None:
        self._session_id = session_id
        self._limit = limit
        self._items: list[Stored] = []
        self._size = 0
        self._held: list[bytes] = []
        self._held_size = 0
        self._overflowed = False
        self.base = 0
        self.floor = START
        self.position: Position | None = None

    @property
    def end(self) -> int:
        """The index after the last item."""
        return self.base + len(self._items)

    @property
    def held(self) -> int:
        """How many messages wait for the log to be read."""
        return len(self._held)

    def __getitem__(self, index: int) -> Stored:
        return self._items[index - self.base]

    def start(self, position: Position) -> None:
        """Let the ring follow what is stored after `position`."""
        self.floor = self.position = position

    def reset(self) -> None:
        """Forget everything: history was rewritten. Whoever reads from the ring finds itself behind it."""
        self.base = self.end + 1
        self._items, self._size = [], 0
        self._held, self._held_size, self._overflowed = [], 0, False
        self.position = None

    def index_after(self, position: Position) -> int | None:
        """Return the first index after a position; None when the ring does not reach back, or differs there."""
        if self.position is None or position.n < self.floor.n:
            return None
        at = bisect_right(self._items, (position.n, position.k), key=_order)
        if position.n <= self.position.n and self._time_at(position.n) != position.ms:
            return None
        return self.base + at

    def _time_at(self, n: int) -> int | None:
        """Return the time under which event `n` is known here, or None."""
        if self.position is not None and n == self.position.n:
            return self.position.ms
        if n == self.floor.n:
            return self.floor.ms
        at = bisect_right(self._items, (n, 0), key=_order) - 1
        if at >= 0 and self._items[at].position.n == n:
            return self._items[at].position.ms
        return None

    def hold(self, message: bytes) -> None:
        """Keep a message until the log has been read. Past the bound they are dropped, and the log is read again."""
        self._held.append(message)
        self._held_size += len(message)
        if self._held_size > self._limit:
            self._held, self._held_size, self._overflowed = [], 0, True

    def replay(self, settled: int) -> bool:
        """Take what was held; the first `settled` messages came before a read that reached the log's end.

        What does not fit among those is of no account: the log that was read is the truth. Returns False when the log
        must be read again, for what came later.
        """
        held, self._held, self._held_size = self._held, [], 0
        overflowed, self._overflowed = self._overflowed, False
        for at, message in enumerate(held):
            if not self.take(message) and (overflowed or at >= settled):
                for left in held[at:]:
                    self.hold(left)
                return False
        return not overflowed

    def take(self, message: bytes) -> bool:
        """Take a published message (`scripts/include/emit.lua`); False, and nothing taken, when it does not fit."""
        try:
            published: dict[str, Any] = loads(message)
            place = Position(published["n"], published["ms"], published.get("k", 0))
            if "d" in published:
                return self._take_delta(place, published["d"], len(message))
            return self._take_stored(place, published["e"], len(message), published.get("p"))
        except (ValueError, KeyError, TypeError):
            return False  # not ours: reading the log tells what is true

    def _take_delta(self, place: Position, record: dict[str, Any], size: int) -> bool:
        known = self.position
        if known is None or place.n > known.n:
            return False
        if place.n < known.n or (place.ms == known.ms and place.k <= known.k):
            return True  # its place is over, or it is here
        if place.ms != known.ms:
            return False
        self._add([Stored(place, decode(self._session_id, place, record), size)])
        return True

    def _take_stored(self, first: Position, bodies: list[dict[str, Any]], size: int, before: int | None) -> bool:
        """`before` is the time of the event that the first one follows; older workers do not say it."""
        known, last = self.position, first.n + len(bodies) - 1
        if known is None or first.n > known.n + 1:
            return False
        if first.n == known.n + 1 and before not in (None, known.ms):
            return False  # it follows another history than the one that is known here
        repeated = max(0, known.n - first.n + 1)
        # All records of a message were stored at the same time: one that is known tells for all that are.
        if repeated and self._time_at(min(last, known.n)) != first.ms:
            return False
        if repeated >= len(bodies):
            return True
        if any("blob" in body for body in bodies[repeated:]):
            return False
        share = size // len(bodies)
        records = [(Position(first.n + at, first.ms), body, share) for at, body in enumerate(bodies)]
        self._add(decode_records(self._session_id, records[repeated:]))
        return True

    def extend(self, records: Iterable[Stored]) -> None:
        """Add records that were read from the log after `position`."""
        self._add(records)

    def _add(self, records: Iterable[Stored]) -> None:
        for record in records:
            self._items.append(record)
            self._size += record.size
            self.position = record.position
        if self._size > self._limit:
            # A quarter at once, so that the list is not moved for each event.
            count, kept = 0, self._size
            while kept > self._limit * 3 // 4:
                kept -= self._items[count].size
                count += 1
            self._drop(count)

    def trim(self, index: int) -> None:
        """Drop what lies before an index: every observer has it."""
        self._drop(min(index - self.base, len(self._items)))

    def _drop(self, count: int) -> None:
        if count <= 0:
            return
        self.floor = self._items[count - 1].position._replace(k=0)
        self._size -= sum(item.size for item in self._items[:count])
        del self._items[:count]
        self.base += count
