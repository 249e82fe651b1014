"""What the programs share: percentiles, one clock for all processes, marks sent beside Redis, and one line of result."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MARKS = "TURNSTREAM_BENCH_MARKS"

now = time.monotonic_ns
"""CLOCK_MONOTONIC: one clock for all processes of a machine."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


@dataclass(frozen=True)
class Latency:
    """Latencies of one way of doing it, in ms."""

    name: str
    values: Sequence[float]

    @property
    def p50(self) -> float:
        """The median."""
        return percentile(self.values, 50)

    @property
    def p99(self) -> float:
        """The 99th percentile."""
        return percentile(self.values, 99)


def report_latencies(title: str, ours: Latency, references: Sequence[Latency], reach: str) -> None:
    """Print ours beside the references; the first one is what the ratio is to."""
    print(f"\n{title}    reach: {reach}")
    for row in (ours, *references):
        ratio = "" if row is references[0] else f"    {row.p50 / references[0].p50:6.2f} x {references[0].name} (p50)"
        print(f"  {row.name:<34} p50 {row.p50:8.2f} ms   p99 {row.p99:8.2f} ms{ratio}")
    print(f"  ours, p99: {ours.p99 / references[0].p99:.2f} x {references[0].name}")


class Marks:
    """A datagram socket on which workers say when a body started, so that the measure does not travel through Redis."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._socket.setblocking(False)

    async def next(self, timeout: float = 30.0) -> tuple[int, int]:  # noqa: ASYNC109 - a benchmark gives up whole
        """Return the next mark: when its job was sent, when its body started."""
        loop = asyncio.get_running_loop()
        data = await asyncio.wait_for(loop.sock_recv(self._socket, 64), timeout)
        sent, started = struct.unpack("<2q", data)
        return sent, started

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


_to_marks: socket.socket | None = None


def mark(sent: int) -> None:
    """Say that the body of what was sent at `sent` starts now. For worker processes."""
    global _to_marks  # noqa: PLW0603 - one socket for the life of the process
    started = now()
    if _to_marks is None:
        _to_marks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _to_marks.connect(os.environ[MARKS])
    _to_marks.send(struct.pack("<2q", sent, started))


@contextmanager
def marking() -> Iterator[Marks]:
    """Open a socket for marks."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Marks(str(Path(folder) / "marks"))
        try:
            yield marks
        finally:
            marks.close()


@contextmanager
def process(role: str, url: str, *arguments: str, marks: Marks | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run `benchmarks.roles` as a process of its own; it has said `ready` when this returns."""
    env = {**os.environ, "TURNSTREAM_REDIS_URL": url, **({MARKS: marks.path} if marks else {})}
    command = [sys.executable, "-m", "benchmarks.roles", role, url, *arguments]
    running = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        if running.stdout is None or running.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the {role} process did not start")
        yield running
    finally:
        running.kill()
        running.wait()
        for end in (running.stdin, running.stdout):
            if end is not None:
                end.close()
