"""`turnstream up`: a local server and a worker in one command."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import redis
from commands import folder_of_agents, read_until, run, session_of, start

from broker.server import free_port


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with a module of agents."""
    return folder_of_agents(tmp_path)


def replied(url: str, *command: str) -> list[bytes]:
    client = redis.Redis.from_url(url, protocol=2)
    try:
        reply = client.execute_command(*command)  # type: ignore[no-untyped-call] # redis-py has no types here
        if isinstance(reply, dict):
            return [str(item).encode() for pair in reply.items() for item in pair]
        return [bytes(item) for item in reply]
    finally:
        client.close()


def process_of(url: str) -> str:
    client = redis.Redis.from_url(url)
    try:
        found = re.search(r"'process_id': (\d+)", repr(client.info("server")))
        assert found is not None
        return found[1]
    finally:
        client.close()


def listening(port: int) -> bool:
    client = redis.Redis(port=port, socket_timeout=1)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


def test_up_runs_a_server_and_a_worker_and_ends_both(home: Path) -> None:
    process = start(home, {}, "up", "cli_agents:echo")
    try:
        told = read_until(process, "Ctrl-C ends")
        url = re.findall(r"export TURNSTREAM_REDIS_URL=(\S+)", told)[0]
        port = int(url.rpartition(":")[2].partition("/")[0])
        chatted = run(home, {"TURNSTREAM_REDIS_URL": url}, "chat", "--name", "echo", typed="Keep this.\n")
        second = run(home, {}, "up", "cli_agents:echo")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()

    assert "agent   Keep this." in chatted.stdout
    assert (second.returncode, len(second.stderr.splitlines())) == (1, 1)
    assert "already runs in" in second.stderr
    assert url in second.stderr
    assert process.returncode == 0
    assert "worker_stopped" in err
    assert not listening(port)

    again = start(home, {}, "up", "cli_agents:echo")
    try:
        assert url in read_until(again, "Ctrl-C ends")  # the exported URL stays good
        assert session_of(chatted.stdout) in run(home, {"TURNSTREAM_REDIS_URL": url}, "sessions").stdout
        settings = replied(url, "CONFIG", "GET", "append*") + replied(url, "CONFIG", "GET", "maxmemory-policy")
        assert {b"everysec", b"yes", b"noeviction"} <= set(settings)
    finally:
        again.terminate()
        again.communicate(timeout=20)
    assert again.returncode == 0
    assert not listening(port)


def test_up_says_so_when_its_server_ends_by_itself(home: Path) -> None:
    process = start(home, {}, "up", "cli_agents:echo", "--port", str(free_port()), "--dir", "data")
    try:
        url = re.findall(r"export TURNSTREAM_REDIS_URL=(\S+)", read_until(process, "Ctrl-C ends"))[0]
        client = redis.Redis.from_url(url)
        client.shutdown()
        client.close()
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()

    assert process.returncode == 1
    assert "server.log says why" in err.splitlines()[-1]


def test_up_ends_the_server_that_a_killed_one_left(home: Path) -> None:
    first = start(home, {}, "up", "cli_agents:echo")
    url = re.findall(r"export TURNSTREAM_REDIS_URL=(\S+)", read_until(first, "Ctrl-C ends"))[0]
    first.kill()
    first.communicate()
    left = process_of(url)

    second = start(home, {}, "up", "cli_agents:echo")
    try:
        assert url in read_until(second, "Ctrl-C ends")
        assert process_of(url) != left
    finally:
        second.terminate()
        _, err = second.communicate(timeout=20)
    assert "it is ended first" in err


def test_a_signal_that_meets_a_finalizer_is_not_lost(home: Path) -> None:
    """Python drops what a signal's handler raises while an object is finalized; `up` ends all the same."""
    (home / "trapped.py").write_text(
        "import os, signal\nimport api_shim as agents\n\n"
        "class Trap:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGTERM)\n        list(range(1000))\n\n"
        "class Trapped(agents.Agent):\n    @property\n    def name(self):\n"
        "        if callable(signal.getsignal(signal.SIGTERM)) and not hasattr(self, 'sprung'):\n"
        "            self.sprung = True\n            Trap()\n        return 'trapped'\n\n"
        "echo = Trapped(name='trapped', model='scripted:echo')\n",
        encoding="utf-8",
    )
    process = start(home, {}, "up", "trapped:echo")
    try:
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "Exception ignored" in err
    assert (process.returncode, "Ctrl-C ends" in out, "Stopped." in err) == (0, True, True)
