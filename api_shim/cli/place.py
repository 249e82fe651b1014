"""`--url`: which broker a command talks to, and what an operator's command exits with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import click

from api_shim.cli.terminal import complain
from api_shim.local import Place, connect, current_host, place_of
from broker.protocol.errors import AgentsError

_F = TypeVar("_F", bound=Callable[..., Any])


ERROR: Final = 2
"""The exit status of a command that could not do what it was told; 1 is an answer that somebody has to look at."""


class UnusableError(click.ClickException):
    """What a command was given cannot be used, or it was not given a broker. Exit status 2."""

    exit_code = ERROR


def url_option(command: _F) -> _F:
    """Add `--url` to a command."""
    return click.option("--url", help="The broker's URL; default: TURNSTREAM_REDIS_URL.")(command)


def need_broker(url: str | None) -> str:
    """Use the broker at `url`, or the environment's, and return its URL. Raises `UnusableError` when none is named."""
    if url is not None:
        connect(url)
    host = current_host()
    if host is None:
        raise UnusableError("No broker is named: set TURNSTREAM_REDIS_URL, or give --url redis://127.0.0.1:6379/0.")
    return host


async def ready_place() -> Place:
    """Return the broker's place, once it was checked. Raises `BrokerUnavailableError`."""
    place = place_of(current_host())
    await place.ready()
    return place


def finish(work: Coroutine[Any, Any, int]) -> NoReturn:
    """Run a command, and exit with the status that it returns; with 2 and one line on stderr for an error."""
    try:
        status = asyncio.run(work)
    except AgentsError as error:
        complain(str(error))
        status = ERROR
    raise SystemExit(status)
