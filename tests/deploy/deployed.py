"""A server as `deploy/` sets it up: its `redis.conf`, and its access list filled in as `deploy/README.md` says."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import redis
from real_server import RealServer

from broker.server import find_server, free_port

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"


@dataclass(frozen=True)
class Deployment:
    """A running server, and each user's password."""

    server: RealServer
    passwords: dict[str, str]

    def url(self, user: str) -> str:
        """The broker's URL for a user of the access list."""
        return f"redis://{user}:{self.passwords[user]}@127.0.0.1:{self.server.port}/0"

    def operator(self) -> redis.Redis:
        """A client that may do everything."""
        return redis.Redis.from_url(self.url("operator"), decode_responses=True)


def fill_in(folder: Path) -> dict[str, str]:
    """Fill in the access list in a copy of `deploy/`, with the lines of its README; return the passwords."""
    place = folder / "deploy"
    shutil.copytree(DEPLOY, place, ignore=shutil.ignore_patterns("secrets", ".env"))
    blocks = re.findall(r"```sh\n(.*?)```", (place / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (lines,) = [block for block in blocks if "sha256-of-" in block]
    subprocess.run(["sh", "-euc", lines], cwd=place, check=True)
    passwords = {}
    for line in (place / ".env").read_text(encoding="utf-8").splitlines():
        name, _, password = line.partition("=")
        passwords[name.removesuffix("_PASSWORD").lower()] = password
    return passwords


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Run a server with `redis.conf` and the access list, its data in a folder."""
    passwords = fill_in(folder)
    (folder / "data").mkdir()
    with running(folder, passwords) as deployment:
        yield deployment


@contextmanager
def running(folder: Path, passwords: dict[str, str]) -> Iterator[Deployment]:
    """Run the server of a folder, anew where it ran before; only its port and its folders are others than in `redis.conf`."""
    port, program = free_port(), find_server()
    options = ["--port", str(port), "--dir", str(folder / "data")]
    options += ["--aclfile", str(folder / "deploy" / "secrets" / "users.acl")]
    with (folder / "server.log").open("ab") as out:
        process = subprocess.Popen([program.path, str(DEPLOY / "redis.conf"), *options], stdout=out, stderr=out)
    deployment = Deployment(RealServer(program, port, process), passwords)
    try:
        _await_ready(deployment, folder / "server.log")
        yield deployment
    finally:
        process.kill()
        process.wait()


def _await_ready(deployment: Deployment, log: Path) -> None:
    process = deployment.server.process
    for _ in range(1000):
        assert process.poll() is None, log.read_text()
        try:
            with deployment.operator() as client:
                client.ping()
        except redis.ConnectionError:
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
        else:
            return
    raise AssertionError(f"the server did not come up: {log.read_text()}")
