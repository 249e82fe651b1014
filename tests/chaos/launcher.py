"""Starts worker processes of one version's code, cheaply: `python launcher.py AGENT…` has imported everything, and forks.

Lines of JSON on stdin are orders, `{"birth": n, "log": path, "fault": point, "grace": s}` and `{"signal": number, "birth": n}`;
lines on stdout tell `{"born": n, "pid"}` and `{"ended": n, "status"}`. It alone signals its children, since it alone knows which
of them it has not buried yet. A forked child that is killed is as dead as any: nothing of it is left but what it wrote.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import time
from typing import Any

from api_shim.cli.loading import load_agents
from api_shim.cli.worker import run_worker
from broker.settings import Settings
from workers.logging import configure_logging

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone (on Linux; elsewhere the driver's own end has to do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Launcher:
    """The children by their number."""

    def __init__(self, definitions: list[Any]) -> None:
        self._definitions = definitions
        self._pids: dict[int, int] = {}

    def obey(self, order: dict[str, Any]) -> None:
        """Do what a line says."""
        number = order["birth"]
        if "log" in order:
            pid = os.fork()
            if pid == 0:
                self._live(order)
            self._pids[number] = pid
            say({"born": number, "pid": pid})
        elif (pid := self._pids.get(number, 0)) > 0:
            os.kill(pid, order["signal"])

    def _live(self, order: dict[str, Any]) -> None:
        """Be a worker, to the end of this process."""
        status = 70
        try:
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            os.dup2(log, 2)
            if order["fault"]:
                from broker.fault_points import arm_from  # the foundation has none

                arm_from(order["fault"])
            configure_logging(json=True)
            asyncio.run(run_worker(Settings(grace=order["grace"]), self._definitions))
            status = 0
        except BaseException:  # noqa: BLE001 - told in its log; the driver sees the status
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def bury(self) -> None:
        """Tell of the children that have ended."""
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = next(each for each, of in self._pids.items() if of == pid)
            del self._pids[number]
            say({"ended": number, "status": os.waitstatus_to_exitcode(status), "at": time.time()})


def say(told: dict[str, Any]) -> None:
    """Tell the driver."""
    print(json.dumps(told), flush=True)


def main() -> None:
    die_with_parent()
    if os.environ.get("CHAOS_PLANT"):
        from planted import plant

        plant()
    launcher = Launcher([agent.definition for agent in load_agents(sys.argv[1:])])
    hears, rings = os.pipe()
    os.set_blocking(rings, False)
    signal.set_wakeup_fd(rings)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    gc.freeze()
    say({"ready": True})
    selector = selectors.DefaultSelector()
    selector.register(hears, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    told = b""
    while True:
        for key, _ in selector.select():
            if key.fd == hears:
                os.read(hears, 4096)
                launcher.bury()
                continue
            more = os.read(0, 65536)
            if not more:
                return
            *lines, told = (told + more).split(b"\n")
            for line in lines:
                launcher.obey(json.loads(line))


if __name__ == "__main__":
    main()
