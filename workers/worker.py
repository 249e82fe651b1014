"""The worker: arq's slots and functions under our own claim, wake, lease and finish.

What arq does to a long turn is not safe: its in-progress mark lives as long as the longest timeout and is never renewed, and
its loop ends when Redis restarts. So this subclass replaces the loop and `run_job`. The names it leans on are pinned by
`tests/workers/test_arq_contract.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, cast

import structlog
from arq.connections import ArqRedis
from arq.worker import Worker, func

from broker import queue
from broker.broker import Broker
from broker.channels import pop_token, subscribe
from broker.embedded import FALLBACK_POLL, end_task
from broker.keys import new_id
from broker.pipeline import TRANSIENT
from broker.protocol.errors import BrokerUnavailableError
from workers.agent import AgentDefinition
from workers.held import HeldTurns
from workers.housekeeping import keep_house
from workers.logging import fault
from workers.readiness import Readiness
from workers.ready_file import ReadyFile
from workers.renewal import Renewal
from workers.turn import TurnRun

log = structlog.get_logger("turnstream.worker")

_JOB_TIMEOUT_S = 30 * 86_400
_BELL_S = 5.0
_CLAIM_S = 1.0
_STOP_S = 0.4
"""How long a turn's code may take to stop before its turn is handed back from under it."""
_CLEAN_S = 5.0
"""How long it may then go on."""


async def run_turn(ctx: dict[Any, Any], session_id: str, _turn_id: str, _wake: int) -> str:
    """The arq function: run the turn that `run_job` has begun."""
    run: TurnRun = ctx["runs"][session_id]
    return await run.run()


class TurnWorker(Worker):
    """Runs turns of the agents it is given. `ready` is set once it is registered and listens."""

    def __init__(
        self,
        broker: Broker,
        agents: Iterable[AgentDefinition] = (),
        *,
        slots: int | None = None,
        ready_file: ReadyFile | None = None,
    ) -> None:
        pool = ArqRedis(
            pool_or_conn=broker.client.connection_pool, job_serializer=queue.dumps, job_deserializer=queue.loads
        )
        super().__init__(
            functions=[func(cast("Any", run_turn), name="run_turn", keep_result=0)],
            queue_name=broker.keys.queue(0, "turns"),
            redis_pool=pool,
            max_jobs=slots or broker.settings.slots,
            job_timeout=_JOB_TIMEOUT_S,
            keep_result=0,
            max_tries=10**6,
            handle_signals=False,
            job_serializer=queue.dumps,
            job_deserializer=queue.loads,
        )
        self.broker = broker
        self.id = new_id()
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()
        self._agents = {agent.name: agent for agent in agents}
        self._claiming = asyncio.Lock()
        self._due = asyncio.Event()
        self._hurry = asyncio.Event()
        self._running = self._draining = False
        self._drained = asyncio.Event()
        self._bell: asyncio.Task[None] | None = None
        self._unanswered: dict[str, tuple[str, float]] = {}  # claims: each queue's nonce, and when it was first sent
        self.turns = HeldTurns(broker, self.id, self._agents, self.functions, self.ctx, self.stopping)
        self.ctx["runs"] = self.turns.runs
        self.readiness = Readiness(broker, self.id, lambda: self.renewal.renewed_at, ready_file)
        self.renewal = Renewal(
            broker, self.id, self.max_jobs, self.turns.leases, gone=self._gone, away=self.readiness.away
        )
        self.renewal.queues = self._queues()

    # What it serves.

    async def serve(self, agent: AgentDefinition) -> None:
        """Serve an agent from now on; returns when it is registered."""
        known = self._agents.get(agent.name)
        self._agents[agent.name] = agent
        if known is None:
            self.renewal.queues = self._queues()
            await self.renewal.now([(name, key) for name, key in self.renewal.queues if name == agent.name])
            await self._hang_bell()
            self._due.set()

    def _queues(self) -> tuple[tuple[str, str], ...]:
        keys, shards = self.broker.keys, range(self.broker.settings.shards)
        return tuple((name, keys.queue(shard, name)) for name in self._agents for shard in shards)

    # The loop.

    async def main(self) -> None:
        """Claim and run turns until `stopping` is set, and serve them until they are drained. Survives a broker that is away."""
        beside = [
            asyncio.create_task(self._forever(loop), name=f"worker {loop.__name__}")
            for loop in (self._listen, self._keep_house, self.readiness.watch)
        ]
        self._running = True
        self.renewal.start()
        try:
            await self._hang_bell()
            await self.ready.wait()
            while not self.stopping.is_set():
                try:
                    async with self._claiming:
                        wait = await self._claim_all()
                except BrokerUnavailableError as away:
                    self.readiness.away(away)
                    wait = 0.1
                except Exception as failed:  # noqa: BLE001 - a worker that ended would cost its turns an attempt each
                    log.warning("loop_failed", worker=self.id, loop="claim", **fault(failed))
                    self._unanswered.clear()  # it is answered
                    wait = 1.0
                await self._wait_for_work(wait)
            await self._drained.wait()
        finally:
            await asyncio.gather(*(end_task(task) for task in (*beside, self._bell) if task is not None))
            await self.renewal.stop()

    async def _forever(self, loop: Any) -> None:
        back = 0.05
        while True:
            try:
                await loop()
                back = 0.05
            except Exception as failed:  # noqa: BLE001 - a worker without one of its loops would only seem to work
                if isinstance(failed, (*TRANSIENT, BrokerUnavailableError)):
                    self.readiness.away(failed)
                else:
                    log.warning("loop_failed", worker=self.id, loop=loop.__name__, **fault(failed))
                await asyncio.sleep(back)
                back = min(back * 2, 1.0)

    @property
    def _fallback(self) -> float:
        """Seconds after which the worker looks even if nobody rang; also keeps its queues' ticks alive."""
        return FALLBACK_POLL if self.broker.embedded is not None else self.broker.settings.lease / 5

    async def _claim_all(self) -> float:
        wait = self._fallback
        for _, key in self._queues():
            free = self.max_jobs - self.job_counter
            if free <= 0 or self.stopping.is_set():
                break
            lease = self.broker.settings.lease
            nonce, asked = self._unanswered.get(key) or (new_id(), monotonic())
            if monotonic() - asked > lease:
                nonce, asked = new_id(), monotonic()
            self._unanswered[key] = nonce, asked
            claimed = await queue.claim(
                self.broker, key, worker=self.id, slots=free, lease=lease, budget=_CLAIM_S / 2, nonce=nonce
            )
            del self._unanswered[key]
            for job_id, body in claimed.jobs[: self.max_jobs - self.job_counter]:  # what a repeat gives beyond lapses
                self.turns.leases.take(job_id, key, asked + lease)
                await self._start(key, job_id, body)
            self.readiness.back()
            if claimed.wait is not None:
                wait = min(wait, claimed.wait)
        return wait

    async def _wait_for_work(self, wait: float) -> None:
        if self.job_counter >= self.max_jobs:
            wait = self._fallback  # a due job is no reason to look while there is no slot
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(wait, 0.001)):
                await self._due.wait()
        self._due.clear()

    async def _start(self, key: str, job_id: str, body: bytes | None) -> None:
        await self.sem.acquire()
        self.job_counter += 1
        task = self.loop.create_task(self._run(key, job_id, body), name=f"turn {job_id}")
        self.tasks[job_id] = task
        task.add_done_callback(lambda done: self._freed(job_id, done))

    def _freed(self, job_id: str, task: asyncio.Task[Any]) -> None:
        if self.tasks.get(job_id) is task:
            del self.tasks[job_id]
        full = self.job_counter >= self.max_jobs
        self._release_sem_dec_counter_on_complete()
        if full:
            self._due.set()

    async def _hang_bell(self) -> None:
        """Listen for tokens of every queue that is served now. A look must follow: the bell before may have been given one."""
        before = self._bell
        if not self._running or self.stopping.is_set() or not self._agents:
            return
        self._bell = asyncio.create_task(self._forever(self._hear_bell), name="worker bell")
        if before is not None:
            await end_task(before)

    async def _hear_bell(self) -> None:
        """A token says that a job is there, and which; the queue alone says whether it still is.

        An idle worker begins the job it was rung for, one call in all; a busy one claims what is due together, and so does one
        whose claim is not answered: that may give this very job, or as many as there are slots.
        """
        keys = [f"{key}:wake" for _, key in self._queues()]
        async with contextlib.aclosing(pop_token(self.broker, keys, _BELL_S)) as tokens:
            async for token in tokens:
                if token is not None:
                    await self._rung(*token)

    async def _rung(self, wake: str, job_id: str) -> None:
        free = not self.stopping.is_set() and self.job_counter < self.max_jobs
        busy = self.job_counter * 2 >= self.max_jobs or self._unanswered
        if free and not busy and job_id not in self.tasks:
            await self._start(wake.removesuffix(":wake"), job_id, None)
        elif free:
            self._due.set()
        else:
            await queue.hand_on(self.broker, wake, job_id)  # others have slots
            while self.job_counter >= self.max_jobs:
                await asyncio.wait(self.tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _listen(self) -> None:
        """Hints for the turns this worker holds: news in their log, or their end."""
        channels = [self.broker.keys.control(shard, self.id) for shard in range(self.broker.settings.shards)]
        async for message in subscribe(self.broker, channels):
            if message is None:
                await self._registered()
                for held in self.turns.runs.values():
                    held.news.set()  # hints were lost meanwhile
                continue
            word, session_id, turn_id = message[1].decode().split(" ")
            run = self.turns.runs.get(session_id)
            if run is None or run.context.turn_id != turn_id:
                continue
            if word == "stop":
                self._stop(session_id, turn_id)
            else:
                run.news.set()

    async def _registered(self) -> None:
        """It can be told of its turns, and is in the listing of workers: from now on it takes work."""
        await self.renewal.now(self.renewal.queues)
        if not self.ready.is_set():
            self.ready.set()
            for agent in self._agents.values():
                settings = self.broker.settings
                if long := agent.outliving(settings.no_progress, settings.tool_timeout):
                    log.warning(
                        "tool_outlives_progress",
                        worker=self.id,
                        agent=agent.name,
                        tools=long,
                        no_progress=settings.no_progress,
                    )
            log.info("worker_started", worker=self.id, agents=sorted(self._agents), slots=self.max_jobs)

    def _stop(self, session_id: str, turn_id: str) -> None:
        for job_id in list(self.tasks):
            if f"{session_id}:{turn_id}:" in job_id and job_id in self.turns.leases:
                self._tell(job_id)

    def _tell(self, job_id: str) -> None:
        """Tell a job's run to stop, once."""
        lease = self.turns.leases.get(job_id)
        if job_id in self.turns.handing or (lease is not None and lease.told):
            return
        if lease is not None:
            lease.told = True
        self.tasks[job_id].cancel()

    def _gone(self, job_id: str, why: str) -> None:
        """A renewal was told that a job is held no longer: its run stops, and writes nothing more."""
        lease = self.turns.leases.get(job_id)
        if lease is None or job_id not in self.tasks:
            return
        if not lease.lost and (why == "lost" or lease.left <= 0):  # a turn that was cut is not lost
            log.warning("lease_lost", worker=self.id, job=job_id)
        lease.lose()
        self._tell(job_id)

    async def _keep_house(self) -> None:
        await asyncio.sleep(await keep_house(self.broker))

    # One job.

    async def _run(self, key: str, job_id: str, body: bytes | None) -> None:
        try:
            await self.run_job(job_id, 0, key=key, body=body)
        except asyncio.CancelledError:
            if self.stopping.is_set():
                raise
        except Exception as failed:  # noqa: BLE001 - its lease lapses, and another run goes on
            log.error("run_failed", worker=self.id, job=job_id, **fault(failed))  # noqa: TRY400 - a message holds contents
        finally:
            # The claim may have given a job that was also rung for: then this task has nothing to say of it any more.
            if self.tasks.get(job_id) is asyncio.current_task():
                self.turns.leases.drop(job_id)

    async def run_job(self, job_id: str, score: int, *, key: str = "", body: bytes | None = None) -> None:  # noqa: ARG002 - arq's signature
        """Begin a job, one that was claimed or (without a body) rung for, and run its function."""
        await self.turns.run(job_id, key, body)

    # Its end.

    async def drain(self, grace: float) -> None:
        """Claim nothing more, let running turns go on for `grace` seconds, hand the rest back, and leave.

        Called again with a grace of 0 it ends the first one's.
        """
        if self._draining:
            if grace <= 0:
                self._hurry.set()
            await self._drained.wait()
            return
        self._draining = True
        try:
            await self._drain(grace)
        finally:
            self._drained.set()
        turns = self.turns
        ids = {"finished": turns.ended, "handed_back": turns.handed_back}
        log.info("worker_stopped", worker=self.id, turns=turns.finished, **ids, broker_lost_writes=turns.gaps)

    async def _drain(self, grace: float) -> None:
        log.info("worker_draining", worker=self.id, grace=grace, running=len(self.tasks))
        self.turns.ended, self.renewal.slots = [], 0
        self.turns.handed_back.clear()
        self.stopping.set()
        self.readiness.drain()
        self.ready.set()  # a start that was waited for waits no more
        self._due.set()
        if self._bell is not None:
            await end_task(self._bell)
        await self._claim_over(_CLAIM_S)  # what it gives is started, and then handed back
        leaving = asyncio.create_task(self._leave())
        if self.tasks and grace > 0:
            await self._unless_hurried(list(self.tasks.values()), grace)
        await self._hand_back(known := dict(self.tasks))
        await self._claim_over(self.broker.settings.command_budget)  # over a slow link it may still give something
        await self._hand_back({job_id: task for job_id, task in self.tasks.items() if job_id not in known})
        await self.turns.connections.close()
        await leaving

    async def _claim_over(self, seconds: float) -> None:
        """Wait until no claim is under way, for at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._claiming:
                pass

    async def _hand_back(self, rest: Mapping[str, asyncio.Task[Any]]) -> None:
        """Stop these, and hand their turns back: also that whose code does not stop when it is told to."""
        for job_id in rest:
            self._tell(job_id)
        if not rest:
            return
        await asyncio.wait(rest.values(), timeout=_STOP_S)
        stuck = [job_id for job_id, task in rest.items() if not task.done() and job_id not in self.turns.handing]
        if stuck:
            log.warning("turns_do_not_stop", worker=self.id, jobs=stuck)
        giving_up = [asyncio.create_task(self.turns.give_up(job_id)) for job_id in stuck]
        await self._unless_hurried([rest[job_id] for job_id in rest if job_id not in stuck] + giving_up)
        if stuck:
            await asyncio.wait([rest[job_id] for job_id in stuck], timeout=_CLEAN_S)

    async def _unless_hurried(self, tasks: Sequence[asyncio.Task[Any]], most: float | None = None) -> None:
        """Wait for tasks, for at most so many seconds, and until somebody hurries."""
        hurrying = asyncio.create_task(self._hurry.wait())
        ending = asyncio.ensure_future(asyncio.gather(*tasks, return_exceptions=True))
        await asyncio.wait({ending, hurrying}, timeout=most, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()

    async def _leave(self) -> None:
        """Go out of the listing of workers, and ring for what is due: the bell may have been given a token as it ended."""
        queues = self._queues()
        leave = (queue.leave(self.broker, key, worker=self.id, agent=name, budget=_CLAIM_S / 2) for name, key in queues)
        for reply in await asyncio.gather(*leave, return_exceptions=True):
            if isinstance(reply, BaseException) and not isinstance(reply, BrokerUnavailableError):
                raise reply
