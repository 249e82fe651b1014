"""Real MCP servers for tests: processes of `mcp_server.py`, each told by a case how to behave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workers.sources import MCPServer

PROGRAM: Final = str(Path(__file__).with_name("mcp_server.py"))


@dataclass
class Case:
    """How a server is to behave to those who name this case, and what it did."""

    path: Path
    url: str = ""

    def say(self, **behaviour: Any) -> None:
        """Behave like this from now on."""
        self.path.write_text(json.dumps(behaviour))

    @property
    def log(self) -> list[str]:
        """What the server did, line by line."""
        log = self.path.with_suffix(".log")
        return log.read_text().splitlines() if log.exists() else []

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name this case."""
        return {"x-case": str(self.path)}

    def over_http(self, name: str = "box", **options: Any) -> MCPServer:
        """The running server."""
        headers = {**self.headers, **options.pop("headers", {})}
        return MCPServer(name, url=self.url, headers=headers, **{"timeout": 10.0, **options})

    def over_stdio(self, name: str = "box", **options: Any) -> MCPServer:
        """A server that is started for this."""
        env = {"MCP_CASE": str(self.path), **options.pop("env", {})}
        return MCPServer(name, command=sys.executable, args=[PROGRAM, "stdio"], env=env, **options)

    def pids(self, word: str = "start") -> list[int]:
        """The processes that started, or ended."""
        return [int(line.split()[1]) for line in self.log if line.startswith(f"{word} ")]


@contextmanager
def serving_tools(port: int = 0) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a server over HTTP; gives its port and its process."""
    process = subprocess.Popen([sys.executable, PROGRAM, "http", str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def address(port: int) -> str:
    """Where a server answers."""
    return f"http://127.0.0.1:{port}/mcp"


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
