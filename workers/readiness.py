"""Whether a worker can be given turns: it is registered, its leases are renewed, and its broker is fit to hold sessions.

An outage of the broker is logged when it begins and when it is over, not at each try in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

import structlog

from broker.broker import Broker, is_away
from broker.outage import BACKOFF_S
from broker.pipeline import TRANSIENT, Refused
from broker.protocol.errors import BrokerUnavailableError
from workers.ready_file import ReadyFile

log = structlog.get_logger("turnstream.worker")

SKEW_S: Final = 1.0
"""How far this machine's clock may be off the broker's before a worker warns. Nothing rests on it: the broker's clock counts."""

_TICK_S: Final = 1.0
_PATIENCE_S: Final = 3.0


class Readiness:
    """What one worker knows of its own readiness; `reason` says why it is not ready, None: it is.

    `renewed_at` gives when every lease and registration was renewed last, by the monotonic clock (None: never yet).
    """

    def __init__(
        self, broker: Broker, worker: str, renewed_at: Callable[[], float | None], file: ReadyFile | None = None
    ) -> None:
        self._broker = broker
        self._worker = worker
        self._renewed_at = renewed_at
        self._file = file
        self._away_since: float | None = None
        self._unfit: str | None = None
        self._skewed = False
        self._untold = False
        self.draining = False
        self.reason: str | None = "The worker is starting."

    # Outages.

    def away(self, error: Exception) -> None:
        """Something met a broker that did not answer, or takes nothing for now."""
        if self._away_since is None:
            self._away_since = time.monotonic()
            said = str(error) if isinstance(error, BrokerUnavailableError) else type(error).__name__
            log.warning("broker_away", worker=self._worker, error=said)

    def back(self) -> None:
        """The broker has answered."""
        if self._away_since is not None:
            seconds, self._away_since = time.monotonic() - self._away_since, None
            log.info("broker_back", worker=self._worker, seconds=round(seconds, 3))

    async def until_fit(self) -> None:
        """Return once there is a broker. Raises `BrokerUnavailableError` for one that is there and would lose data."""
        wait, most = BACKOFF_S
        while True:
            try:
                await self._broker.check(patience=math.inf)
            except BrokerUnavailableError as unfit:
                if not is_away(unfit):
                    raise
                self._unfit = str(unfit)
                self.away(unfit)
                self.judge()
            else:
                self._unfit = None
                self.back()
                return
            await asyncio.sleep(wait)
            wait = min(wait * 2, most)

    # Readiness.

    async def watch(self) -> None:
        """Judge it, again and again, and say it in the file. An embedded broker is always there."""
        if self._broker.embedded is not None:
            await asyncio.get_running_loop().create_future()
        examining = asyncio.create_task(self._examine(), name="worker examines its broker")
        try:
            while not examining.done():
                self.judge()
                await asyncio.wait({examining}, timeout=min(_TICK_S, self._broker.settings.lease / 8))
            await examining
        finally:
            examining.cancel()
            await asyncio.gather(examining, return_exceptions=True)

    def judge(self) -> None:
        """Say whether it is ready now; a change is logged."""
        before, self.reason = self.reason, self._why_not()
        if self.reason != before:
            if self.reason is None:
                log.info("worker_ready", worker=self._worker)
            elif not self.draining:
                log.warning("worker_not_ready", worker=self._worker, reason=self.reason)
        if self._file is not None:
            self._tell(self._file, changed=self.reason != before)

    def _tell(self, file: ReadyFile, *, changed: bool) -> None:
        """Say it in the file. One that cannot be written, or taken away, is the probe's trouble, and not the turns'."""
        try:
            if self.reason is None:
                file.renew(max(_PATIENCE_S, self._broker.settings.lease / 2))
            elif changed:
                file.refuse(self.reason)
        except OSError as failed:
            if not self._untold:
                log.warning("ready_file_not_written", worker=self._worker, error=str(failed))
            self._untold = True
        else:
            self._untold = False

    def drain(self) -> None:
        """Be ready no more: the worker takes no new turns."""
        self.draining = True
        self.judge()

    def _why_not(self) -> str | None:
        if self.draining:
            return "The worker is draining: it takes no new turns."
        renewed = self._renewed_at()
        if renewed is None:
            return self._unfit or "The worker is starting."
        if time.monotonic() - renewed > self._broker.settings.lease / 2:
            return self._unfit or "The worker has not renewed its leases for half of one: it does not reach its broker."
        if self._away_since is not None and renewed > self._away_since:
            self.back()
        return self._unfit

    async def _examine(self) -> None:
        """Check the broker as at the start: a setting may change, and another server take its place."""
        while True:
            # A full broker takes no note of it: that is no reason not to be ready.
            with contextlib.suppress(*TRANSIENT, Refused):
                await self._compare_clocks()
            await asyncio.sleep(self._broker.settings.lease / 3)
            try:
                await self._broker.check(patience=0)
            except BrokerUnavailableError as unfit:
                self._unfit = str(unfit)
            else:
                self._unfit = None

    async def _compare_clocks(self) -> None:
        """Measure how far the broker's clock is ahead of this machine's, and keep it in the worker's entry for operators."""
        before, asked = time.time(), time.monotonic()
        seconds, micros = await self._broker.commands.command("TIME")
        took = time.monotonic() - asked
        skew = int(seconds) + int(micros) / 1e6 - (before + took / 2)
        if took > SKEW_S / 2 or self.draining:
            return  # too slow to tell, or there is no entry any more
        entry = f"{self._broker.keys.base(0)}worker:{self._worker}"
        await asyncio.gather(
            self._broker.commands.command("HSET", entry, "skew", int(skew * 1000)),
            self._broker.commands.command("PEXPIRE", entry, int(self._broker.settings.lease * 4000)),
        )
        skewed = abs(skew) > SKEW_S
        if skewed and not self._skewed:
            log.warning("clock_skewed", worker=self._worker, seconds=round(skew, 3))
        self._skewed = skewed
