"""One session that somebody follows: its ring, its observers, and who of them waits for something to happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.protocol.errors import AgentsError, ObservationLost
from broker.protocol.wire import START, Position, format_cursor
from broker.ring import Ring

QUIET_S: Final = 5.0
"""Silence after which a session's last id is read."""


class Observer:
    """Where one observer is: `index` of its next item in the ring (None: it reads the log), `position` in the log."""

    __slots__ = ("index", "position")

    def __init__(self, position: Position) -> None:
        self.index: int | None = None
        self.position = position


class Followed:
    """A followed session. `heard` and `left` are event loop times; `unchecked`: its log's end must be read now."""

    def __init__(self, session_id: str, channel: str, ring: Ring) -> None:
        self.session_id = session_id
        self.channel = channel
        self.ring = ring
        self.observers: set[Observer] = set()
        self.waiting: set[asyncio.Future[None]] = set()
        self.filling: asyncio.Task[None] | None = None
        self.unchecked = False
        self.heard = 0.0
        self.left: float | None = None
        self.failure: Callable[[Position], AgentsError] | None = None

    def wake(self) -> None:
        """Let every waiting observer look again."""
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)
        self.waiting.clear()

    def fail(self, failure: Callable[[Position], AgentsError]) -> None:
        """End observation: each observer raises what `failure` makes for its position."""
        self.failure = failure
        self.wake()

    def lose(self, reason: str) -> None:
        """End observation with a cursor to go on from."""
        self.fail(
            lambda position: ObservationLost(
                f"Session {self.session_id}: {reason}; go on after the cursor.",
                format_cursor(self.session_id, position),
            )
        )

    def vanished(self) -> ObservationLost:
        """What is raised of a session that was there: it does not end under its observers, so the broker has lost it."""
        return ObservationLost(
            f"Session {self.session_id}: the broker holds it no longer: it lost writes, or was emptied. Start it again.",
            format_cursor(self.session_id, START),
        )

    def wants_check(self, now: float) -> bool:
        """Whether the end of its log must be read: its channel was confirmed, or has been silent."""
        return self.unchecked or (self.ring.position is not None and now - self.heard >= QUIET_S)

    def trim(self) -> None:
        """Drop what every observer has. Those who read the log do not count: it is the log that they read."""
        indices = [observer.index for observer in self.observers if observer.index is not None]
        self.ring.trim(min(indices, default=self.ring.end))
