"""Both sides of the state machine: each verb is done to a broker and to the model, and what they say and hold is compared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import holders
import verbs
from hypothesis import assume
from hypothesis.stateful import RuleBasedStateMachine, invariant
from leaks import leaked_keys
from model import Session, World
from real import Real
from verbs import Stamp, Words

from broker.broker import Broker
from broker.stored_session import check_tree, read_tree

SLACK_S: Final = 40.0
"""An example that takes longer is of no use: the broker's own clock has come too near to the model's next limit."""


@dataclass
class Run:
    """A run, alive or not: its job and fence, the number of its last write, and what it has folded."""

    job: str
    fence: str
    worker: str
    seen: int
    op: int = 0

    @property
    def session(self) -> str:
        """Its session's id."""
        return self.job.split(":")[0]


class Sides(RuleBasedStateMachine):
    """Each step does one thing to both, and holds the broker's words, log, queue and state to the model's."""

    broker: Broker
    world: World
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        self.real = Real(self.broker)
        self.counted = 0
        self.runs: list[Run] = []
        self.claimed: list[tuple[str, str]] = []
        self.jobs: list[str] = []
        self.commands: list[tuple[str, Callable[[], None]]] = []
        self.backup: tuple[World, dict[str, tuple[int, bytes]], dict[str, list[str]]] | None = None
        self.began = time.monotonic()
        self.broken = False

    # Both sides.

    def wait(self, doing: Any) -> Any:
        """Run a coroutine to its end."""
        return self.loop.run_until_complete(doing)

    def name(self, kind: str) -> str:
        """A name that nothing has yet."""
        self.counted += 1
        return f"{kind}{self.counted}"

    def session_name(self) -> str:
        """A session's id, which has its form."""
        self.counted += 1
        return f"0-{self.counted:08x}-0000-4000-8000-000000000000"

    def tick(self, seconds: float = 0.01) -> None:
        """Time passes: a little with each command, so that no two are in one millisecond."""
        assume(time.monotonic() - self.began < SLACK_S)
        self.world.now += seconds
        self.wait(holders.move_clock(self.broker, round(self.world.now * 1000)))

    def do(self, verb: str, *arguments: Any, **options: Any) -> Words:
        """One verb, on both sides; the words that both say."""
        self.tick()
        expected: Words = getattr(verbs, verb)(self.world, *arguments, **options)
        self.broken = True
        said: Words = self.wait(getattr(self.real, verb)(*arguments, **options))
        assert said == expected, f"{verb} {arguments} {options}: the broker said {said}, the model {expected}"
        self.read()
        self.broken = False
        return expected

    def read(self) -> None:
        """Hold what is new in the logs to the model's."""
        for s in self.world.sessions.values():
            known = len(self.real.ids.get(s.id, ()))
            if known < s.last or s.id not in self.real.ids:
                found = self.wait(self.real.new_events(s.id))
                self.real.events |= dict(zip(s.events[known:], self.real.ids[s.id][known:], strict=False))
                assert found == s.log[known:], f"{s.id}: the log got {found}, the model's {s.log[known:]}"

    def write(self, verb: str, run: Run, stamp: Stamp, *arguments: Any, **options: Any) -> Words:
        """One write of a run, which reads the log again when that is not the one that it knows."""
        words = self.do(verb, stamp, *arguments, **options)
        if words[:1] == ["gap"]:
            run.op, run.seen = self.world.sessions[run.session].op, self.world.sessions[run.session].head
        return words

    def command(self, verb: str, *arguments: Any, **options: Any) -> None:
        """A client's command, which may be repeated later, as one whose first reply was lost."""
        self.do(verb, *arguments, **options)
        self.commands.append((arguments[0], lambda: self.repeat(verb, *arguments, **options)))

    def repeat(self, verb: str, *arguments: Any, **options: Any) -> None:
        """The same command again: nothing happens twice."""
        lengths = [s.last for s in self.world.sessions.values()]
        done = options["nonce"] in self.world.said
        self.do(verb, *arguments, **options)
        assert not done or lengths == [s.last for s in self.world.sessions.values()]

    def a_session(self, pick: int) -> Session:
        """One of the sessions."""
        sessions = list(self.world.sessions.values())
        return sessions[pick % len(sessions)]

    def alive(self) -> list[Run]:
        """The runs that hold their turns."""
        sessions = self.world.sessions
        return [r for r in self.runs if (sessions[r.session].fence, sessions[r.session].job) == (r.fence, "running")]

    def a_run(self, pick: int) -> Run:
        """One of the runs: mostly one that holds its turn, at times one that does no more."""
        alive = self.alive()
        some = alive if alive and pick < 6 else self.runs
        return some[-1 - pick % len(some)]

    def stamp(self, run: Run, how: str) -> Stamp:
        """The stamp of a run's next write, or of one that comes again, late, too early, or to a log that has lost writes."""
        s = self.world.sessions[run.session]
        if how == "blind":
            return Stamp(run.session, run.fence, run.op + 1, 0)
        if how == "elsewhere":
            return Stamp(run.session, run.fence, run.op, 0)
        if how == "again" and run.op:
            return Stamp(run.session, run.fence, run.op, run.seen)
        if how == "late" and run.op > 1:
            return Stamp(run.session, run.fence, run.op - 1, run.seen)
        if how == "early":
            return Stamp(run.session, run.fence, run.op + 2, run.seen)
        run.op += 1
        if how != "unread":
            run.seen = s.head
        return Stamp(run.session, run.fence, run.op, run.seen)

    # What holds after each step, and at the end.

    @invariant()
    def the_broker_is_as_the_model(self) -> None:
        """States, attempts, wakes, open callbacks; the queue, what runs, what is active, what is due, and the job keys."""
        self.wait(self.compare())

    async def compare(self) -> None:
        """Hold the broker to the model."""
        self.broken = True
        broker, world = self.broker, self.world
        base, key = broker.keys.base(0), broker.keys.queue(0, "agent")
        names = ["status", "termination", "turn", "job", "wake", "fence", "title", "archived", "n", "attempts"]
        sessions = list(world.sessions.values())
        pipe = broker.client.pipeline(transaction=False)
        for zset in (key, f"{key}:running", f"{base}active", f"{base}deadlines", f"{base}dead"):
            pipe.zrange(zset, 0, -1, withscores=True)
        for s in sessions:
            pipe.hmget(broker.keys.of("session", s.id), names)
            pipe.hkeys(broker.keys.of("asked", s.id))
        waiting, held, active, due, dead, *found = await pipe.execute()
        assert {self.real.job_of(job.decode()) for job, _ in waiting} == set(world.queue)
        assert {self.real.job_of(job.decode()) for job, _ in held} == set(world.running)
        assert {sid.decode() for sid, _ in active} == {s.id for s in sessions if s.turn is not None}
        assert {tuple(member.decode().split(" ")[: 3 if member[0] == b"c"[0] else 2]) for member, _ in due} == set(
            world.deadlines
        )
        assert {member.decode() for member, _ in dead} == {f"{sid} {turn}" for sid, turn in world.dead}
        for s, values, asked in zip(sessions, found[::2], found[1::2], strict=True):
            turn, attempts = s.turn, str(s.turn.attempts if s.turn else 0) if s.started else None
            state = [s.status, s.termination, turn.id if turn else "", s.job or None, str(s.wake), s.fence or None]
            told = [None if value is None else value.decode() for value in values]
            told[3], told[5] = told[3] or None, told[5] or None
            assert told == [*state, s.title, s.archived, str(s.last), attempts], s.id
            assert {callback.decode() for callback in asked} == (set(turn.asked) if turn else set())
        self.broken = False

    def ends(self) -> None:
        """Nothing is active any more: every accepted send has one end, and of ended sessions nothing is left for ever."""
        for s in self.world.sessions.values():
            assert s.turn is None, f"{s.id} sleeps"
            assert list(s.ended) == s.started
            assert [label.split(" ")[1] for label in s.log if label.startswith("ended ")] == s.started
        for s in [s for s in self.world.sessions.values() if s.spawn is None]:
            self.do("cancel", s.id)
        self.wait(self.compare())
        for s in [s for s in self.world.sessions.values() if s.spawn is None]:
            checked = check_tree(self.wait(read_tree(self.broker, s.id)))
            found = [finding for _, findings in checked for finding in findings]
            assert found == [], found
        assert self.wait(leaked_keys(self.broker.client, self.broker.settings.prefix)) == []
