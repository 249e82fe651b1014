"""The ring alone: whatever is lost, repeated or late among messages, it holds the log."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from broker.log import Stored, decode_records
from broker.protocol.wire import START, Position
from broker.ring import Ring

SESSION = "0-00000000-0000-4000-8000-000000000000"


def record(n: int, *, blob: bool = False) -> dict[str, Any]:
    kept: dict[str, Any] = {"type": "notice", "message": str(n), "level": "info", "source": "test"}
    return {"type": "notice", "blob": str(n)} if blob else kept


def message(first: int, ms: int, size: int, *, blob: bool = False, before: int | None = None) -> bytes:
    """Make a message; one of an older worker does not say when the event `before` it was stored."""
    told = {} if before is None else {"p": before}
    return orjson.dumps({"n": first, "ms": ms, **told, "e": [record(first + at, blob=blob) for at in range(size)]})


def delta(n: int, ms: int, k: int) -> bytes:
    return orjson.dumps({"n": n, "ms": ms, "k": k, "d": {"type": "textDelta", "entryId": "e", "text": str(k)}})


class Observed:
    """A ring with the log it follows, read as the hub reads it."""

    def __init__(self, limit: int = 1024 * 1024) -> None:
        self.ring = Ring(SESSION, limit)
        self.log: list[Stored] = []
        self.reads = 0

    def append(self, ms: int, size: int, *, blob: bool = False) -> bytes:
        first, before = len(self.log) + 1, self.log[-1].position.ms if self.log else 0
        places = [(Position(first + at, ms), record(first + at), 50) for at in range(size)]
        self.log += decode_records(SESSION, places)
        return message(first, ms, size, blob=blob, before=before)

    def hear(self, *messages: bytes) -> None:
        for each in messages:
            if not self.ring.take(each):
                self.ring.hold(each)
        if self.ring.held:
            self.read()

    def read(self) -> None:
        while True:
            self.reads += 1
            assert self.ring.position is not None
            settled = self.ring.held
            self.ring.extend(self.log[self.ring.position.n :])
            if self.ring.replay(settled):
                return

    @property
    def items(self) -> list[Stored]:
        return [self.ring[index] for index in range(self.ring.base, self.ring.end)]

    @property
    def places(self) -> list[Position]:
        return [item.position for item in self.items]


STEPS = st.lists(
    st.tuples(
        st.integers(1, 4),  # events of the append
        st.integers(0, 2),  # ms that pass before it
        st.sampled_from(["heard", "lost", "twice", "late", "blob"]),
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 5))
def test_whatever_happens_to_messages_the_ring_holds_the_log(steps: list[tuple[int, int, str]], before: int) -> None:
    observed = Observed()
    ms = 1
    if before:
        observed.append(ms, before)
    observed.ring.start(observed.log[-1].position if observed.log else START)
    late: list[bytes] = []
    for size, passed, fate in steps:
        ms += passed
        published = observed.append(ms, size, blob=fate == "blob")
        match fate:
            case "heard" | "blob":
                observed.hear(published)
            case "twice":
                observed.hear(published, published)
            case "late":
                late.append(published)
            case _:
                pass
    observed.hear(*late)
    observed.read()  # what the hub does after a silence

    assert [(item.position, item.events) for item in observed.items] == [
        (item.position, item.events) for item in observed.log[before:]
    ]


def started(*sizes: int) -> Observed:
    observed = Observed()
    observed.ring.start(START)
    for ms, size in enumerate(sizes, 1):
        observed.hear(observed.append(ms, size))
    return observed


def test_messages_in_order_need_no_reading() -> None:
    assert started(1, 4, 2).reads == 0


def test_an_event_known_under_another_time_does_not_fit() -> None:
    observed = started(1, 4, 2)

    assert not observed.ring.take(message(7, 99, 1))
    assert not observed.ring.take(message(2, 99, 4))
    assert not observed.ring.take(delta(7, 99, 1))


def test_what_follows_another_event_does_not_fit() -> None:
    observed = started(1, 4, 2)

    assert not observed.ring.take(message(8, 99, 1, before=50))
    assert observed.ring.take(message(8, 99, 1, before=3))
    assert observed.ring.take(message(9, 99, 1)), "an older worker's"


def test_a_delta_belongs_to_the_last_event_and_comes_once() -> None:
    observed = started(1, 1)
    for each in (delta(2, 2, 1), delta(2, 2, 2), delta(2, 2, 2), delta(1, 1, 9)):
        assert observed.ring.take(each)

    assert observed.places[-2:] == [Position(2, 2, 1), Position(2, 2, 2)]
    assert not observed.ring.take(delta(3, 3, 1))


def test_garbage_does_not_fit_and_is_dropped_after_a_read() -> None:
    observed = started(1)
    for garbage in (b"", b"[]", b"{", b'{"n":"x"}', b'{"n":2,"ms":1}', b'{"n":2,"ms":1,"e":[1]}'):
        assert not observed.ring.take(garbage)
        observed.hear(garbage)

    assert observed.places == [Position(1, 1)]


def test_the_ring_is_bounded_and_knows_where_it_begins() -> None:
    observed = Observed(limit=2_000)
    observed.ring.start(START)
    for ms in range(1, 200):
        observed.hear(observed.append(ms, 1))

    assert sum(item.size for item in observed.items) <= 2_000
    assert observed.ring.floor.n + 1 == observed.places[0].n
    assert observed.ring.index_after(START) is None
    assert observed.ring.index_after(observed.ring.floor) == observed.ring.base
    assert observed.ring.index_after(Position(199, 199)) == observed.ring.end


def test_held_messages_are_bounded_and_read_again() -> None:
    observed = Observed(limit=500)
    observed.ring.start(START)
    for ms in range(1, 50):
        observed.ring.hold(observed.append(ms, 1))
    observed.read()

    assert observed.reads > 1
    assert observed.places[-1] == Position(49, 49)


def test_a_reset_leaves_every_observer_behind() -> None:
    observed = started(1, 1)
    index = observed.ring.end
    observed.ring.reset()

    assert index < observed.ring.base
    assert observed.ring.index_after(Position(2, 2)) is None
    observed.ring.start(Position(1, 1))
    assert observed.ring.index_after(Position(1, 1)) == observed.ring.base
    assert observed.ring.index_after(Position(1, 7)) is None
