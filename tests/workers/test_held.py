"""What a worker keeps between turns, and what it says of a turn that failed in the agent's own code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from turns import staged

from broker.broker import Broker
from broker.protocol.errors import BrokerUnavailableError
from workers import held
from workers.fold import History
from workers.held import HeldTurns
from workers.models import ModelRequest, ModelText


@pytest.fixture
def turns(embedded_broker: Broker) -> HeldTurns:
    return HeldTurns(embedded_broker, "w", {}, {}, {}, asyncio.Event())


def fold(size: int) -> History:
    """A history of one message of `size` letters."""
    history = History()
    entry = {"type": "message", "id": "e", "role": "user", "content": [{"type": "text", "text": "x" * size}]}
    history.apply("1-1", {"type": "entryCompleted", "turnId": "t", "entry": entry})
    return history


def test_the_folds_used_last_are_kept(turns: HeldTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "FOLDS_KEPT", 2)
    for session_id in ("a", "b", "c"):
        turns.keep(session_id, fold(1))

    assert list(turns.folds) == ["b", "c"]


def test_large_histories_make_room_for_each_other_and_the_latest_stays(
    turns: HeldTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "WEIGHT_KEPT", 1_030_000)
    for session_id, size in (("a", 400_000), ("b", 400_000), ("c", 200_000)):
        turns.keep(session_id, fold(size))
    assert list(turns.folds) == ["a", "b", "c"]

    turns.keep("d", fold(300_000))
    assert list(turns.folds) == ["b", "c", "d"]

    turns.keep("e", fold(9_900_000))
    assert list(turns.folds) == ["e"]


async def test_a_name_that_is_wrong_is_said_in_the_turns_record(broker: Broker) -> None:
    async with staged(broker, "scripted:nope") as stage:
        await stage.send()
        error = (await stage.ended())["error"]
    assert error["code"] == "internal_error"
    assert error["message"].startswith("model 'scripted:nope': no such script")


async def test_what_a_model_may_not_give_fails_its_turn_by_name(broker: Broker) -> None:
    class Plain:
        async def stream(self, _request: ModelRequest) -> AsyncIterator[str]:
            yield "hello"

    async with staged(broker, Plain()) as stage:
        await stage.send()
        error = (await stage.ended())["error"]
    assert (error["code"], error["message"]) == (
        "model_failed",
        "the model's stream() gave str; it gives ModelText(…) and the like",
    )


AGENT_CODE = {
    "a cancelled thing": asyncio.CancelledError(),
    "another broker that is away": BrokerUnavailableError("somebody else's broker is away"),
    "sys.exit": SystemExit(1),
}
"""What a model may raise that means something else when it is not the agent's code that raises it."""


@pytest.mark.parametrize("raised", AGENT_CODE)
async def test_whatever_a_model_raises_fails_its_turn_once(broker: Broker, raised: str) -> None:
    """Not handed back for nothing, and begun again, for ever."""
    asked = 0

    class Raising:
        async def stream(self, _request: ModelRequest) -> AsyncIterator[ModelText]:
            nonlocal asked
            asked += 1
            yield ModelText("a")
            raise AGENT_CODE[raised]

    async with staged(broker, Raising()) as stage:
        await stage.send()
        error = (await stage.ended())["error"]
        assert stage.worker.turns.handed_back == []
    assert (error["code"], asked) == ("internal_error", 1)
