"""The worker processes of a part: each slot has one alive, of its version; whoever dies has a successor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from launcher import die_with_parent
from schedule import SLOTS, Birth, Schedule

HERE: Final = Path(__file__).parent
SERVED: Final = {"head": ("chaos_agents:plain", "chaos_whole:whole"), "old": ("chaos_agents:plain",)}


@dataclass
class Life:
    """One worker process, from its birth to its end."""

    number: int
    slot: int
    version: str
    birth: Birth
    log: Path
    pid: int = 0
    born: float = 0.0
    ended: float | None = None
    status: int | None = None
    killed: bool = False
    drained: float | None = None
    process: asyncio.subprocess.Process | None = None
    known_as: str | None = None
    stood: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it was frozen."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    alive: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def worker(self) -> str | None:
        """Its worker's id, once its log says it."""
        if self.known_as is None:
            started = (line for line in self.lines() if line.get("event") == "worker_started")
            self.known_as = next((str(line["worker"]) for line in started), None)
        return self.known_as

    @property
    def served_from(self) -> float | None:
        """Since when it took work, by its log."""
        for line in self.lines():
            if line.get("event") == "worker_started":
                return datetime.fromisoformat(line["timestamp"]).timestamp()
        return None

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what it has logged; a line that is no JSON (a traceback, the last words at a fault point) as `text`."""
        if not self.log.exists():
            return
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                told = None
            yield told if isinstance(told, dict) else {"text": line}


class Crew:
    """The lives of all slots. Each version's processes have an environment and a launcher of their own."""

    def __init__(self, schedule: Schedule, folder: Path, environments: Mapping[str, dict[str, str]]) -> None:
        self.lives: list[Life] = []
        self._environments = environments
        self._folder = folder
        self._births = [schedule.births(slot) for slot in range(len(SLOTS))]
        self._versions = [version if version in environments else "head" for version in SLOTS]
        self._launchers: dict[str, asyncio.subprocess.Process] = {}
        self._now: dict[int, Life] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._born = asyncio.Condition()
        self._all_cli = os.environ.get("CHAOS_ALL_CLI") == "1"

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Have every slot filled while this is entered; all processes are gone when it is left."""
        try:
            for version in dict.fromkeys(self._versions):
                await self._open_launcher(version)
            for slot in range(len(SLOTS)):
                await self._bear(slot)
            yield
        finally:
            self._closing = True
            for launcher in self._launchers.values():
                if launcher.stdin is not None:
                    launcher.stdin.close()  # it ends, and its children with it
            for life in self.lives:
                if life.process is not None and life.process.returncode is None:
                    life.process.kill()
            waits = [life.process.wait() for life in self.lives if life.process is not None]
            await asyncio.gather(*(launcher.wait() for launcher in self._launchers.values()), *waits)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open_launcher(self, version: str) -> None:
        launcher = self._launchers[version] = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "launcher.py"), *SERVED[version]),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environments[version],
            cwd=HERE,
            preexec_fn=die_with_parent,
        )
        assert launcher.stdout is not None
        ready = await launcher.stdout.readline()
        if json.loads(ready or "{}") != {"ready": True}:
            raise RuntimeError(f"The launcher of version {version} did not start; its words are above.")
        self._spawn(self._hear(launcher.stdout))

    async def _hear(self, told: asyncio.StreamReader) -> None:
        while line := await told.readline():
            said = json.loads(line)
            if "born" in said:
                life = self.lives[said["born"]]
                life.pid, life.born = said["pid"], time.time()
                life.alive.set()
            else:
                self._ended(self.lives[said["ended"]], said["status"], said["at"])

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bear(self, slot: int) -> None:
        version, birth, number = self._versions[slot], next(self._births[slot]), len(self.lives)
        life = Life(number, slot, version, birth, self._folder / f"worker-{number:04}-{version}.log")
        self.lives.append(life)
        self._now[slot] = life
        if birth.cli:
            with life.log.open("ab") as log:
                life.process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "api_shim.cli", "worker", *SERVED[version]),
                    *("--json", "--grace", str(birth.grace)),
                    env=self._environments[version] | {"TURNSTREAM_FAULT": birth.fault},
                    stderr=log,
                    cwd=HERE,
                    preexec_fn=die_with_parent,
                )
            life.pid, life.born = life.process.pid, time.time()
            life.alive.set()
            self._spawn(self._wait_for(life))
        else:
            self._order(life, log=str(life.log), fault=birth.fault, grace=birth.grace)
            await life.alive.wait()
        async with self._born:
            self._born.notify_all()

    async def _wait_for(self, life: Life) -> None:
        assert life.process is not None
        self._ended(life, await life.process.wait(), time.time())

    def _order(self, life: Life, **order: Any) -> None:
        launcher = self._launchers[life.version]
        assert launcher.stdin is not None
        launcher.stdin.write(json.dumps({"birth": life.number, **order}).encode() + b"\n")

    def _ended(self, life: Life, status: int, at: float) -> None:
        life.status, life.ended = status, at
        life.over.set()
        if not self._closing:
            self._spawn(self._succeed(life))

    async def _succeed(self, life: Life) -> None:
        await asyncio.sleep(life.birth.after)
        await self._bear(life.slot)

    # What is done to them.

    def at(self, slot: int) -> Life | None:
        """The process of a slot that is alive now."""
        life = self._now.get(slot)
        return life if life is not None and life.alive.is_set() and not life.over.is_set() else None

    async def alive_at(self, slot: int) -> Life:
        """Wait for the process of a slot, if its successor is not born yet."""
        async with self._born:
            await self._born.wait_for(lambda: self.at(slot) is not None)
        return cast("Life", self.at(slot))

    def named(self, worker: str) -> Life | None:
        """The process of a worker that is alive now, by the worker's id."""
        return next((life for slot in range(len(SLOTS)) if (life := self.at(slot)) and life.worker == worker), None)

    def signal(self, life: Life, number: int) -> None:
        """Send a signal to a process that is alive."""
        if life.over.is_set():
            return
        if number == signal.SIGKILL:
            life.killed = True
        if number == signal.SIGTERM:
            life.drained = life.drained or time.time()
        if life.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(life.pid, number)  # what asyncio has for it may take the status from whoever waits for it
        else:
            self._order(life, signal=int(number))

    async def calm(self) -> None:
        """Have every process go on that stands still, and every slot filled."""
        for life in self.lives:
            if not life.over.is_set():
                self.signal(life, signal.SIGCONT)
        for slot in range(len(SLOTS)):
            await self.alive_at(slot)
