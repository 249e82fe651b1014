"""How long a turn stood still after its worker was killed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from faults import Held
from schedule import LEASE_S

from broker.history_check import LogRecord
from broker.protocol.wire import parse_stream_id

BOUND_S: Final = LEASE_S + 5
"""Within which another worker goes on."""


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


def able_since(killed: float, outages: Iterable[tuple[float, float]]) -> float:
    """Return since when another worker could go on: since the kill, or the end of the broker's outages after it.

    An outage moves all leases: none is reaped for what the broker did not hear meanwhile. One that begins within the bound
    begins it anew.
    """
    since = killed
    for began, ended in sorted(outages):
        if began < since + BOUND_S and ended > since:
            since = ended
    return since
