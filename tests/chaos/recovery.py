"""How long a turn stood still after its worker was killed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from crew import Life
from faults import Held
from schedule import LEASE_S

from broker.history_check import LogRecord
from broker.protocol.wire import parse_stream_id

BOUND_S: Final = LEASE_S + 5
"""Within which another worker goes on."""

_NOTICED_S: Final = LEASE_S / 3
"""For how long nobody may look at a queue before that counts as an outage."""


def recoveries(session_id: str, records: Sequence[LogRecord], held: Iterable[Held]) -> Iterator[tuple[Held, float]]:
    """Yield for each kill that struck a turn of this session the seconds until another worker went on with it.

    That shows as the notice of the next attempt. A turn that a client ended or that was answered meanwhile shows none before its
    next event of a client's, and is not counted.
    """
    for kill in held:
        if kill.session != session_id:
            continue
        for each in records:
            place = parse_stream_id(each.id)
            if place.n <= kill.last or each.body.get("turnId") != kill.turn:
                continue
            if each.body.get("type") == "notice":
                yield kill, max(0.0, place.ms / 1000 - kill.at)
                break
            if each.body.get("type") == "turnEnded":
                break


def absences(lives: Iterable[Life], agent: str) -> list[tuple[float, float]]:
    """Return the times at which no worker of an agent was there: none had started, lived and was not frozen."""
    there: list[tuple[float, float]] = []
    for life in lives:
        began = life.served_from
        if began is None or (agent == "whole" and life.version != "head"):
            continue
        for stood, went_on in sorted(life.stood):
            there.append((began, stood))
            began = went_on
        there.append((began, life.ended or time.time()))
    found, until = [], 0.0
    for began, ended in sorted(there):
        if until and began - until > _NOTICED_S:
            found.append((until, began))
        until = max(until, ended)
    return found


def able_since(killed: float, away: Iterable[tuple[float, float]]) -> float:
    """Return since when another worker could go on: since the kill, or the end of what held all of them up after it.

    A broker that is away, or a time in which no worker looked at the queue, moves all leases: none is reaped for what the
    broker did not hear meanwhile. What begins within the bound begins it anew.
    """
    since = killed
    for began, ended in sorted(away):
        if began < since + BOUND_S and ended > since:
            since = ended
    return since
