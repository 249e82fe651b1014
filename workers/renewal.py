"""Renewal: a worker says that it lives, and renews the leases of what it holds, from where a busy event loop cannot starve it.

On a real broker that is a thread with a loop and connections of its own. It reads the table of leases, and tells the worker's
loop what it learnt by `call_soon_threadsafe`, never otherwise. It renews only while that loop ticks: a process whose loop has
stood still for `WEDGED_S` loses its turns to others at last. Embedded, where nothing is far away, it is a task on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

import structlog

from broker import queue
from broker.broker import Broker
from broker.embedded import end_task
from broker.outage import BACKOFF_S
from broker.pipeline import TRANSIENT
from broker.protocol.errors import BrokerUnavailableError
from workers.leases import Leases
from workers.logging import fault
from workers.version import installed_version

log = structlog.get_logger("turnstream.worker")

WEDGED_S: Final = 60.0
"""For how long the worker's loop may stand still before its leases are renewed no more."""


@dataclass
class _Told:
    """What one round learnt: jobs whose leases stand since `asked`, and those that are held no longer, with the reason.

    `failed` is what a queue met that did not answer.
    """

    asked: float
    standing: list[str]
    gone: list[tuple[str, str]]
    failed: Exception | None


class _Here:
    """The way to a worker's loop from that loop itself."""

    def __init__(self, learn: Callable[[_Told], None]) -> None:
        self.tell = learn

    async def ticking(self) -> None:
        """Return: it ticks, since this runs."""


class _There:
    """The way to a worker's loop from the renewing thread's, and how it is known that it ticks: it answers what it is told."""

    def __init__(self, loop: asyncio.AbstractEventLoop, learn: Callable[[_Told], None]) -> None:
        self._worker = loop
        self._own = asyncio.get_running_loop()
        self._learn = learn
        self._answered = asyncio.Event()
        self._answered.set()
        self._told_at = 0.0

    async def ticking(self) -> None:
        """Return at once while the worker's loop ticks; else once it does."""
        if self._answered.is_set() or monotonic() - self._told_at < WEDGED_S:
            return
        log.error("worker_stands_still", seconds=round(monotonic() - self._told_at, 1))
        await self._answered.wait()
        log.info("worker_goes_on")

    def tell(self, told: _Told) -> None:
        """Have the worker's loop learn what a round told. Cancels its caller when that loop is closed."""
        if self._answered.is_set():
            self._told_at = monotonic()
            self._answered.clear()
        try:
            self._worker.call_soon_threadsafe(self._heard, told)
        except RuntimeError:
            raise asyncio.CancelledError from None

    def _heard(self, told: _Told) -> None:
        with contextlib.suppress(RuntimeError):  # the renewing has ended
            self._own.call_soon_threadsafe(self._answered.set)
        self._learn(told)


class Renewal:
    """Renews `leases`, and registers the worker for `queues` (agent, queue), which whoever serves more replaces.

    `gone` hears, on the worker's loop, of a job that is held no longer: "lost" to others, or "ended"; `away`, there too, of a
    broker that did not answer. With `slots` 0 it renews and registers no more.
    """

    def __init__(
        self,
        broker: Broker,
        worker: str,
        slots: int,
        leases: Leases,
        *,
        gone: Callable[[str, str], None],
        away: Callable[[Exception], None],
    ) -> None:
        self.queues: tuple[tuple[str, str], ...] = ()
        self.slots = slots
        self.renewed_at: float | None = None
        """When the last round that every queue answered was asked for, on the monotonic clock."""
        self._broker = broker
        self._worker = worker
        self._leases = leases
        self._gone = gone
        self._away = away
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._left: asyncio.Future[None] | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        self._leave = asyncio.Event()

    # On the worker's loop.

    async def now(self, queues: Sequence[tuple[str, str]]) -> None:
        """Renew and register for these queues at once. Raises `BrokerUnavailableError`."""
        told = await self._round(self._broker, queues)
        self._learn(told)
        if told.failed is not None:
            raise told.failed

    def start(self) -> None:
        """Renew from now on, until `stop`."""
        loop = asyncio.get_running_loop()
        if self._broker.embedded is not None:
            renewing = self._keep_renewing(self._broker, _Here(self._learn))
            self._task = asyncio.create_task(renewing, name="worker renewal")
            return
        self._own, self._left = asyncio.new_event_loop(), loop.create_future()
        own = [loop, self._own, self._left]
        self._thread = threading.Thread(target=self._in_thread, args=own, name="turnstream renewal", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Renew no more; returns when nothing of it is left."""
        if self._task is not None:
            await end_task(self._task)
        if self._thread is not None and self._own is not None and self._left is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._own.call_soon_threadsafe(self._leave.set)
            await asyncio.shield(self._left)
            self._thread.join()

    def _learn(self, told: _Told) -> None:
        for job_id in told.standing:
            if (lease := self._leases.get(job_id)) is not None:
                lease.renew(told.asked + self._broker.settings.lease)
        for job_id, why in told.gone:
            self._gone(job_id, why)
        if told.failed is None:
            self.renewed_at = told.asked
        else:
            self._away(told.failed)

    # Wherever it runs.

    async def _round(self, broker: Broker, queues: Sequence[tuple[str, str]]) -> _Told:
        """Renew every queue, in one round trip."""
        held, asked = self._leases.by_queue(), monotonic()
        replies = await asyncio.gather(
            *(
                queue.renew(
                    broker,
                    key,
                    held.get(key, ()),
                    worker=self._worker,
                    agent=agent,
                    slots=self.slots,
                    version=installed_version(),
                    budget=broker.settings.lease / 4,
                )
                for agent, key in queues
            ),
            return_exceptions=True,
        )
        told = _Told(asked, [], [], failed=None)
        for (_, key), reply in zip(queues, replies, strict=True):
            if isinstance(reply, BrokerUnavailableError):
                told.failed = reply
            elif isinstance(reply, BaseException):
                raise reply
            else:
                told.gone += reply.items()
                told.standing += (job_id for job_id in held.get(key, ()) if job_id not in reply)
        return told

    async def _keep_renewing(self, broker: Broker, way: _Here | _There) -> None:
        """A round each quarter of a lease, whatever one of them meets: an end would cost every lease of the worker."""
        quarter = broker.settings.lease / 4
        wait, back = quarter, BACKOFF_S[0]
        while True:
            await asyncio.sleep(wait)
            await way.ticking()
            begun = monotonic()
            try:
                told = await self._round(broker, self.queues)
                way.tell(told)
                whole = told.failed is None
            except Exception as met:  # noqa: BLE001 - see above
                whole = False
                if not isinstance(met, TRANSIENT):
                    log.warning("loop_failed", worker=self._worker, loop="renewal", **fault(met))
            if whole:
                wait, back = max(begun + quarter - monotonic(), 0), BACKOFF_S[0]
            else:
                wait, back = min(back, quarter), min(back * 2, BACKOFF_S[1])

    # In the thread.

    def _in_thread(
        self, loop: asyncio.AbstractEventLoop, own: asyncio.AbstractEventLoop, left: asyncio.Future[None]
    ) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: own) as runner:
                runner.run(self._renew_from_afar(loop))
        finally:
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed: nobody waits any more
                loop.call_soon_threadsafe(left.set_result, None)

    async def _renew_from_afar(self, loop: asyncio.AbstractEventLoop) -> None:
        """Renew until told to leave, or until the worker's loop is closed."""
        settings = self._broker.settings
        quarter = settings.lease / 4  # a reply that does not come must leave time for another try
        times = {name: min(getattr(settings, name), quarter) for name in ("socket_timeout", "connect_timeout")}
        broker = Broker(settings.model_copy(update=times))
        renewing = asyncio.create_task(self._keep_renewing(broker, _There(loop, self._learn)))
        leaving = asyncio.create_task(self._leave.wait())
        try:
            await asyncio.wait({renewing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            renewing.cancel()
            leaving.cancel()
            await asyncio.gather(renewing, leaving, return_exceptions=True)
            await broker.close()
