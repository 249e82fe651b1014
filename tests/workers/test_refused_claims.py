"""A broker that refuses a worker's claims: access lists and servers change while it runs."""

from __future__ import annotations

from typing import Any

import pytest
from eventually import eventually
from turns import Steps, staged

from broker import queue
from broker.broker import Broker
from broker.protocol.errors import SdkError


async def test_a_claim_that_is_refused_ends_no_worker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    real, refusals = queue.claim, [SdkError("the access list does not allow it")]

    async def claim(*args: Any, **options: Any) -> queue.Claimed:
        if refusals:
            raise refusals.pop()
        return await real(*args, **options)

    monkeypatch.setattr(queue, "claim", claim)
    async with staged(broker, Steps(["done"])) as stage:
        await stage.send()
        assert (await stage.ended())["type"] == "completed"
    assert refusals == []


async def test_a_worker_whose_claims_are_refused_runs_what_it_is_rung_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    async def claim(*_args: Any, **_options: Any) -> queue.Claimed:
        raise SdkError("the access list does not allow it")

    monkeypatch.setattr(queue, "claim", claim)
    async with staged(broker, Steps(["done"])) as stage:
        await eventually(lambda: [entry for entry in logs if entry["event"] == "loop_failed"], "one is refused")
        await stage.send()
        assert (await stage.ended())["type"] == "completed"
