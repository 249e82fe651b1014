"""`--url`: which broker a command talks to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from api_shim.local import connect, current_host

_F = TypeVar("_F", bound=Callable[..., Any])


class NoBrokerError(click.ClickException):
    """A command needs a broker, and none is named. Exit status 2."""

    exit_code = 2


def url_option(command: _F) -> _F:
    """Add `--url` to a command."""
    return click.option("--url", help="The broker's URL; default: TURNSTREAM_REDIS_URL.")(command)


def need_broker(url: str | None) -> str:
    """Use the broker at `url`, or the environment's, and return its URL. Raises `NoBrokerError` when none is named."""
    if url is not None:
        connect(url)
    host = current_host()
    if host is None:
        raise NoBrokerError("No broker is named: set TURNSTREAM_REDIS_URL, or give --url redis://127.0.0.1:6379/0.")
    return host
