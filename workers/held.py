"""The turns that one worker holds: each job is begun, its function run, and what cannot go on here handed back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import structlog

from broker import queue, runs
from broker.broker import Broker
from broker.protocol.errors import BrokerUnavailableError, SdkError
from broker.protocol.records import ProtocolError
from broker.protocol.values import loads
from broker.runs import Begun, Gap, Superseded
from workers.agent import AgentDefinition
from workers.fold import History
from workers.logging import fault
from workers.run_context import RunContext
from workers.source_pool import SourcePool
from workers.turn import TurnRun, start_run
from workers.writer import fold_raw

log = structlog.get_logger("turnstream.worker")

FOLDS_KEPT = 256
WEIGHT_KEPT = 200 * 2**20
"""Bytes that all the folds that are kept may take, roughly; the latest fold stays however large it is."""

_PAGE = 200


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
    queues: dict[str, str] = field(default_factory=dict)
    """The job ids that it holds, each with its queue."""
    runs: dict[str, TurnRun] = field(default_factory=dict)
    """What runs now, by session."""
    finished: int = 0
    handed_back: list[str] = field(default_factory=list)
    folds: dict[str, History] = field(default_factory=dict)
    """The histories of sessions that it ran lately: only their logs' tails are read again."""
    connections: SourcePool = field(default_factory=SourcePool)
    """Connections to tool sources, which its runs share."""
    _fence: int = 0
    _weight: int = 0

    async def run(self, job_id: str, key: str, body: bytes | None) -> None:
        """Begin a job, one that was claimed or (without a body) rung for, and run its function.

        A run that cannot go on here hands its turn back, and with it the attempt.
        """
        job = queue.rung_job(job_id) if body is None else queue.read_job(job_id, body)
        self._fence += 1
        fence = f"{self.worker}:{self._fence}"
        try:
            await self._run_turn(job, fence, key, rung=body is None)
        except Gap:
            await self.hand_back(job, fence)
        except asyncio.CancelledError:
            # Drain, a lost lease, or the turn's end: whoever holds the fence goes on. A fence that fell makes this nothing.
            await self.hand_back(job, fence)
            log.info("turn_left", worker=self.worker, session=job.session_id, turn=job.turn_id, outcome="stopped")
            raise
        except BrokerUnavailableError:
            log.warning("broker_away", worker=self.worker, session=job.session_id, turn=job.turn_id)
            while not await self.hand_back(job, fence) and not self.stopping.is_set():
                pass  # each try takes its budget

    async def hand_back(self, job: queue.Job, fence: str) -> bool:
        """Hand a turn back if the run still holds it; False when the broker did not answer."""
        try:
            if await runs.release(self.broker, job.session_id, fence, budget=1.0):
                self.handed_back.append(job.turn_id)
        except BrokerUnavailableError:
            return False
        return True

    async def _run_turn(self, job: queue.Job, fence: str, key: str, *, rung: bool) -> None:
        history = self._taken(job.session_id)
        begun = await runs.begin(
            self.broker,
            job.session_id,
            job=job.id,
            turn=job.turn_id,
            wake=job.wake,
            fence=fence,
            worker=self.worker,
            after=history.last,
            page=_PAGE,
            lease=self.broker.settings.lease if rung else None,
        )
        if not isinstance(begun, Begun):
            log.info("job_not_begun", worker=self.worker, job=job.id, reason=begun)
            return
        self.queues[job.id] = key
        if begun.after != history.last:
            history = History()  # the broker lost what this one was folded from
        definition, known = _served(self.agents[begun.agent], begun.path)
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
        )
        await fold_raw(self.broker, job.session_id, history, begun.tail)
        run = await start_run(context, begun, history)
        if not known:
            missing = f"agent {begun.agent} has no subagent {'/'.join(begun.path)} any more"
            await run.fail(ProtocolError(message=missing, code="unknown_agent"))
            return
        self.runs[job.session_id] = run
        log.info("turn_begun", worker=self.worker, session=job.session_id, turn=job.turn_id, attempt=begun.attempt)
        try:
            outcome = await self._outcome(run, job)
        finally:
            if self.runs.get(job.session_id) is run:
                del self.runs[job.session_id]
        if outcome in ("parked", "ended"):
            self.keep(job.session_id, run.history)
            self.finished += outcome == "ended"
        log.info("turn_left", worker=self.worker, session=job.session_id, turn=job.turn_id, outcome=outcome)

    async def _outcome(self, run: TurnRun, job: queue.Job) -> str:
        function = self.functions.get(job.function)
        try:
            if function is None:
                await run.fail(ProtocolError(message=f"no function {job.function!r} here", code="bad_job"))
                return "ended"
            try:
                return cast("str", await function.coroutine(self.ctx, job.session_id, job.turn_id, job.wake))
            except (Superseded, Gap, BrokerUnavailableError):
                raise
            except Exception as failed:  # noqa: BLE001 - whatever the agent's code raises ends its turn, not the worker
                said = fault(failed)
                log.error("turn_failed", worker=self.worker, session=job.session_id, turn=job.turn_id, **said)  # noqa: TRY400 - a message holds contents
                # What this package says of a wrong name or setting holds no contents, and how to mend it.
                ours = isinstance(failed, SdkError)
                message = str(failed) if ours else f"{type(failed).__name__} in the agent's code"
                await run.fail(ProtocolError(message=message, code="internal_error"))
                return "ended"
        except Superseded:
            return "superseded"

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
