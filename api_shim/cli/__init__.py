"""The command line: `turnstream`.

Each command's module is imported when it is called: one that only reads sessions loads no worker's code.
"""

from __future__ import annotations

import sys

from api_shim.cli import stop_signals

if sys.argv[1:2] == ["worker"]:
    stop_signals.note_early()  # before anything else: to load the rest takes about a third of a second

from importlib import import_module
from typing import Any, Final

import click
from pydantic import ValidationError

from api_shim.cli.terminal import complain, prepare
from broker.protocol.errors import AgentsError

_COMMANDS: Final = {
    "demo": "demo:demo",
    "up": "up:up",
    "worker": "worker:worker",
    "ready": "ready:ready",
    "chat": "chat:chat",
    "watch": "watch:watch",
    "sessions": "sessions:sessions",
    "check": "check:check",
    "dead": "dead:dead",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(import_module(f"api_shim.cli.{module}"), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{place} is no command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AgentsError as error:
            complain(str(error))
            ctx.exit(1)
        except ValidationError as invalid:
            if invalid.title != "Settings":
                raise
            first = invalid.errors(include_input=False, include_url=False)[0]
            setting = "_".join(str(part) for part in first["loc"])
            complain(f"The setting TURNSTREAM_{setting.upper()} is not usable: {first['msg']}.")
            ctx.exit(2)


@click.group(cls=_Commands)
@click.version_option(package_name="turnstream")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Agent sessions on Redis: run workers, follow sessions, talk to agents."""
    prepare(ctx)
