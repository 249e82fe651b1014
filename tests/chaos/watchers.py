"""Observers of a part's sessions: they follow each from its start, leave and come back with a cursor, and keep all they saw."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import api_shim as agents


@dataclass
class Seen:
    """What one observer saw of a session, in order."""

    session: str
    events: list[Any] = field(default_factory=list)
    returns: int = 0
    ended: bool = False
    findings: list[str] = field(default_factory=list)


class Watchers:
    """All observers of a part. `urls` are their ways to the broker."""

    def __init__(self, seed: int, urls: Sequence[str]) -> None:
        self.seen: list[Seen] = []
        self._seed = seed
        self._urls = urls
        self._tasks: list[asyncio.Task[None]] = []

    def watch(self, session_id: str, count: int) -> None:
        """Have a session followed by `count` observers."""
        for _ in range(count):
            seen = Seen(session_id)
            rng = random.Random(f"{self._seed}:watcher:{len(self.seen)}")
            self.seen.append(seen)
            self._tasks.append(asyncio.create_task(self._follow(seen, rng)))

    async def end(self, within: float) -> None:
        """Wait for all of them to see their sessions end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for seen, task in zip(self.seen, self._tasks, strict=True):
            if not task.done():
                task.cancel()
                seen.findings.append(f"an observer did not see the session's end within {within:g} s")
        for seen, failed in zip(self.seen, await asyncio.gather(*self._tasks, return_exceptions=True), strict=True):
            if isinstance(failed, Exception):
                seen.findings.append(f"an observer failed: {failed!r}")

    async def close(self) -> None:
        """End all that is left."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, seen: Seen, rng: random.Random) -> None:
        while not seen.ended:
            # A cursor of a delta resumes after the last stored event; any of both may be where one left.
            cursor = seen.events[-1].id if seen.events else None
            limit = rng.choice((10, 100, 1000, 10**9))
            try:
                await self._follow_once(seen, rng.choice(self._urls), cursor, limit)
            except agents.ObservationLost as lost:
                seen.findings.append(f"ObservationLost: {lost}")
                if lost.cursor is None:
                    return
            except agents.BrokerUnavailableError:
                await asyncio.sleep(0.1)
            seen.returns += 1
            await asyncio.sleep(rng.choice((0.0, 0.01, 1.0)) * rng.random())

    async def _follow_once(self, seen: Seen, url: str, cursor: str | None, limit: int) -> None:
        from api_shim.session import Session

        following = cast(
            "AsyncGenerator[agents.Event, None]", Session(seen.session, host=url).iter_events(after=cursor)
        )
        async with aclosing(following) as events:
            async for event in events:
                seen.events.append(event)
                if isinstance(event, agents.SessionUpdated) and event.status == "terminated":
                    seen.ended = True
                limit -= 1
                if limit == 0:
                    return
