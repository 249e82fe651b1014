"""The command line: `turnstream`."""

from __future__ import annotations

import click

from api_shim.cli.worker import worker


@click.group()
@click.version_option(package_name="turnstream")
def main() -> None:
    """Agent sessions on Redis: run workers, follow sessions, talk to agents."""


main.add_command(worker)
