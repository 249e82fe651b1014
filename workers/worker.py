"""The worker: arq's slots and functions under our own claim, wake, lease and finish.

What arq does to a long turn is not safe: its in-progress mark lives as long as the longest timeout and is never renewed, and
its loop ends when Redis restarts. So this subclass replaces the loop and `run_job`. The names it leans on are pinned by
`tests/workers/test_arq_contract.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
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
from workers.tools import Tool
from workers.turn import TurnRun
from workers.version import installed_version

log = structlog.get_logger("turnstream.worker")

_JOB_TIMEOUT_S = 30 * 86_400
_BELL_S = 5.0
_CLAIM_S = 1.0


async def run_turn(ctx: dict[Any, Any], session_id: str, _turn_id: str, _wake: int) -> str:
    """The arq function: run the turn that `run_job` has begun."""
    run: TurnRun = ctx["runs"][session_id]
    return await run.run()


class TurnWorker(Worker):
    """Runs turns of the agents it is given. `ready` is set once it is registered and listens."""

    def __init__(self, broker: Broker, agents: Iterable[AgentDefinition] = (), *, slots: int | None = None) -> None:
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
        self._agents: dict[str, AgentDefinition] = {}
        self._claiming = asyncio.Lock()
        self._due = asyncio.Event()
        self._bell: asyncio.Task[None] | None = None
        self._agents.update((agent.name, agent) for agent in agents)
        self.turns = HeldTurns(broker, self.id, self._agents, self.functions, self.ctx, self.stopping)
        self.ctx["runs"] = self.turns.runs

    # What it serves.

    async def serve(self, agent: AgentDefinition) -> None:
        """Serve an agent from now on; returns when it is registered."""
        known = self._agents.get(agent.name)
        self._agents[agent.name] = agent
        if known is None:
            for name, key in self._queues():
                if name == agent.name:
                    await self._renew(name, key)
            if self._bell is not None:
                before = self._bell
                self._bell = asyncio.create_task(self._forever(self._hear_bell), name="worker bell")
                await end_task(before)
            self._due.set()

    def _queues(self) -> list[tuple[str, str]]:
        keys, shards = self.broker.keys, range(self.broker.settings.shards)
        return [(name, keys.queue(shard, name)) for name in self._agents for shard in shards]

    # The loop.

    async def main(self) -> None:
        """Claim and run turns until `stopping` is set. Survives a broker that is away."""
        beside = [
            asyncio.create_task(self._forever(loop), name=f"worker {loop.__name__}")
            for loop in (self._listen, self._renew_all, self._keep_house)
        ]
        self._bell = asyncio.create_task(self._forever(self._hear_bell), name="worker bell")
        try:
            await self.ready.wait()
            while not self.stopping.is_set():
                try:
                    async with self._claiming:
                        wait = await self._claim_all()
                except BrokerUnavailableError:
                    log.warning("broker_away", worker=self.id)
                    wait = 0.1
                await self._wait_for_work(wait)
        finally:
            await asyncio.gather(*(end_task(task) for task in (*beside, self._bell)))

    async def _forever(self, loop: Any) -> None:
        back = 0.05
        while True:
            try:
                await loop()
                back = 0.05
            except Exception as failed:  # noqa: BLE001 - a loop that ended would take the worker's leases with it
                away = isinstance(failed, (*TRANSIENT, BrokerUnavailableError))
                said = {"error": type(failed).__name__} if away else fault(failed)
                log.warning("broker_away" if away else "loop_failed", worker=self.id, loop=loop.__name__, **said)
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
            if free <= 0:
                break
            claimed = await queue.claim(
                self.broker, key, worker=self.id, slots=free, lease=self.broker.settings.lease, budget=0.5
            )
            for job_id, body in claimed.jobs:
                await self._start(key, job_id, body)
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

    async def _hear_bell(self) -> None:
        """A token says that a job is there, and which; the queue alone says whether it still is.

        An idle worker begins the job it was rung for, one call in all; a busy one claims what is due together, and so does one
        whose claim is under way: that may give this very job, or as many as there are slots.
        """
        keys = [f"{key}:wake" for _, key in self._queues()]
        if not keys:
            await asyncio.get_running_loop().create_future()  # until it serves an agent, and is started anew
        async with contextlib.aclosing(pop_token(self.broker, keys, _BELL_S)) as tokens:
            async for token in tokens:
                if token is None:
                    continue
                wake, job_id = token
                if self.stopping.is_set():
                    await queue.hand_on(self.broker, wake, job_id)  # this worker leaves,
                    await asyncio.get_running_loop().create_future()  # and pops no more until `main` ends it
                busy = self.job_counter * 2 >= self.max_jobs or self._claiming.locked()
                if not busy and job_id not in self.tasks:
                    await self._start(wake.removesuffix(":wake"), job_id, None)
                    continue
                if self.job_counter < self.max_jobs:
                    self._due.set()
                    continue
                await queue.hand_on(self.broker, wake, job_id)  # others have slots
                while self.job_counter >= self.max_jobs:
                    await asyncio.wait(self.tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _listen(self) -> None:
        """Hints for the turns this worker holds: news in their log, or their end."""
        channels = [self.broker.keys.control(shard, self.id) for shard in range(self.broker.settings.shards)]
        async for message in subscribe(self.broker, channels):
            if message is None:
                await self._registered()
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
        for name, key in self._queues():
            await self._renew(name, key)
        if not self.ready.is_set():
            self.ready.set()
            for agent in self._agents.values():
                self._check_limits(agent)
            log.info("worker_started", worker=self.id, agents=sorted(self._agents), slots=self.max_jobs)

    def _check_limits(self, agent: AgentDefinition) -> None:
        """Say which tools may run for longer than a turn may be silent: it would fail before their own time is over."""
        settings = self.broker.settings
        most = settings.no_progress
        if most is None:
            return
        own = (tool for tool in agent.tools if isinstance(tool, Tool))
        long = [tool.id for tool in own if (settings.tool_timeout if tool.timeout is None else tool.timeout) >= most]
        if long:
            log.warning("tool_outlives_progress", worker=self.id, agent=agent.name, tools=long, no_progress=most)

    def _stop(self, session_id: str, turn_id: str) -> None:
        for job_id in list(self.turns.queues):
            if f"{session_id}:{turn_id}:" in job_id and (task := self.tasks.get(job_id)) is not None:
                task.cancel()

    async def _renew_all(self) -> None:
        for name, key in self._queues():
            await self._renew(name, key)
        await asyncio.sleep(self.broker.settings.lease / 4)

    async def _keep_house(self) -> None:
        await asyncio.sleep(await keep_house(self.broker))

    async def _renew(self, agent: str, key: str) -> None:
        held = [job_id for job_id, of in self.turns.queues.items() if of == key]
        lost = await queue.renew(
            self.broker,
            key,
            held,
            worker=self.id,
            agent=agent,
            slots=self.max_jobs,
            version=installed_version(),
            budget=1.0,
        )
        for job_id in lost:
            if (task := self.tasks.get(job_id)) is not None and job_id in self.turns.queues:
                log.warning("lease_lost", worker=self.id, job=job_id)
                task.cancel()

    # One job.

    async def _run(self, key: str, job_id: str, body: bytes | None) -> None:
        if body is not None:  # a job that was rung for is held once `begin` has claimed it
            self.turns.queues[job_id] = key
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
                self.turns.queues.pop(job_id, None)

    async def run_job(self, job_id: str, score: int, *, key: str = "", body: bytes | None = None) -> None:  # noqa: ARG002 - arq's signature
        """Begin a job, one that was claimed or (without a body) rung for, and run its function."""
        await self.turns.run(job_id, key, body)

    # Its end.

    async def drain(self, grace: float) -> None:
        """Claim nothing more, let running turns go on for `grace` seconds, hand the rest back, and leave."""
        self.stopping.set()
        self.ready.set()  # a start that was waited for waits no more
        self._due.set()
        with contextlib.suppress(TimeoutError):  # what a claim under way gives is started, and then handed back
            async with asyncio.timeout(_CLAIM_S), self._claiming:
                pass
        running: Sequence[asyncio.Task[Any]] = list(self.tasks.values())
        if running and grace > 0:
            renewing = asyncio.create_task(self._forever(self._renew_all))
            await asyncio.wait(running, timeout=grace)
            await end_task(renewing)
        rest = [task for task in self.tasks.values() if not task.done()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.turns.connections.close()
        with contextlib.suppress(BrokerUnavailableError):
            for name, key in self._queues():
                await queue.leave(self.broker, key, worker=self.id, agent=name, budget=0.5)
        log.info("worker_stopped", worker=self.id, finished=self.turns.finished, handed_back=self.turns.handed_back)
