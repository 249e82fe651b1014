"""What a worker keeps between turns: the folds of the sessions that it ran lately, as many as fit."""

from __future__ import annotations

import asyncio

import pytest

from broker.broker import Broker
from workers import held
from workers.fold import History
from workers.held import HeldTurns


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
