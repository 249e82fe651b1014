"""`turnstream check`: hold stored sessions against what is promised of every log."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import click

from api_shim.cli.place import ERROR, finish, need_broker, ready_place, url_option
from api_shim.cli.terminal import complain, one_line, say
from api_shim.event_json import json_text
from api_shim.listing import list_sessions
from broker.history_check import Finding
from broker.protocol.errors import AgentsError, BrokerUnavailableError, SessionNotFoundError
from broker.stored_session import StoredSession, check_tree, read_tree

_FINDINGS: Final = 1


@click.command(short_help="Check that stored sessions are whole and in order.")
@click.argument("sessions", metavar="[SESSION…]", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every session that is kept, archived ones too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a session.")
@url_option
def check(sessions: tuple[str, ...], every: bool, as_json: bool, url: str | None) -> None:
    """Check that sessions' stored histories are whole and in order, their subagents' too. Changes nothing in them.

    Exit status 0: all are in order. 1: something is wrong, and each finding is a line with the event's place. 2: an error, such
    as a session that could not be read; findings in others count more.
    """
    if every == bool(sessions):
        raise click.UsageError("Name a SESSION, or several, or give --all.")
    need_broker(url)
    finish(_check(sessions, every=every, as_json=as_json))


async def _check(sessions: Sequence[str], *, every: bool, as_json: bool) -> int:
    place = await ready_place()
    found, unread = False, False
    async for session_id in _every() if every else _each(sessions):
        try:
            tree = await read_tree(place.broker, session_id)
        except AgentsError as error:
            if every and isinstance(error, SessionNotFoundError):
                continue  # its retention was over meanwhile
            complain(str(error))
            unread = True
            if isinstance(error, BrokerUnavailableError):
                break
            continue
        for stored, findings in check_tree(tree):
            _show(stored, findings, as_json=as_json)
            found = found or bool(findings)
    return _FINDINGS if found else ERROR if unread else 0


async def _each(sessions: Sequence[str]) -> AsyncIterator[str]:
    for session_id in dict.fromkeys(sessions):
        yield session_id


async def _every() -> AsyncIterator[str]:
    for archived in (False, True):
        async for info in list_sessions(archived=archived):
            yield info.id


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
