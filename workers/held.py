"""The turns that one worker holds: each job is begun, its function run, and what cannot go on here handed back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal, Protocol, cast

import structlog

from broker import queue, runs
from broker.broker import Broker
from broker.protocol.errors import BrokerUnavailableError, SdkError
from broker.protocol.records import ProtocolError, failed_to_wire
from broker.protocol.values import loads
from broker.runs import Begun, Gap, Superseded, Write
from workers.agent import AgentDefinition
from workers.effects import Effects
from workers.fold import History
from workers.leases import Lease, Leases
from workers.logging import fault
from workers.run_context import RunContext
from workers.source_pool import SourcePool
from workers.subagents import failed_report
from workers.turn import TurnRun, start_run
from workers.writer import fold_raw

log = structlog.get_logger("turnstream.worker")

FOLDS_KEPT = 256
WEIGHT_KEPT = 200 * 2**20
"""Bytes that all the folds that are kept may take, roughly; the latest fold stays however large it is."""

_PAGE = 200
_RELEASE_S = 1.0


class _CannotRunError(Exception):
    """A turn that was begun cannot be run: it ends with this error."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.error = ProtocolError(message=message, code=code)


class _Function(Protocol):
    """What of an arq function is called."""

    @property
    def coroutine(self) -> Any: ...


def _served(root: AgentDefinition, path: Sequence[str]) -> tuple[AgentDefinition, bool]:
    """The definition at the end of a path of subagents, and whether it is there; else the last one on the way."""
    definition = root
    for name in path:
        try:
            definition = definition.child(name)
        except KeyError:
            return definition, False
    return definition, True


@dataclass
class HeldTurns:
    """What a worker holds, and how it came by it. `ctx` is arq's, handed to its functions."""

    broker: Broker
    worker: str
    agents: Mapping[str, AgentDefinition]
    functions: Mapping[str, _Function]
    ctx: dict[Any, Any]
    stopping: asyncio.Event
    leases: Leases = field(default_factory=Leases)
    """The jobs that it holds."""
    runs: dict[str, TurnRun] = field(default_factory=dict)
    """What runs now, by session."""
    finished: int = 0
    ended: list[str] | None = None
    """The turns that ended since it began to drain."""
    handed_back: list[str] = field(default_factory=list)
    handing: set[str] = field(default_factory=set)
    """The jobs that are being handed back now."""
    gaps: int = 0
    """How often runs found that the broker had lost writes."""
    folds: dict[str, History] = field(default_factory=dict)
    """The histories of sessions that it ran lately: only their logs' tails are read again."""
    connections: SourcePool = field(default_factory=SourcePool)
    """Connections to tool sources, which its runs share."""
    _fence: int = 0
    _weight: int = 0

    async def run(self, job_id: str, key: str, body: bytes | None) -> None:
        """Begin a job, one that was claimed or (without a body) rung for, and run its function.

        A run that cannot go on here hands its turn back, and with it the attempt. Raises `BadJobError` for an id that is not
        ours: its lease lapses, and it is dropped.
        """
        job, bad = queue.named_job(job_id), None
        if body is not None:
            try:
                job = queue.read_job(job_id, body)
            except queue.BadJobError as unread:
                bad = str(unread)
        self._fence += 1
        fence = f"{self.worker}:{self._fence}"
        try:
            await self._run_turn(job, fence, key, rung=body is None, bad=bad)
        except asyncio.CancelledError:
            lease = self.leases.get(job_id)
            if lease is None or not lease.lost:  # else whoever holds the fence goes on, or nobody has to
                await self.hand_back(job, fence)
            self._left(job, "stopped")
            raise
        except Superseded:
            self._left(job, "superseded")
        except (Gap, BrokerUnavailableError):
            while not await self.hand_back(job, fence) and not self.stopping.is_set():
                pass  # each try takes its budget

    async def hand_back(self, job: queue.Job, fence: str) -> bool:
        """Hand a turn back if the run still holds it; False when the broker did not answer."""
        self.leases.drop(job.id)
        # A worker that leaves while its broker is away waits for it: a turn that nobody hands back costs an attempt.
        budget = self.broker.settings.command_budget if self.stopping.is_set() else _RELEASE_S
        self.handing.add(job.id)
        try:
            if await runs.release(self.broker, job.session_id, fence, budget=budget):
                self.handed_back.append(job.turn_id)
        except BrokerUnavailableError:
            return False
        finally:
            self.handing.discard(job.id)
        return True

    async def give_up(self, job_id: str) -> None:
        """Hand the turn of a job back though its run has not stopped: what it still does is refused."""
        job = queue.named_job(job_id)
        run = self.runs.get(job.session_id)
        if run is not None and run.context.turn_id == job.turn_id and await self.hand_back(job, run.context.fence):
            run.context.lease.lose()

    async def _begin(
        self, job: queue.Job, fence: str, after: str, *, rung: bool
    ) -> Begun | Literal["dropped", "taken", "newer", "later", "dead"]:
        """Begin a job, again with the same fence while the broker is away. Raises `BrokerUnavailableError` when it leaves."""
        while True:
            try:
                return await runs.begin(
                    self.broker,
                    job.session_id,
                    job=job.id,
                    turn=job.turn_id,
                    wake=job.wake,
                    fence=fence,
                    worker=self.worker,
                    after=after,
                    page=_PAGE,
                    lease=self.broker.settings.lease if rung else None,
                )
            except BrokerUnavailableError:
                if self.stopping.is_set():
                    raise

    async def _run_turn(self, job: queue.Job, fence: str, key: str, *, rung: bool, bad: str | None) -> None:
        claimed = self.leases.get(job.id)
        if claimed is not None:
            await claimed.stands()
        history, asked = self._taken(job.session_id), monotonic()
        begun = await self._begin(job, fence, history.last, rung=rung)
        if not isinstance(begun, Begun):
            log.info("job_not_begun", worker=self.worker, job=job.id, reason=begun)
            return
        lease = self.leases.take(job.id, key, asked + self.broker.settings.lease)
        if begun.after != history.last:
            history = History()  # the broker lost what this one was folded from
        try:
            run = await self._prepared(job, fence, begun, history, lease, bad)
        except _CannotRunError as cannot:
            await self._fail(job, fence, begun, cannot.error, history.text)
            self._left(job, "ended")
            return
        await self._go_on(run, job, begun.attempt)

    async def _prepared(
        self, job: queue.Job, fence: str, begun: Begun, history: History, lease: Lease, bad: str | None
    ) -> TurnRun:
        """Make a run of what was begun. Raises `_CannotRunError` for one that cannot be run, now or later."""
        if bad is not None:
            raise _CannotRunError(bad, "bad_job")
        if job.function not in self.functions:
            raise _CannotRunError(f"no function {job.function!r} here", "bad_job")
        root = self.agents.get(begun.agent)
        if root is None:
            raise _CannotRunError(f"agent {begun.agent} is not served where its queue is", "unknown_agent")
        definition, known = _served(root, begun.path)
        if not known:
            raise _CannotRunError(
                f"agent {begun.agent} has no subagent {'/'.join(begun.path)} any more", "unknown_agent"
            )
        try:
            context = RunContext(
                self.broker,
                definition,
                job.session_id,
                job.turn_id,
                fence,
                loads(begun.inputs) if begun.inputs else {},
                loads(begun.customization) if begun.customization else {},
                begun.path,
                begun.spawned,
                self.connections,
                lease,
            )
            await fold_raw(self.broker, job.session_id, history, begun.tail)
            return await start_run(context, begun, history)
        except (Superseded, Gap, BrokerUnavailableError):
            raise
        except Exception as failed:
            raise _CannotRunError(self._said(job, failed), "internal_error") from failed

    async def _fail(self, job: queue.Job, fence: str, begun: Begun, error: ProtocolError, text: str) -> None:
        """End a turn that was begun and cannot be run, as failed."""
        report = b""
        if begun.spawned is not None:
            report = failed_report(begun.spawned, job.session_id, begun.path[-1], error)
        effects = Effects()
        ended = effects.stored({"type": "turnEnded", "state": failed_to_wire(error, text)})
        write, budget = Write(job.session_id, fence, 1, ""), self.broker.settings.lease
        await runs.finish(self.broker, write, ended, effects.values, report=report, budget=budget)

    async def _go_on(self, run: TurnRun, job: queue.Job, attempt: int) -> None:
        self.runs[job.session_id] = run
        log.info("turn_begun", worker=self.worker, session=job.session_id, turn=job.turn_id, attempt=attempt)
        try:
            outcome = await self._outcome(run, job)
        finally:
            self.gaps += run.gaps
            if self.runs.get(job.session_id) is run:
                del self.runs[job.session_id]
        self.keep(job.session_id, run.history)
        self._left(job, outcome)

    def _left(self, job: queue.Job, outcome: str) -> None:
        if outcome == "ended":
            self.finished += 1
            if self.ended is not None:
                self.ended.append(job.turn_id)
        log.info("turn_left", worker=self.worker, session=job.session_id, turn=job.turn_id, outcome=outcome)

    async def _outcome(self, run: TurnRun, job: queue.Job) -> str:
        function = self.functions[job.function]
        try:
            return cast("str", await function.coroutine(self.ctx, job.session_id, job.turn_id, job.wake))
        except (Superseded, Gap):
            raise
        except (Exception, SystemExit) as failed:  # noqa: BLE001 - whatever the agent's code raises ends its turn, not the worker
            run.heed()
            # Also a broker that is away: it is another one, the run waits for its own.
            await run.fail(ProtocolError(message=self._said(job, failed), code="internal_error"))
            return "ended"

    def _said(self, job: queue.Job, failed: BaseException) -> str:
        """Log a failure of the agent's code, and return what the turn's record says of it."""
        said = fault(failed)
        log.error("turn_failed", worker=self.worker, session=job.session_id, turn=job.turn_id, **said)
        # What this package says of a wrong name or setting holds no contents, and how to mend it.
        return str(failed) if isinstance(failed, SdkError) else f"{type(failed).__name__} in the agent's code"

    def keep(self, session_id: str, history: History) -> None:
        """Keep a session's fold for its next turn; the ones that were used longest ago make room."""
        self._taken(session_id)
        self.folds[session_id] = history
        self._weight += history.weight
        while len(self.folds) > FOLDS_KEPT or (self._weight > WEIGHT_KEPT and len(self.folds) > 1):
            self._taken(next(iter(self.folds)))

    def _taken(self, session_id: str) -> History:
        """Take a fold out of what is kept; an empty one if there is none."""
        history = self.folds.pop(session_id, None) or History()
        self._weight -= history.weight
        return history
