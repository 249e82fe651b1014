"""`turnstream ready`: a probe for whoever watches over a worker's process."""

from __future__ import annotations

from pathlib import Path

import click

from workers.ready_file import why_not_ready


@click.command(short_help="Say whether a worker is ready, by its file.")
@click.argument("file", type=click.Path(path_type=Path))
def ready(file: Path) -> None:
    """Exit with 0 if the worker that runs with `--ready-file FILE` is ready for turns, else say why not and exit with 1."""
    reason = why_not_ready(file)
    if reason is not None:
        raise click.ClickException(reason)
    click.echo("ready")
