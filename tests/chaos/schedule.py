"""What a part of the chaos run does: which turns are sent, what is done to them, which faults strike when. Pure, of the seed.

The same seed and size give the same schedule. The interleaving is the machine's: two runs of a schedule are alike, not the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from broker import fault_points

FaultKind = Literal[
    "kill",  # SIGKILL to a worker
    "stop",  # SIGSTOP, then SIGCONT: a worker stands still, past its lease most times
    "drain",  # SIGTERM to a worker
    "restart",  # the broker ends by SIGTERM and comes back
    "crash",  # the broker ends by SIGKILL and comes back
    "freeze",  # SIGSTOP, then SIGCONT, of the broker
    "cut",  # connections are reset, now or in the midst of a command
    "swallow",  # what comes on a connection is lost without a word, until it is given up
    "hold",  # what comes on a connection waits a while
]

SLOTS: Final[tuple[str, ...]] = ("head", "head", "head", "old", "old")
"""The worker processes that are alive at a time, by the version of their code."""

PROXIES: Final[tuple[str, ...]] = ("head", "old", "phone", "desk", "watch")
"""Ways to the broker: of the workers by version, and of three kinds of client."""

LEASE_S: Final = 2.0


@dataclass(frozen=True)
class Birth:
    """How a worker process begins: forked by its launcher or as a command of its own, with a fault point perhaps."""

    cli: bool
    fault: str
    grace: float
    after: float
    """Seconds after the end of its predecessor."""


@dataclass(frozen=True)
class Fault:
    """One fault: `at` so many seconds of the part, to a worker's slot or on a proxy, for some seconds."""

    at: float
    kind: FaultKind
    slot: int = 0
    prey: str = ""
    """A session's key: the worker that holds its turn then is struck; if none does, one that holds any; else the slot's."""
    proxy: str = ""
    early: bool = False
    """Whether a worker is struck that may still be about to start."""
    share: float = 1.0
    """Of a proxy's connections, which part is struck."""
    seconds: float = 0.0
    bytes: int = 0
    again: float | None = None
    """A worker that drains gets a second signal so many seconds later."""


@dataclass(frozen=True)
class TurnPlan:
    """A turn: what its model does step by step, and what people do to it. Times are seconds after it was sent."""

    key: str
    at: float
    steps: list[list[Any]]
    join: bool
    """Whether it is sent as a message that may join an active turn."""
    dies_after: float | None
    """The client that sends it is gone after so many seconds; another sends it again with the same key."""
    steers: list[float]
    interrupt: float | None
    rename: float | None
    parks: bool

    @property
    def text(self) -> str:
        """The message that is sent."""
        return "plan " + json.dumps({"key": self.key, "steps": self.steps})


@dataclass(frozen=True)
class SessionPlan:
    """A session: its agent, its turns one after another, whether it is cancelled in the midst of its last one, its watchers."""

    key: str
    agent: str
    turns: list[TurnPlan]
    cancel: float | None
    watchers: int
    imported: int
    """Messages of the history that it begins with."""


@dataclass(frozen=True)
class Size:
    """How much a part does. `seconds` is for how long new turns and faults come."""

    turns: int = 640
    seconds: float = 180.0
    sessions: int = 44
    kills: int = 120
    stops: int = 22
    drains: int = 22
    restarts: int = 7
    freezes: int = 6
    cuts: int = 40
    swallows: int = 10
    holds: int = 14
    pace: float = 1.0
    """By which the time that tools and people take is multiplied."""
    old: bool = True


@dataclass(frozen=True)
class Schedule:
    """A part's whole schedule."""

    seed: int
    size: Size
    sessions: list[SessionPlan]
    faults: list[Fault]

    @property
    def shards(self) -> int:
        """Over how many shards its sessions are spread."""
        return 1 + self.seed % 2

    @property
    def max_attempts(self) -> int:
        """Starts of a turn before it goes to the dead letters: in every third part few; else as good as never."""
        return 50 if self.seed % 3 else 3

    def births(self, slot: int) -> Iterator[Birth]:
        """Yield how the worker processes of one slot begin, the first one first, without end."""
        rng = random.Random(f"{self.seed}:births:{slot}")
        head = SLOTS[slot] == "head" or not self.size.old
        while True:
            cli = rng.random() < 0.1
            point = rng.choice(fault_points.POINTS) if head and rng.random() < 0.4 else ""
            nth = rng.choice((1, 1, 2, 3, 6))
            after = rng.choice((0.0, 0.0, 0.3, 1.0))
            yield Birth(cli, f"{point}:{nth}" if point else "", rng.choice((0.0, 0.5, 5.0)), after)

    def told(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        return asdict(self)


def draw(seed: int, size: Size) -> Schedule:
    """Return the schedule of a seed."""
    sessions = _sessions(seed, size)
    return Schedule(seed, size, sessions, sorted(_faults(seed, size, sessions), key=lambda fault: fault.at))


def _sessions(seed: int, size: Size) -> list[SessionPlan]:
    rng = random.Random(f"{seed}:sessions")
    each, rest = divmod(size.turns, size.sessions)
    found = []
    for number in range(size.sessions):
        agent = "whole" if rng.random() < 0.35 else "plain"
        count = each + (number < rest)
        times = sorted(rng.uniform(0, size.seconds) for _ in range(count))
        turns = [_turn(rng, f"s{number}t{at}", time, agent, size.pace) for at, time in enumerate(times)]
        cancel = rng.uniform(0.0, 3.0) if rng.random() < 0.15 else None
        watchers, imported = rng.choice((1, 1, 1, 2)), rng.choice((0, 0, 0, 6))
        found.append(SessionPlan(f"{seed}.s{number}", agent, turns, cancel, watchers, imported))
    return found


def _turn(rng: random.Random, key: str, at: float, agent: str, pace: float) -> TurnPlan:
    parks = rng.random() < 0.5
    steps = [_step(rng, agent, pace, parks=False) for _ in range(rng.randint(1, 4))]
    if parks:
        steps.insert(rng.randrange(len(steps) + 1), _step(rng, agent, pace, parks=True))
    return TurnPlan(
        key=key,
        at=at,
        steps=steps,
        join=rng.random() < 0.3,
        dies_after=rng.uniform(0, 0.02) if rng.random() < 0.1 else None,
        steers=[rng.uniform(0, 1.5) for _ in range(rng.choice((0, 0, 0, 0, 1, 2)))],
        interrupt=rng.uniform(0, 2.5) if rng.random() < 0.08 else None,
        rename=rng.uniform(0, 2.5) if rng.random() < 0.1 else None,
        parks=parks,
    )


def _step(rng: random.Random, agent: str, pace: float, *, parks: bool) -> list[Any]:
    """One reply of the model: text, and calls of tools, each with the seconds it takes."""
    if parks:
        kind = rng.choice(("ask", "ask", "client", "many", *(("spawn", "spawn") if agent == "whole" else ())))
    else:
        kind = rng.choice(("say", "run", "run", "again", "thread", "fail", "large", "two"))
        if rng.random() < 0.03:
            return ["calls", [rng.choice(("block", "block", "busy")), round(rng.uniform(0.5, LEASE_S + 1.5), 3)]]
    took = round(pace * rng.choice((0.0, 0.1, 1.0, 2.0)) * rng.random(), 3)
    match kind:
        case "say":
            return ["say", rng.randint(3, 40), round(rng.uniform(0.0, 0.04), 3)]
        case "two":
            return ["calls", ["run", took], ["again", took]]
        case "many":
            return ["calls", ["ask", took], ["run", took], ["client", 0.0]]
        case "spawn":
            below = [_step(rng, "plain", pace, parks=rng.random() < 0.5) for _ in range(rng.randint(1, 2))]
            return ["calls", ["spawn", below]]
        case _:
            return ["calls", [kind, took]]


def _faults(seed: int, size: Size, sessions: Sequence[SessionPlan]) -> Iterator[Fault]:
    rng = random.Random(f"{seed}:faults")

    def times(count: int) -> Iterator[float]:
        for _ in range(count):
            yield rng.uniform(0.5, size.seconds)

    sent = [(turn.at, session.key) for session in sessions for turn in session.turns]

    def strikes(kind: FaultKind, count: int) -> Iterator[Fault]:
        """Half of them strike whom they strike; the others one who is in the midst of a turn."""
        for at in times(count):
            slot, seconds = rng.randrange(len(SLOTS)), rng.uniform(0.5, LEASE_S + 2.5) if kind == "stop" else 0.0
            again = rng.uniform(0.0, 1.0) if kind == "drain" and rng.random() < 0.3 else None
            began, session = rng.choice(sent)
            if rng.random() < 0.5:
                early = rng.random() < 0.2
                yield Fault(at, kind, slot=slot, seconds=seconds, early=early, again=again)
            else:
                after = began + rng.uniform(0.0, 2.0)
                yield Fault(after, kind, slot=slot, prey=session, seconds=seconds, again=again)

    yield from strikes("kill", size.kills)
    yield from strikes("stop", size.stops)
    yield from strikes("drain", size.drains)
    # Restarts stand apart, so that there is a time between them in which work is done.
    for number in range(size.restarts):
        at = (number + rng.uniform(0.2, 0.8)) * size.seconds / size.restarts
        yield Fault(at, rng.choice(("restart", "crash")), seconds=rng.choice((0.0, 0.3, rng.uniform(0.5, 3.0))))
    for at in times(size.freezes):
        yield Fault(at, "freeze", seconds=rng.uniform(0.3, LEASE_S + 2.0))
    for at in times(size.cuts):
        share, after = rng.choice((0.2, 0.5, 1.0)), rng.choice((0, 0, rng.randint(1, 4000)))
        yield Fault(at, "cut", proxy=rng.choice(PROXIES), share=share, bytes=after)
    for at in times(size.swallows):
        yield Fault(at, "swallow", proxy=rng.choice(PROXIES), share=rng.choice((0.2, 0.5, 1.0)), seconds=4.0)
    for at in times(size.holds):
        share = rng.choice((0.3, 1.0))
        yield Fault(at, "hold", proxy=rng.choice(PROXIES), share=share, seconds=rng.uniform(0.2, 2.5))
