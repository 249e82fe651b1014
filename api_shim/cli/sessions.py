"""`turnstream sessions`: what sessions there are."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import Final

import click

from api_shim.cli.place import need_broker, url_option
from api_shim.cli.terminal import one_line
from api_shim.event_json import json_text
from api_shim.listing import SessionInfo, list_sessions
from broker.protocol.content import camel
from broker.protocol.values import JsonValue

_COLOURS: Final = {"running": "green", "waiting": "cyan", "terminated": "white"}


@click.command()
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option("--status", type=click.Choice(["running", "waiting", "terminated"]), help="Only sessions that stand so.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@click.option("--archived", is_flag=True, help="Archived sessions instead of the others.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@url_option
def sessions(agent: str | None, status: str | None, limit: int, archived: bool, as_json: bool, url: str | None) -> None:
    """List sessions, newest first."""
    need_broker(url)
    asyncio.run(_list(agent, status, limit, archived=archived, as_json=as_json))


async def _list(agent: str | None, status: str | None, limit: int, *, archived: bool, as_json: bool) -> None:
    found = 0
    async for info in list_sessions(agent_name=agent, status=status, archived=archived, limit=limit):
        found += 1
        click.echo(json_text(_json(info)) if as_json else _line(info))
    if not found and not as_json:
        click.secho("No such sessions.", dim=True, err=True)


def _json(info: SessionInfo) -> dict[str, JsonValue]:
    return {
        camel(name): value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(info).items()
    }


def _line(info: SessionInfo) -> str:
    at = info.updated_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    status = click.style(f"{info.status:<10}", fg=_COLOURS.get(info.status))
    about = one_line(info.title or info.preview or "", 60)
    return f"{info.id}  {click.style(at, dim=True)}  {status}  {one_line(info.agent_name, 30):<20}  {about}".rstrip()
