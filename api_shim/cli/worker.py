"""`turnstream worker`: a process that runs turns until it is told to stop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import structlog

from api_shim.cli import stop_signals
from api_shim.cli.loading import load_agents
from api_shim.cli.place import UnusableError, need_broker, url_option
from broker.broker import Broker
from broker.settings import Settings, unknown_variables
from workers.agent import AgentDefinition
from workers.logging import configure_logging
from workers.ready_file import ReadyFile
from workers.worker import TurnWorker

log = structlog.get_logger("turnstream.worker")


@click.command()
@click.argument("agents", nargs=-1, required=True, metavar="MODULE:AGENT...")
@url_option
@click.option("--slots", type=click.IntRange(min=1), help="Turns that run at once.")
@click.option("--lease", type=click.FloatRange(min=0, min_open=True), help="Seconds a turn is held without renewing.")
@click.option("--grace", type=click.FloatRange(min=0), help="Seconds that running turns may go on after SIGTERM.")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that is there while the worker is ready: `turnstream ready FILE` probes it.",
)
@click.option("--json", "as_json", is_flag=True, help="Log one JSON object a line.")
def worker(
    agents: Sequence[str],
    url: str | None,
    slots: int | None,
    lease: float | None,
    grace: float | None,
    ready_file: Path | None,
    as_json: bool,
) -> None:
    """Run turns of these agents. A broker that is away is waited for.

    SIGTERM and Ctrl-C drain it; a second one hands running turns back at once.
    """
    configure_logging(json=as_json)
    given: dict[str, Any] = {"redis_url": need_broker(url), "slots": slots, "lease": lease, "grace": grace}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    definitions = [agent.definition for agent in load_agents(agents)]
    try:
        file = ReadyFile(ready_file) if ready_file is not None else None
    except OSError as refused:
        raise UnusableError(
            f"--ready-file {ready_file} cannot be written ({refused.strerror}): make the folder, or name another file."
        ) from None
    asyncio.run(_run(settings, definitions, file))


async def _run(settings: Settings, definitions: Sequence[AgentDefinition], file: ReadyFile | None) -> None:
    if not await run_worker(settings, definitions, ready_file=file):
        os._exit(0)  # else the loop would wait for code that does not stop; its turns are others' by now


async def run_worker(
    settings: Settings,
    definitions: Sequence[AgentDefinition],
    broken: Coroutine[Any, Any, None] | None = None,
    *,
    ready_file: ReadyFile | None = None,
) -> bool:
    """Run one worker until SIGTERM or SIGINT, then drain it; the second signal ends the grace.

    `broken` returns when there is nothing left to run on: the worker ends at once then. Returns whether all that ran has
    stopped. A broker that is away is waited for; raises `BrokerUnavailableError` for an unfit one.
    """
    for name, nearest in unknown_variables(os.environ):
        log.warning("unknown_setting", variable=name, nearest=nearest)
    loop, stop, hurry = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def signalled(_: object = None) -> None:
        (hurry if stop.is_set() else stop).set()

    stop_signals.listen(loop, signalled)
    breaking = asyncio.create_task(broken) if broken is not None else None
    if breaking is not None:
        for _ in range(2):  # as two signals
            breaking.add_done_callback(signalled)
    broker = Broker(settings)
    running, main = TurnWorker(broker, definitions, ready_file=ready_file), None
    try:
        if not await _first(stop, running.readiness.until_fit()):
            main = asyncio.create_task(running.main())
            await _first(stop, asyncio.shield(main))
        hurrying = asyncio.create_task(_hurried(running, hurry))
        await running.drain(settings.grace)
        hurrying.cancel()
        if main is not None:
            await main
        return not running.tasks
    finally:
        stop_signals.ignore(loop)
        if ready_file is not None:
            ready_file.remove()
        if main is not None:
            await running.drain(0)  # where it ends by an error, what it runs is handed back
        await broker.close()
        if breaking is not None:
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)


async def _first(event: asyncio.Event, work: Awaitable[None]) -> bool:
    """Wait for an event or for work, which is given up for the event; whether it was the event. Raises what the work raises."""
    waiting, working = asyncio.create_task(event.wait()), asyncio.ensure_future(work)
    try:
        await asyncio.wait({waiting, working}, return_when=asyncio.FIRST_COMPLETED)
        if not event.is_set():
            await working
        return event.is_set()
    finally:
        waiting.cancel()
        working.cancel()
        await asyncio.gather(waiting, working, return_exceptions=True)


async def _hurried(running: TurnWorker, hurry: asyncio.Event) -> None:
    await hurry.wait()
    await running.drain(0)
