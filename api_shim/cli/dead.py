"""`turnstream dead`: the dead letters, and another chance for those that lie there."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from datetime import datetime
from typing import Final

import click

from api_shim.cli.place import finish, need_broker, ready_place, url_option
from api_shim.cli.terminal import complain, one_line, say
from api_shim.event_json import json_text
from api_shim.listing import list_dead_letters
from api_shim.local import current_host
from api_shim.session import Session
from broker.dead_letters import DeadLetter, lost_runs, messages_of, read_letter, read_turn_log
from broker.protocol.content import camel, content_from_wire, content_text
from broker.protocol.errors import (
    SessionBusyError,
    SessionNotFoundError,
    SessionTerminatedError,
    TurnNotFoundError,
    UnsupportedSessionProcedureError,
)
from broker.protocol.records import Busy
from broker.protocol.values import JsonValue

_NOT_RETRIED: Final = 1


@click.group(short_help="List, show, retry turns that lost every worker.")
def dead() -> None:
    """Turns whose worker was lost at each of their attempts: list them, look at one, give it another chance.

    Exit status 0: done. 1: a turn was not retried. 2: an error, such as a turn that is not there.
    """


def _time(at: datetime) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _json(letter: DeadLetter) -> dict[str, JsonValue]:
    return {
        camel(name): value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(letter).items()
    }


# list


@dead.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@url_option
def list_(limit: int, as_json: bool, url: str | None) -> None:
    """List the dead letters, those that died last first: when, after how many attempts, session, turn, agent, input.

    Exit status 0, also when there are none; 2: an error.
    """
    need_broker(url)
    finish(_list(limit, as_json=as_json))


async def _list(limit: int, *, as_json: bool) -> int:
    found = 0
    async for letter in list_dead_letters(limit=limit + 1):
        if found == limit:
            click.secho(f"There are more than these {limit:,}: --limit shows more.", dim=True, err=True)
            break
        found += 1
        click.echo(json_text(_json(letter)) if as_json else _line(letter))
    if not found and not as_json:
        click.secho("No dead letters.", dim=True, err=True)
    return 0


def _line(letter: DeadLetter) -> str:
    agent = one_line(letter.agent_name, 30) + (" (a subagent)" if letter.parent_id else "")
    agent += " (its session has ended)" if letter.session_ended and not letter.parent_id else ""
    tries = f"{'?' if letter.attempts is None else letter.attempts} {'attempt' if letter.attempts == 1 else 'attempts'}"
    ids = f"{letter.session_id}  {letter.turn_id}"
    return f"{_time(letter.died_at)}  {tries}  {ids}  {agent}  {one_line(letter.preview, 60)}".rstrip()


# show


@dead.command()
@click.argument("session")
@click.argument("turn")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with the input whole.")
@url_option
def show(session: str, turn: str, as_json: bool, url: str | None) -> None:
    """Show one dead letter: why it is there, what was asked, how far each attempt that wrote something got, and where to look.

    Exit status 0, or 2: an error, such as a turn that is not in the dead letters.
    """
    need_broker(url)
    finish(_show(session, turn, as_json=as_json))


async def _show(session: str, turn: str, *, as_json: bool) -> int:
    broker = (await ready_place()).broker
    letter = await read_letter(broker, session, turn)
    log = await read_turn_log(broker, session, turn)
    runs, entries = lost_runs(log), messages_of(log)
    if as_json:
        runs_json: list[JsonValue] = [
            {
                "mark": run.mark,
                "began": run.began.isoformat(),
                "last": run.last.isoformat(),
                "lastWrote": run.last_wrote,
            }
            for run in runs
        ]
        click.echo(json_text({**_json(letter), "input": list(entries), "runs": runs_json}))
        return 0
    say(_line(letter), bold=True)
    say(f"  why    {one_line(letter.reason, 300)}")
    for entry in entries:
        text = content_text(content_from_wire(block) for block in entry["content"])
        say(f"  {'asked' if entry['role'] == 'user' else 'with':<5}  {one_line(text, 300)}")
    for run in runs:
        wrote = f"{_time(run.began)} to {_time(run.last)}, wrote last: {one_line(run.last_wrote, 100)}"
        say(f"  run    {one_line(run.mark, 40)}  {wrote}")
    say("  look   at the logs of the workers whose ids begin as these runs do; a run that wrote nothing is not here")
    say(f"         turnstream watch {letter.session_id} --after {letter.session_id}:{log[0].id}")
    if letter.parent_id is None and letter.session_ended:
        say("  retry  not here: its session has ended. Send what it was asked anew, to a session or a run of its own")
    elif letter.parent_id is None:
        say(f"  retry  turnstream dead retry {letter.session_id} {letter.turn_id}")
    else:
        say(f"         a subagent of session {letter.parent_id}, which was told: it is not retried")
    return 0


# retry


@dead.command()
@click.argument("session", required=False)
@click.argument("turn", required=False)
@click.option("--all", "every", is_flag=True, help="Each, instead of one; not subagents' and ended sessions'.")
@url_option
def retry(session: str | None, turn: str | None, every: bool, url: str | None) -> None:
    """Start a new turn with all that people had sent into a dead one, which then leaves the dead letters. Safe to repeat.

    Exit status 0: done; --all leaves those that cannot be retried, and says so. 1: a turn was not retried: its session is busy or
    refuses it. 2: an error.
    """
    if every in (turn is not None, session is not None):
        raise click.UsageError("Name a SESSION and a TURN, or give --all.")
    need_broker(url)
    finish(_retry_all() if every else _retry(session or "", turn or ""))


async def _retry(session: str, turn: str) -> int:
    await ready_place()
    try:
        new = await Session(session, host=current_host()).turn(turn).retry()
    except (SessionTerminatedError, UnsupportedSessionProcedureError, SessionBusyError) as refused:
        complain(str(refused))
        return _NOT_RETRIED
    if isinstance(new, Busy):
        complain(f"Session {session} is busy with turn {new.turn.id}: retry {turn} when that has ended.")
        return _NOT_RETRIED
    say(f"Turn {new.id} starts with the input of {one_line(turn, 60)}. To follow it: turnstream watch {session}")
    return 0


async def _retry_all() -> int:
    status = 0
    for letter in [letter async for letter in list_dead_letters() if letter.parent_id is None]:
        if letter.session_ended:
            say(
                f"Left: turn {letter.turn_id}, whose session {letter.session_id} has ended. Send what it was asked anew."
            )
            continue
        with contextlib.suppress(
            TurnNotFoundError, SessionNotFoundError
        ):  # somebody else was quicker, or its time was over
            status = await _retry(letter.session_id, letter.turn_id) or status
    return status
