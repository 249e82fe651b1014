"""Deadlines against a model: whatever people and workers do, and however time passes, the broker ends what the model ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import holders
from holders import Holder, command, fields, records
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from leaks import drop_keys

from broker import transitions
from broker.broker import Broker
from broker.deadlines import expire
from broker.keys import new_id

STEP_S: Final = 100.0
"""What people do happens at whole steps; every limit ends between two of them, where a look follows at once."""

LIMITS: Final = st.fixed_dictionaries(
    {
        "callback_timeout": st.sampled_from([None, 250.0]),
        "idle_limit": st.sampled_from([None, 550.0]),
        # One of both: a turn that is out of progress in the step in which its session's life ends may end either way.
        "ends": st.sampled_from([("session_lifetime", 1050.0), ("no_progress", 350.0), None]),
    }
)
DOING: Final = st.tuples(
    st.sampled_from(
        ["pass"] * 9
        + ["start", "start", "work", "work", "write", "write", "ask", "ask", "park", "park"]
        + ["open", "answer", "finish", "steer", "rename", "interrupt", "cancel"]
    ),
    st.integers(0, 1),
)


@dataclass
class Modelled:
    """One session as it should be. Times in seconds; `heard` is that of its last event."""

    id: str
    created: float
    heard: float
    status: str = "waiting"
    termination: str | None = None
    job: str = ""
    written: float = 0.0
    asked: dict[str, float] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)

    def end_turn(self, how: str) -> None:
        if self.job:
            self.ends.append(how)
        self.job, self.asked, self.status = "", {}, "waiting"

    def end(self, how: str) -> None:
        self.end_turn(how)
        self.status, self.termination = "terminated", how

    def settle(self, callback: str) -> None:
        del self.asked[callback]
        self.job = "queued" if self.job == "parked" else self.job

    def look(self, now: float, limits: dict[str, float | None]) -> None:
        """What a look at this time ends."""
        timeout, idle = limits["callback_timeout"], limits["idle_limit"]
        lifetime, progress = limits["session_lifetime"], limits["no_progress"]
        for callback, opened in list(self.asked.items()):
            if timeout is not None and opened + timeout <= now:
                self.settle(callback)
                self.heard = now
        if self.status == "terminated":
            return
        if lifetime is not None and self.created + lifetime <= now:
            self.end("lifetime_limit")
        elif progress is not None and self.job == "running" and self.written + progress <= now:
            self.end_turn("no_progress")
            self.heard = now
        elif idle is not None and self.job != "running" and self.heard + idle <= now:
            self.end("idle_limit")


class World:
    """The sessions of one example: the broker's, and the model's beside them."""

    def __init__(self, broker: Broker, limits: dict[str, float | None]) -> None:
        self.broker = broker
        self.limits = limits
        self.now = 0.0
        self.sessions: list[Modelled] = []
        self.holders: dict[str, Holder] = {}

    async def do(self, what: str, of: int) -> None:
        """Do one thing, if it can be done, here and there."""
        if what == "pass":
            await self.move(self.now + STEP_S / 2 + 1)
            await self.move(self.now + STEP_S / 2 - 1)
        elif what == "open" or not self.sessions:
            if len(self.sessions) < 2:
                self.sessions.append(Modelled(await holders.open_session(self.broker), self.now, self.now))
        elif what == "work":
            await self.work()
        else:
            session = self.sessions[of % len(self.sessions)]
            if session.status != "terminated":
                await getattr(self, what)(session)

    async def move(self, to: float) -> None:
        self.now = to
        await holders.move_clock(self.broker, int(to * 1000))
        while (await expire(self.broker, 0)).wait == 0:
            pass
        for session in self.sessions:
            session.look(to, self.limits)

    async def work(self) -> None:
        """A worker takes up whatever is queued."""
        for job in await holders.claim(self.broker):
            session = next(each for each in self.sessions if each.id == job.session_id)
            fence = new_id()
            begun = await holders.begin(self.broker, job, fence=fence)
            self.holders[session.id] = Holder(self.broker, job, fence, begun.last)
            session.job, session.written = "running", self.now

    async def start(self, session: Modelled) -> None:
        if not session.job:
            await holders.start(self.broker, session.id)
            session.job, session.status, session.heard = "queued", "running", self.now

    async def write(self, session: Modelled, *effects: object) -> None:
        if session.job == "running":
            holder = self.holders[session.id]
            await holder.see()
            assert (await holder.append(*(effects or ("e", holders.notice("on")))))[0] == "ok"  # type: ignore[arg-type]
            session.written = session.heard = self.now

    async def ask(self, session: Modelled) -> None:
        if session.job == "running":
            callback = new_id()
            await self.write(session, *holders.called(callback), *holders.ask(callback))
            session.asked[callback] = self.now

    async def park(self, session: Modelled) -> None:
        if session.job == "running" and session.asked:
            assert await self.holders[session.id].park() == ["parked"]
            session.job, session.written = "parked", self.now

    async def answer(self, session: Modelled) -> None:
        if session.asked:
            callback = next(iter(session.asked))
            assert await holders.answer(self.broker, session.id, callback) == transitions.Answered()
            session.settle(callback)
            session.heard = self.now

    async def finish(self, session: Modelled) -> None:
        if session.job == "running":
            assert (await self.holders[session.id].finish())[0] == "finished"
            session.end_turn("completed")
            session.heard = session.written = self.now

    async def steer(self, session: Modelled) -> None:
        if session.job:
            turn = (await fields(self.broker, session.id, "turn"))[0] or ""
            assert await transitions.steer(self.broker, session.id, turn, holders.sent("more")) is None
            session.heard = self.now

    async def rename(self, session: Modelled) -> None:
        await transitions.retitle(self.broker, session.id, title=b'"%d"' % int(self.now))
        session.heard = self.now

    async def interrupt(self, session: Modelled) -> None:
        if session.job:
            turn = (await fields(self.broker, session.id, "turn"))[0] or ""
            assert await transitions.interrupt(self.broker, session.id, turn) is None
            session.end_turn("interrupted")
            session.heard = self.now

    async def cancel(self, session: Modelled) -> None:
        await transitions.cancel(self.broker, session.id)
        session.end("cancelled")

    async def compare(self) -> None:
        """Hold the broker to the model."""
        for session in self.sessions:
            status, termination, job = await fields(self.broker, session.id, "status", "termination", "job")
            assert (status, termination, job or "") == (session.status, session.termination, session.job)
            key = self.broker.keys.of("asked", session.id)
            asked = {callback.decode() for callback in await command(self.broker, "HKEYS", key)}
            assert asked == set(session.asked)

    async def compare_ends(self) -> None:
        """Hold each turn's end to the model, and see that nothing is left of what has ended."""
        for session in self.sessions:
            await transitions.cancel(self.broker, session.id)
            if session.status != "terminated":
                session.end("cancelled")
            found = await records(self.broker, session.id)
            holders.expect_whole(found)
            states = [record["state"] for record in found if record["type"] == "turnEnded"]
            told = [state.get("cause") or state.get("error", {}).get("code") or state["type"] for state in states]
            assert told == session.ends
        left = await command(self.broker, "ZRANGE", f"{self.broker.keys.base(0)}deadlines", 0, -1)
        assert {member.partition(b" ")[0] for member in left} <= {b"gone"}


@hypothesis_settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(given_limits=LIMITS, steps=st.lists(DOING, min_size=20, max_size=80))
async def test_what_ends_and_when_is_the_model_s(
    broker: Broker, given_limits: dict[str, object], steps: list[tuple[str, int]]
) -> None:
    limits: dict[str, float | None] = {"session_lifetime": None, "no_progress": None}
    ends = given_limits["ends"]
    limits |= {name: value for name, value in given_limits.items() if name != "ends"}  # type: ignore[misc]
    if isinstance(ends, tuple):
        limits[ends[0]] = ends[1]
    broker.settings = broker.settings.model_copy(update=limits)
    await drop_keys(broker.client, broker.settings.prefix)
    world = World(broker, limits)
    for what, of in [("open", 0), *steps]:
        await world.do(what, of)
        await world.compare()
    await world.compare_ends()
