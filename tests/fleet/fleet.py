"""A deployment of real processes on the real server, under a prefix of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Log:
    """A process's log, read by a thread as it is written: an unread pipe would stop the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self.thread = threading.Thread(target=self._read, args=[process], daemon=True)
        self.thread.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr as pipe:
            for line in pipe:
                with self._more:
                    self.lines.append(line)
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def until(self, word: str, within: float = 20.0) -> str:
        """Return the first line that holds `word`, once it is there."""

        def found() -> str | None:
            return next((line for line in self.lines if word in line), None)

        with self._more:
            self._more.wait_for(lambda: found() or self._ended, within)
            line = found()
        assert line is not None, f"no line with {word!r} in: {self.lines[-5:]}"
        return line


@dataclass(frozen=True)
class WorkerProcess:
    """A worker process and its log."""

    process: subprocess.Popen[str]
    log: Log


class Fleet:
    """A deployment: a broker's URL and a prefix, which all its processes get from the environment."""

    def __init__(self, url: str, prefix: str, **settings: str) -> None:
        self.url = url
        self.prefix = prefix
        self.env = {**os.environ, "TURNSTREAM_REDIS_URL": url, "TURNSTREAM_PREFIX": prefix, **settings}

    @contextmanager
    def worker(self, *options: str, serves: str = "fleet_agents:clerk", group: bool = False) -> Iterator[WorkerProcess]:
        """Run a worker process that serves an agent. It serves when this returns, and has drained when it is left.

        `group`: in a process group of its own, as a terminal has it.
        """
        command = [
            sys.executable,
            "-m",
            "api_shim.cli",
            "worker",
            serves,
            "--grace",
            "0",
            "--json",
            *options,
        ]
        process = subprocess.Popen(
            command, cwd=HERE, env=self.env, stderr=subprocess.PIPE, text=True, process_group=0 if group else None
        )
        try:
            log = Log(process)
            log.until("worker_started")
            yield WorkerProcess(process, log)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=20)
            log.thread.join(timeout=5)

    def client(self, role: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a client process (`clients.py`)."""
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(HERE / "clients.py"), role, *arguments],
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def line_of(process: subprocess.Popen[str]) -> Any:
    """Return the next line of JSON that a client process prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the client process ended with {process.wait(5)}"
    return json.loads(line)


def tell(process: subprocess.Popen[str], text: str = "") -> None:
    """Send a line to a client process."""
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def end(*processes: subprocess.Popen[str]) -> None:
    """End client processes."""
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
