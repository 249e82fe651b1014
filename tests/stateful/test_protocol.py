"""The whole protocol against its model, on both brokers: whatever is done in whatever order, they say and hold the same."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis.stateful import run_state_machine_as_test
from machine import Protocol
from real_server import RealServer

from broker.broker import Broker
from broker.embedded import EmbeddedServer
from broker.settings import Settings


@contextmanager
def machine(url: str | None) -> Iterator[type[Protocol]]:
    """The machine on a broker of its own, with a loop to wait in."""
    with asyncio.Runner() as runner:

        async def opened() -> Broker:
            settings = Settings(redis_url=url, prefix=f"m{uuid.uuid4().hex[:8]}:")
            return Broker(settings, None if url else EmbeddedServer())

        broker = runner.run(opened())
        try:
            yield type("Protocol", (Protocol,), {"broker": broker, "loop": runner.get_loop()})
        finally:
            runner.run(broker.close())


PHASES: Final = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]


def check(url: str | None, examples: int, steps: int) -> None:
    """Run so many examples of so many steps."""
    options = hypothesis_settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    with machine(url) as made:
        run_state_machine_as_test(made, settings=options)


@pytest.mark.parametrize("on", ["embedded", "redis"])
def test_the_broker_does_what_the_model_does(on: str, real_server: RealServer) -> None:
    check(None if on == "embedded" else real_server.url, examples=100, steps=60)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("on", ["embedded", "redis"])
def test_the_broker_does_what_the_model_does_for_long(on: str, real_server: RealServer) -> None:
    check(None if on == "embedded" else real_server.url, examples=1500, steps=120)
