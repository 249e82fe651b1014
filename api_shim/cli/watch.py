"""`turnstream watch`: follow a session."""

from __future__ import annotations

import asyncio
import contextlib

import click

from api_shim.cli.place import need_broker, url_option
from api_shim.cli.rendering import EventPrinter
from api_shim.event_json import event_line
from api_shim.local import current_host
from api_shim.session import Session


class _Watch:
    """One watching; `last` is where it is."""

    def __init__(self, session_id: str, *, as_json: bool) -> None:
        self._session = Session(session_id, host=current_host())
        self._json = as_json
        self._printer = EventPrinter()
        self.last: str | None = None

    async def follow(self, after: str | None) -> None:
        """Print each event until the session ends."""
        events = self._session.iter_events(after=after)
        async with contextlib.aclosing(events):  # type: ignore[type-var] # an async generator, declared as what it promises
            async for event in events:
                if self._json:
                    click.echo(event_line(event))
                else:
                    self._printer.show(event)
                self.last = event.id

    def leave(self) -> None:
        """Say where to go on."""
        self._printer.end_line()
        if not self._json:
            place = f" --after {self.last}" if self.last else ""
            click.secho(f"To go on: turnstream watch {self._session.id}{place}", dim=True, err=True)


@click.command(short_help="Follow a session until it ends.")
@click.argument("session")
@click.option("--after", metavar="CURSOR", help="Only events after this one: an event's id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@url_option
def watch(session: str, after: str | None, url: str | None, as_json: bool) -> None:
    """Follow a session until it ends, from its start or after a cursor. Ctrl-C leaves; the session goes on."""
    need_broker(url)
    watching = _Watch(session, as_json=as_json)
    try:
        asyncio.run(watching.follow(after))
    except KeyboardInterrupt:
        watching.leave()
        raise SystemExit(130) from None
