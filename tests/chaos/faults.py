"""The faults as they strike: each at its time, beside one another."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from crew import Crew, Life
from proxy import Link, Proxy
from schedule import Fault, Schedule

from broker.server import LocalServer


@dataclass
class Held:
    """What a killed or frozen worker held then: whose turn, up to which event, and when (Unix time)."""

    session: str
    turn: str
    last: int
    at: float


@dataclass
class Faults:
    """Strikes a part's faults, and counts them."""

    schedule: Schedule
    crew: Crew
    server: LocalServer
    proxies: Mapping[str, Proxy]
    look: Callable[[], Awaitable[list[tuple[str, str, str, int]]]]
    """An async callable: what each worker holds now, as the broker has it: (worker's id, session, turn, last event's number)."""
    sessions: Mapping[str, str]
    """The ids of the sessions, by their keys in the schedule."""
    counts: Counter[str] = field(default_factory=Counter)
    held: list[Held] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    _server_at_work: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Strike all, each at its time; returns when the last one's effect is over."""
        begun = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for fault in self.schedule.faults:
                group.create_task(self._one(fault, begun))

    async def _one(self, fault: Fault, begun: float) -> None:
        await asyncio.sleep(max(0.0, begun + fault.at - asyncio.get_running_loop().time()))
        match fault.kind:
            case "kill" | "stop" | "drain":
                await self._strike_worker(fault)
            case "restart" | "crash" | "freeze":
                async with self._server_at_work:
                    await self._strike_server(fault)
            case _:
                await self._strike_links(fault)

    async def _strike_worker(self, fault: Fault) -> None:
        life = await self._meant(fault)
        match fault.kind:
            case "kill":
                self.crew.signal(life, signal.SIGKILL)
                await life.over.wait()
                await self._note(life)
            case "drain":
                self.crew.signal(life, signal.SIGTERM)
                if fault.again is not None:
                    await asyncio.sleep(fault.again)
                    self.crew.signal(life, signal.SIGTERM)
            case _:
                stood = time.time()
                self.crew.signal(life, signal.SIGSTOP)
                await asyncio.sleep(fault.seconds)
                self.crew.signal(life, signal.SIGCONT)
                life.stood.append((stood, time.time()))
        self.counts[fault.kind] += 1

    async def _meant(self, fault: Fault) -> Life:
        if fault.prey:
            session = self.sessions.get(fault.prey)
            holders = [(held == session, self.crew.named(worker)) for worker, held, _, _ in await self.look()]
            for _, life in sorted(holders, key=lambda each: not each[0]):
                if life is not None:
                    self.counts["struck in a turn"] += 1
                    return life
        life = await self.crew.alive_at(fault.slot)
        while not fault.early and life.worker is None:  # a kill is for one that works
            await asyncio.sleep(0.05)
            life = await self.crew.alive_at(fault.slot)
        return life

    async def _note(self, life: Life) -> None:
        ended = life.ended or time.time()
        for worker, session, turn, last in await self.look():
            if worker == life.worker:
                self.held.append(Held(session, turn, last, ended))

    async def _strike_server(self, fault: Fault) -> None:
        server, pid, away = self.server, self.server.pid or 0, time.time()
        if fault.kind == "freeze":
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            os.kill(pid, signal.SIGCONT)
        else:
            if fault.kind == "crash":
                os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(server.start)
        self.outages.append((away, time.time()))
        self.counts[fault.kind] += 1

    async def _strike_links(self, fault: Fault) -> None:
        proxy = self.proxies.get(fault.proxy) or self.proxies["head"]
        rng = random.Random(f"{self.schedule.seed}:{fault.at}")
        struck: list[Link] = [link for link in list(proxy.links) if rng.random() < fault.share]
        match fault.kind:
            case "cut":
                for link in struck:
                    link.cut(after=fault.bytes)
                self.counts["cut links"] += len(struck)
            case "swallow":
                for link in struck:
                    link.swallow()
                await asyncio.sleep(fault.seconds)
                for link in struck:
                    link.cut()
            case _:
                for link in struck:
                    link.hold()
                await asyncio.sleep(fault.seconds)
                for link in struck:
                    link.go_on()
        self.counts[fault.kind] += 1
