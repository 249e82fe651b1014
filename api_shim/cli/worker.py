"""`turnstream worker`: a process that runs turns until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from typing import Any

import click

from api_shim.cli.loading import load_agents
from api_shim.cli.place import need_broker, url_option
from broker.broker import Broker
from broker.settings import Settings
from workers.agent import AgentDefinition
from workers.logging import configure_logging
from workers.worker import TurnWorker


@click.command()
@click.argument("agents", nargs=-1, required=True, metavar="MODULE:AGENT...")
@url_option
@click.option("--slots", type=click.IntRange(min=1), help="Turns that run at once.")
@click.option("--lease", type=click.FloatRange(min=0, min_open=True), help="Seconds a turn is held without renewing.")
@click.option("--grace", type=click.FloatRange(min=0), help="Seconds that running turns may go on after SIGTERM.")
@click.option("--json", "as_json", is_flag=True, help="Log one JSON object a line.")
def worker(
    agents: Sequence[str], url: str | None, slots: int | None, lease: float | None, grace: float | None, as_json: bool
) -> None:
    """Run turns of these agents. SIGTERM and Ctrl-C drain it; a second one hands running turns back at once."""
    configure_logging(json=as_json)
    given: dict[str, Any] = {"redis_url": need_broker(url), "slots": slots, "lease": lease, "grace": grace}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    asyncio.run(run_worker(settings, [agent.definition for agent in load_agents(agents)]))


async def run_worker(
    settings: Settings, definitions: Sequence[AgentDefinition], broken: Coroutine[Any, Any, None] | None = None
) -> None:
    """Run one worker until SIGTERM or SIGINT, then drain it. Raises `BrokerUnavailableError` for an unfit broker.

    `broken` returns when there is nothing left to run on: the worker ends at once then.
    """
    breaking = asyncio.create_task(broken) if broken is not None else None
    broker = Broker(settings)
    try:
        await broker.check()
        running = TurnWorker(broker, definitions)
        await until_signalled(running, settings.grace, breaking)
    finally:
        await broker.close()
        if breaking is not None:
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)


async def until_signalled(running: TurnWorker, grace: float, breaking: asyncio.Task[None] | None = None) -> None:
    """Run a worker until the first signal, then drain it; the second signal ends the grace, and so does `breaking`."""
    loop = asyncio.get_running_loop()
    signals = 0
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        nonlocal signals
        signals += 1
        (stop if signals == 1 else hurry).set()

    def broke(_: asyncio.Task[None]) -> None:
        stop.set()
        hurry.set()

    if breaking is not None:
        breaking.add_done_callback(broke)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    main = asyncio.create_task(running.main())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({main, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not main.done():
        draining = asyncio.create_task(running.drain(grace))
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not draining.done():
            await running.drain(0)
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
        await draining if not draining.cancelled() else None
    await main
