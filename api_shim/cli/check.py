"""`turnstream check`: hold stored sessions against what is promised of every log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import click

from api_shim.cli.place import need_broker, url_option
from api_shim.cli.terminal import complain, one_line, say
from api_shim.event_json import json_text
from api_shim.local import current_host, place_of
from broker.history_check import Finding
from broker.protocol.errors import AgentsError
from broker.stored_session import StoredSession, check_tree, read_tree

_FINDINGS, _NOT_CHECKED = 1, 2


@click.command()
@click.argument("sessions", metavar="SESSION…", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a session.")
@url_option
def check(sessions: tuple[str, ...], as_json: bool, url: str | None) -> None:
    """Check that sessions' stored histories are whole and in order, their subagents' too. Reads only.

    Exit status 1: something is wrong, and each finding is a line with the event's place. 2: a session could not be read.
    """
    need_broker(url)
    raise SystemExit(asyncio.run(_check(dict.fromkeys(sessions), as_json=as_json)))


async def _check(sessions: Iterable[str], *, as_json: bool) -> int:
    place, status = place_of(current_host()), 0
    for session_id in sessions:
        try:
            await place.ready()
            tree = await read_tree(place.broker, session_id)
        except AgentsError as unread:
            complain(str(unread))
            status = _NOT_CHECKED
            continue
        for stored, findings in check_tree(tree):
            _show(stored, findings, as_json=as_json)
            status = status or (_FINDINGS if findings else 0)
    return status


def _show(stored: StoredSession, findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        found = [{"code": each.code, "at": each.at, "said": each.said} for each in findings]
        counts = {"events": len(stored.records), "turns": len(stored.turns), "activeTurnId": stored.active}
        click.echo(json_text({"sessionId": stored.session_id, **counts, "findings": list(found)}))
        return
    verdict = "in order" if not findings else _count(len(findings), "finding")
    counted = f"{_count(len(stored.records), 'event')}, {_count(len(stored.turns), 'turn')}"
    say(f"{stored.session_id}  {counted}: {verdict}", fg="red" if findings else None)
    for each in findings:
        say(f"  {one_line(each.at, 60)}  {each.code}  {one_line(each.said, 400)}")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
