"""The leases of what a worker holds, as their holder knows them: each until when it certainly stands.

A lease is counted from the moment when it was asked for, on the monotonic clock: the broker counts from later. Past that
moment its holder starts no step and writes nothing until a renewal says that the broker still counts it as the holder.
"""

from __future__ import annotations

import asyncio
import math
import threading
from time import monotonic

from broker.runs import Superseded


class Lease:
    """One job's lease.

    `lost`: the broker has given the job to somebody else, or its turn has ended. `told`: its run was told to stop; a second word
    would only cut short what it does about it.
    """

    __slots__ = ("_news", "lost", "queue", "told", "until")

    def __init__(self, queue: str = "", until: float = math.inf) -> None:
        self.queue = queue
        self.until = until
        self.lost = self.told = False
        self._news: asyncio.Event | None = None

    @property
    def left(self) -> float:
        """Seconds for which it certainly stands; 0 or less past its end."""
        return self.until - monotonic()

    def renew(self, until: float) -> None:
        """A renewal has confirmed it."""
        self.until = max(until, self.until)
        self._wake()

    def lose(self) -> None:
        """The job is somebody else's, or nobody's: who waits for a renewal waits for nothing."""
        self.lost = True
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def stands(self) -> None:
        """Return at once while it certainly stands; past its end, wait until a renewal has confirmed it.

        Raises `Superseded` once it is lost: its run is cancelled as well, but the agent's code may have swallowed that.
        """
        while self.lost or monotonic() >= self.until:
            if self.lost:
                raise Superseded
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()


class Leases:
    """The leases of all jobs that a worker holds, by job id. Its loop takes and drops them; any thread may list them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Lease] = {}

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, job_id: str) -> Lease | None:
        """Return the lease of a job, if it is held."""
        return self._held.get(job_id)

    def take(self, job_id: str, queue: str, until: float) -> Lease:
        """Hold a job; its lease, if it is held already."""
        lease = self._held.get(job_id)
        if lease is None:
            lease = Lease(queue, until)
            with self._lock:
                self._held[job_id] = lease
        return lease

    def drop(self, job_id: str) -> None:
        """Hold a job no more."""
        with self._lock:
            self._held.pop(job_id, None)

    def by_queue(self) -> dict[str, list[str]]:
        """Return the ids of the jobs that are held, by their queue."""
        with self._lock:
            held = list(self._held.items())
        found: dict[str, list[str]] = {}
        for job_id, lease in held:
            found.setdefault(lease.queue, []).append(job_id)
        return found
