"""`turnstream worker`: a process that runs turns until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Any

import click

from api_shim.cli.loading import load_agent
from broker.broker import Broker
from broker.settings import Settings
from workers.agent import AgentDefinition
from workers.logging import configure_logging
from workers.worker import TurnWorker


@click.command()
@click.argument("agents", nargs=-1, required=True, metavar="MODULE:AGENT...")
@click.option("--url", help="The broker's URL; default: TURNSTREAM_REDIS_URL.")
@click.option("--slots", type=click.IntRange(min=1), help="Turns that run at once.")
@click.option("--lease", type=float, help="Seconds a turn is held without renewing.")
@click.option("--grace", type=float, help="Seconds that running turns may go on after SIGTERM.")
@click.option("--json", "as_json", is_flag=True, help="Log one JSON object a line.")
def worker(
    agents: Sequence[str], url: str | None, slots: int | None, lease: float | None, grace: float | None, as_json: bool
) -> None:
    """Run turns of these agents. SIGTERM and Ctrl-C drain it; a second one hands running turns back at once."""
    configure_logging(json=as_json)
    given: dict[str, Any] = {"redis_url": url, "slots": slots, "lease": lease, "grace": grace}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    if settings.redis_url is None:
        raise click.UsageError("No broker is named: set TURNSTREAM_REDIS_URL, or give --url redis://127.0.0.1:6379/0.")
    asyncio.run(run_worker(settings, [load_agent(place).definition for place in agents]))


async def run_worker(settings: Settings, definitions: Sequence[AgentDefinition]) -> None:
    """Run one worker until SIGTERM or SIGINT, then drain it. Raises `BrokerUnavailableError` for an unfit broker."""
    broker = Broker(settings)
    try:
        await broker.check()
        running = TurnWorker(broker, definitions)
        await until_signalled(running, settings.grace)
    finally:
        await broker.close()


async def until_signalled(running: TurnWorker, grace: float) -> None:
    """Run a worker until the first signal, then drain it; the second signal ends the grace."""
    loop = asyncio.get_running_loop()
    signals = 0
    stop, hurry = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        nonlocal signals
        signals += 1
        (stop if signals == 1 else hurry).set()

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
