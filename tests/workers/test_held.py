"""What a worker keeps between turns: the folds of the sessions that it ran lately, as many as fit."""

from __future__ import annotations

import asyncio

import pytest

from broker.broker import Broker
from workers import held
from workers.fold import History, Input
from workers.held import HeldTurns


@pytest.fixture
def turns(embedded_broker: Broker) -> HeldTurns:
    return HeldTurns(embedded_broker, "w", {}, {}, {}, asyncio.Event())


def fold(items: int) -> History:
    return History(timeline=[Input(at, "user", ()) for at in range(items)])


def test_the_folds_used_last_are_kept(turns: HeldTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "FOLDS_KEPT", 2)
    for session_id in ("a", "b", "c"):
        turns.keep(session_id, fold(1))

    assert list(turns.folds) == ["b", "c"]


def test_long_histories_make_room_for_each_other_and_the_latest_stays(
    turns: HeldTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "ITEMS_KEPT", 10)
    for session_id, items in (("a", 4), ("b", 4), ("c", 2)):
        turns.keep(session_id, fold(items))
    assert list(turns.folds) == ["a", "b", "c"]

    turns.keep("d", fold(3))
    assert list(turns.folds) == ["b", "c", "d"]

    turns.keep("e", fold(99))
    assert list(turns.folds) == ["e"]
