"""The command line in real processes: with pipes, as programs run it, and at a terminal, as people do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import redis.asyncio as aioredis
from click.testing import CliRunner, Result
from leaks import drop_keys, leaked_keys
from real_server import RealServer

from api_shim.cli import main
from api_shim.local import connect

AGENTS: Final = """
import api_shim as agents

@agents.tool
def pay(amount: int) -> str:
    "Pay an amount."
    return f"paid {amount}"

def twice(request):
    n = sum(type(message).__name__ == "AssistantMessage" for message in request.messages)
    if n % 2:
        return agents.ScriptedReply(text="Done.")
    return agents.ScriptedReply(calls=[agents.ScriptedCall("client.pay", {"amount": 100})])

payer = agents.Agent(name="payer", tools=[pay], permission_mode="ask", model=agents.ScriptedModel(twice))
echo = agents.Agent(name="echo", model="scripted:echo")
slow = agents.Agent(
    name="slow", model=agents.ScriptedModel(otherwise=agents.ScriptedReply(text="and so on " * 2000, delay=0.02))
)
twin = agents.Agent(name="echo", model="scripted:echo")
model = agents.ScriptedModel()
"""


def folder_of_agents(folder: Path) -> Path:
    """Return the folder, with a module of agents in it."""
    (folder / "cli_agents.py").write_text(AGENTS, encoding="utf-8")
    return folder


@contextmanager
def own_prefix(server: RealServer) -> Iterator[dict[str, str]]:
    """Yield the environment that names the server, under a prefix of its own, which is emptied in the end."""
    prefix = f"cli{uuid.uuid4().hex[:8]}:"
    yield {"TURNSTREAM_REDIS_URL": server.url, "TURNSTREAM_PREFIX": prefix}
    asyncio.run(_emptied(server.url, prefix))


async def _emptied(url: str, prefix: str) -> None:
    async with aioredis.Redis.from_url(url) as client:
        leaked = await leaked_keys(client, prefix)
        await drop_keys(client, prefix)
    assert leaked == []


def start(home: Path, env: dict[str, str], *arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "api_shim.cli", *arguments],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **env},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def run(home: Path, env: dict[str, str], *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    process = start(home, env, *arguments, stdin=subprocess.PIPE)
    try:
        out, err = process.communicate(typed, timeout=40)
    finally:
        process.kill()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


async def called(env: dict[str, str], *arguments: str) -> Result:
    """Call a command in this process, which is quicker than a process of its own: for what one test has proved with one."""
    try:
        return await asyncio.to_thread(CliRunner().invoke, main, arguments, env={**env, "NO_COLOR": "1"})
    finally:
        connect(None)  # what `--url` named is this process's


@contextmanager
def worker(home: Path, env: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker that has started; it is killed in the end if it still runs."""
    process = start(home, env, "worker", *arguments)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "worker_started" in line, line
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    read = ""
    while line := process.stdout.readline():
        read += line
        if re.search(pattern, line):
            return read
    raise AssertionError(f"{pattern!r} did not come: {read!r}, {process.stderr.read() if process.stderr else ''!r}")


SESSION: Final = re.compile(r"Session (\S+)[ .]")


def session_of(output: str) -> str:
    found = SESSION.search(output)
    assert found is not None, output
    return found[1].rstrip(".")


class Terminal:
    """A command on a pseudo-terminal, as a person sits at it."""

    def __init__(self, home: Path, env: dict[str, str], *arguments: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(home)
            root = str(Path(__file__).parents[2])
            os.environ.update({"PYTHONPATH": root, "TERM": "xterm", **env})
            os.execv(sys.executable, [sys.executable, "-m", "api_shim.cli", *arguments])  # noqa: S606 - the child
        self.shown = ""
        self._at = 0

    def until(self, pattern: str, within: float = 20.0) -> None:
        """Read until the pattern comes after what was looked for before."""
        end = time.monotonic() + within
        while (found := re.compile(pattern).search(self.shown, self._at)) is None:
            assert time.monotonic() < end, f"{pattern!r} did not come: {self.shown!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self.shown += os.read(self._fd, 65536).decode("utf-8", "replace")
        self._at = found.end()

    def types(self, keys: str) -> None:
        """Type keys."""
        os.write(self._fd, keys.encode())

    def ends(self) -> int:
        """Wait for its end and return its exit status."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if select.select([self._fd], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):  # the other side has closed
                    self.shown += os.read(self._fd, 65536).decode("utf-8", "replace")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self._fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError(f"it did not end: {self.shown!r}")
