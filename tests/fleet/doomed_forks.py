"""A program that forks workers which will be killed: what they need is loaded once, so that hundreds start in seconds.

It reads lines of JSON, `{"name", "folder", "fault", "stands"}`: a worker that serves the agent `name` (`ledger_agents.py`) with a
fault point armed. It prints `forked NAME PID`, and `died NAME STATUS` with what `waitpid` gave. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from pathlib import Path
from typing import Any, Final

import structlog
from ledger_agents import whole

import workers.source_connection
from broker import fault_points
from broker.broker import Broker
from broker.settings import Settings
from workers.worker import TurnWorker

LOADED: Final = workers.source_connection
"""A worker loads it when a run needs it, in a second."""


async def work(told: dict[str, Any]) -> None:
    """Serve one agent until killed; hand back what runs when it is told to end."""
    agent = whole(told["name"], Path(told["folder"]), stands=told["stands"])
    worker = TurnWorker(Broker(Settings()), [agent.definition])
    drains: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: drains.append(loop.create_task(worker.drain(0))))
    await worker.main()
    await asyncio.gather(*drains)


def reap(names: dict[int, str]) -> None:
    """Say which workers have died."""
    while names:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        print("died", names.pop(pid), status, flush=True)


def main() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    names: dict[int, str] = {}
    rest = b""
    while True:
        reap(names)
        if not select.select([0], [], [], 0.02)[0]:
            continue
        if not (read := os.read(0, 65536)):
            break
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            told = json.loads(line)
            pid = os.fork()
            if pid == 0:
                os.close(0)
                fault_points.arm_from(told["fault"])
                asyncio.run(work(told))
                os._exit(0)
            names[pid] = told["name"]
            print("forked", told["name"], pid, flush=True)
    for pid in names:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
