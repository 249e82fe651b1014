"""`turnstream up`: a local server with its data in a folder, and a worker, in one command."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import click
import redis

from api_shim.agent import Agent
from api_shim.cli.loading import load_agents
from api_shim.cli.worker import run_worker
from broker.protocol.errors import BrokerUnavailableError
from broker.server import LocalServer, find_server, free_port, is_free
from broker.settings import Settings
from workers.logging import configure_logging

_DURABLE: Final = (
    *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    *("--maxmemory-policy", "noeviction"),
)
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LEFTOVER_S: Final = 10.0
_DYING_S: Final = 0.5


@click.command()
@click.argument("agents", nargs=-1, required=True, metavar="MODULE:AGENT...")
@click.option("--port", type=click.IntRange(1, 65535), help="The server's port; default: the folder's last one.")
@click.option("--dir", "folder", default=".turnstream", show_default=True, help="Where the server's data is kept.")
@click.option("--slots", type=click.IntRange(min=1), default=100, show_default=True, help="Turns that run at once.")
@click.option("--json", "as_json", is_flag=True, help="Log one JSON object a line.")
def up(agents: Sequence[str], port: int | None, folder: str, slots: int, as_json: bool) -> None:
    """Start a local Redis and a worker of these agents. Ctrl-C ends both; the data stays, and the next `up` goes on with it."""
    configure_logging(json=as_json)
    loaded = load_agents(agents)
    home = Path(folder).resolve()
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise click.ClickException(f"{folder} cannot be used: {refused.strerror}.") from None
    asked: list[int] = []

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        asked.append(number)  # Python drops an exception that meets a finalizer, so leaving does not rest on it alone
        sys.exit(0)

    for number in _SIGNALS:
        signal.signal(number, leave)  # also while the server starts, it must not stay behind
    with _alone_in(home):
        _stop_leftover(home)
        server = LocalServer(home, *_DURABLE, port=port or _usable_port(home))
        try:
            server.start()
            (home / "port").write_text(str(server.port), encoding="utf-8")
            _announce(server, folder, loaded)
            settings = Settings(redis_url=server.url, slots=slots)
            with _ended_by_itself(server):
                asyncio.run(run_worker(settings, [agent.definition for agent in loaded], _ended(server, asked)))
        finally:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # the server gets its time to write
            server.stop()
    click.secho(f"Stopped. The sessions are kept in {folder}.", err=True)


async def _ended(server: LocalServer, asked: Sequence[int]) -> None:
    """Return when the server has ended, or a signal came before the worker listened for it."""
    while server.alive and not asked:  # noqa: ASYNC110 - a child process has no event of its own here
        await asyncio.sleep(0.2)


@contextlib.contextmanager
def _ended_by_itself(server: LocalServer) -> Iterator[None]:
    """Raise `BrokerUnavailableError` when the server has not outlived what ran on it, whatever that met."""
    met: BrokerUnavailableError | None = None
    try:
        yield
    except BrokerUnavailableError as away:
        met = away
        time.sleep(_DYING_S)  # its port closes before the process ends
    if not server.alive:
        raise BrokerUnavailableError(f"The server has ended by itself; {server.folder / 'server.log'} says why.")
    if met is not None:
        raise met


@contextlib.contextmanager
def _alone_in(home: Path) -> Iterator[None]:
    """Hold the folder. Raises `BrokerUnavailableError` while another `up` does."""
    with (home / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            port = _last_port(home)
            raise BrokerUnavailableError(
                f"`turnstream up` already runs in {home}"
                + (f", with its broker at redis://127.0.0.1:{port}/0: " if port else ": ")
                + "use that one, or give another --dir."
            ) from None
        yield


def _last_port(home: Path) -> int | None:
    try:
        port = int((home / "port").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return port if 0 < port < 65536 else None


def _usable_port(home: Path) -> int:
    """Return the last port, so that an exported URL stays good; another one when that is taken."""
    last = _last_port(home)
    return last if last is not None and is_free(last) else free_port()


def _stop_leftover(home: Path) -> None:
    """End the server of an `up` that was killed: two on one folder would spoil its data."""
    port = _last_port(home)
    if port is None:
        return
    client = redis.Redis(port=port, socket_timeout=2, socket_connect_timeout=2)
    try:
        told: Any = client.config_get("dir")  # redis-py's types are for both of its clients
        if Path(told["dir"]).resolve() != home:
            return
        click.secho(f"The server of an earlier `up` still ran here, on port {port}: it is ended first.", err=True)
        client.shutdown()
    except redis.RedisError:
        return  # nobody there, or not ours
    finally:
        client.close()
    until = time.monotonic() + _LEFTOVER_S
    while not is_free(port) and time.monotonic() < until:
        time.sleep(0.05)


def _announce(server: LocalServer, folder: str, agents: Sequence[Agent]) -> None:
    program = find_server()
    click.echo(f"{program.name} {program.version} on port {server.port}, its data in {folder}. Elsewhere:")
    click.echo()
    click.secho(f"    export TURNSTREAM_REDIS_URL={server.url}", bold=True)
    for agent in agents:
        click.secho(f"    turnstream chat --name {agent.name}", bold=True)
    click.echo()
    click.echo("Ctrl-C ends the server and the worker.")
