"""The clients of a part: they send, steer, interrupt, cancel and answer, and write down what they were told."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeVar

from schedule import Schedule, SessionPlan, TurnPlan

import api_shim as agents

T = TypeVar("T")

PATIENCE_S: Final = 60.0
ROLES: Final[tuple[Literal["user", "assistant"], ...]] = ("user", "assistant")


@dataclass
class Accepted:
    """A send that returned: the turn that it started or joined, and the text that stands in the log for it."""

    session: str
    turn: str
    text: str
    started: bool


@dataclass
class Told:
    """What clients were told, for the verdict."""

    sessions: dict[str, str] = field(default_factory=dict)
    """Sessions that were opened, each with its agent."""
    keys: dict[str, str] = field(default_factory=dict)
    """The same sessions' ids, by their keys in the schedule."""
    accepted: list[Accepted] = field(default_factory=list)
    steers: list[Accepted] = field(default_factory=list)
    unsure: list[Accepted] = field(default_factory=list)
    """Steers whose outcome stayed unknown: they may be in the log, once."""
    answers: list[tuple[str, str, Any]] = field(default_factory=list)
    """Session, callback and the answer that counted, as a client was told."""
    ends: list[tuple[str, str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)


class People:
    """All clients of a part. `urls` are their ways to the broker."""

    def __init__(self, schedule: Schedule, urls: Sequence[str]) -> None:
        self.told = Told()
        self.schedule = schedule
        self._urls = urls
        self._answering: set[asyncio.Task[None]] = set()
        self._asked: set[str] = set()

    async def run(self, opened: Callable[[str, SessionPlan], None]) -> None:
        """Do all that the schedule says; returns when every turn that was accepted has ended. `opened` hears of each session."""
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                for plan in self.schedule.sessions:
                    group.create_task(self._session(plan, begun, opened))
        finally:
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    def _at(self, rng: random.Random, session_id: str) -> agents.Session:
        """A handle of a session at a client of its own choice."""
        from api_shim.session import Session

        return Session(session_id, host=rng.choice(self._urls))

    async def _session(self, plan: SessionPlan, begun: float, opened: Callable[[str, SessionPlan], None]) -> None:
        rng = random.Random(f"{plan.key}:people")
        await _until(begun + max(0.0, plan.turns[0].at - 1.0))
        handle = agents.Agent.load_from(agent_name=plan.agent, url=rng.choice(self._urls))
        begins: list[agents.HistoryImportEntry] = [
            agents.HistoryImportMessage(role=role, content=[agents.TextContentBlock(text=f"{role} {at}")])
            for at in range(plan.imported // 2)
            for role in ROLES
        ]
        opening = partial(handle.start_session, history=begins or None, idempotency_key=plan.key)
        session = await self._insist("open", opening)
        self.told.sessions[session.id] = plan.agent
        self.told.keys[plan.key] = session.id
        opened(session.id, plan)
        waiting: list[asyncio.Task[None]] = []
        previous: agents.Turn | None = None
        for at, turn in enumerate(plan.turns):
            await _until(begun + turn.at)
            cancel = plan.cancel if at == len(plan.turns) - 1 else None
            try:
                sent = await self._send(rng, session.id, turn, previous)
            except agents.SessionTerminatedError:
                break
            previous = sent
            waiting.append(asyncio.create_task(self._follow(rng, session.id, sent, turn, cancel)))
        await asyncio.gather(*waiting)

    async def _send(
        self, rng: random.Random, session_id: str, plan: TurnPlan, previous: agents.Turn | None
    ) -> agents.Turn:
        """Send a turn's message, until it is accepted; a client that dies meanwhile is followed by one with the same key."""
        text = plan.text
        if plan.dies_after is not None:
            try:
                async with asyncio.timeout(plan.dies_after):
                    await self._try_send(rng, session_id, plan, text)
            except (TimeoutError, agents.BrokerUnavailableError, agents.OutcomeUnknownError):
                self.told.counts["senders that died"] += 1
        while True:
            sent = await self._insist("send", lambda: self._try_send(rng, session_id, plan, text))
            if isinstance(sent, agents.Turn):
                self.told.accepted.append(Accepted(session_id, sent.id, text, sent.started is True))
                return sent
            self.told.counts["busy"] += 1
            await self._end_of(rng, session_id, sent.turn if sent.turn.id or previous is None else previous)

    async def _try_send(
        self, rng: random.Random, session_id: str, plan: TurnPlan, text: str
    ) -> agents.Turn | agents.Busy:
        session = self._at(rng, session_id)
        send = session.send_message if plan.join else session.start_turn
        return await send(text, idempotency_key=plan.key)

    async def _follow(
        self, rng: random.Random, session_id: str, turn: agents.Turn, plan: TurnPlan, cancel: float | None
    ) -> None:
        """Do to a turn what its plan says, and see it to its end."""
        deeds: list[Awaitable[None]] = [
            *(
                self._steer(rng, session_id, turn.id, f"steer {plan.key} {at}", after)
                for at, after in enumerate(plan.steers)
            ),
            *([self._interrupt(rng, session_id, turn.id, plan.interrupt)] if plan.interrupt is not None else []),
            *([self._rename(rng, session_id, plan.key, plan.rename)] if plan.rename is not None else []),
            *([self._cancel(rng, session_id, cancel)] if cancel is not None else []),
        ]
        await asyncio.gather(self._end_of(rng, session_id, turn), *deeds)

    async def _end_of(self, rng: random.Random, session_id: str, turn: agents.Turn) -> None:
        """Wait until a turn has ended; have what it asks answered meanwhile."""
        after: Any = None
        while True:
            result = partial(self._at(rng, session_id).turn(turn.id).result, after=after)
            state = await self._insist("wait", partial(result, timeout=rng.choice((None, 0.5, 3.0, 20.0))))
            if isinstance(state, agents.Blocked):
                after = state
                for callback in state.callbacks:
                    self._have_answered(rng, session_id, callback)
            elif not isinstance(state, agents.Running):
                self.told.ends.append((session_id, turn.id, type(state).__name__))
                return

    def _have_answered(self, rng: random.Random, session_id: str, callback: agents.OpenCallback) -> None:
        if callback.id in self._asked:
            return
        self._asked.add(callback.id)
        for _ in range(2 if rng.random() < 0.2 else 1):
            wait = rng.choice((0.0, 0.05, rng.uniform(0, 1.0), rng.uniform(0, 4.0)))
            task = asyncio.create_task(self._answer(rng, session_id, callback, wait))
            self._answering.add(task)
            task.add_done_callback(self._has_answered)

    def _has_answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if not task.cancelled() and (failed := task.exception()) is not None:
            self.told.findings.append(f"a client that answers failed: {failed!r}")

    async def _answer(self, rng: random.Random, session_id: str, callback: agents.OpenCallback, wait: float) -> None:
        await asyncio.sleep(wait * self.schedule.size.pace)
        answer: Any = f"blue {rng.random()}"
        if isinstance(callback, agents.OpenApproval):
            answer = agents.AllowApproval() if rng.random() < 0.8 else agents.DenyApproval(f"no {rng.random()}")
        of = rng.choice((session_id, callback.session_id))  # a subagent's is answered there, or at its root
        handle = self._at(rng, of).turn(callback.turn_id or "")
        outcome = await self._insist("answer", lambda: handle.answer(callback.id, answer))
        self.told.counts[f"answer: {type(outcome).__name__}"] += 1
        if isinstance(outcome, agents.Answered):
            self.told.answers.append((callback.session_id, callback.id, outcome.answer))

    async def _steer(self, rng: random.Random, session_id: str, turn_id: str, text: str, after: float) -> None:
        await asyncio.sleep(after)
        said = Accepted(session_id, turn_id, text, started=False)
        try:
            outcome = await self._at(rng, session_id).turn(turn_id).steer(text)
        except (agents.BrokerUnavailableError, agents.OutcomeUnknownError):
            self.told.unsure.append(said)
        except agents.SessionTerminatedError:
            return
        else:
            if isinstance(outcome, agents.Turn):
                self.told.steers.append(said)
            self.told.counts[f"steer: {type(outcome).__name__}"] += 1

    async def _interrupt(self, rng: random.Random, session_id: str, turn_id: str, after: float) -> None:
        await asyncio.sleep(after)
        outcome = await self._insist("interrupt", lambda: self._at(rng, session_id).turn(turn_id).interrupt())
        self.told.counts[f"interrupt: {type(outcome).__name__}"] += 1
        if isinstance(outcome, agents.Turn):
            self.told.ends.append((session_id, turn_id, "Interrupted"))

    async def _rename(self, rng: random.Random, session_id: str, title: str, after: float) -> None:
        await asyncio.sleep(after)
        with contextlib.suppress(agents.SessionTerminatedError):
            await self._insist("rename", lambda: self._at(rng, session_id).rename(title))

    async def _cancel(self, rng: random.Random, session_id: str, after: float) -> None:
        await asyncio.sleep(after)
        await self._insist("cancel", lambda: self._at(rng, session_id).cancel())
        self.told.counts["cancel"] += 1

    async def _insist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call until it is answered; that the broker is away is no answer, but for `PATIENCE_S` seconds of it."""
        until = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            try:
                return await call()
            except (agents.BrokerUnavailableError, agents.OutcomeUnknownError) as away:
                self.told.counts[f"{what}: {type(away).__name__}"] += 1
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(0.1)
            except agents.ObservationLost as lost:
                self.told.findings.append(f"a client that {what}s lost its observation: {lost}")
                await asyncio.sleep(0.1)


async def _until(time: float) -> None:
    await asyncio.sleep(max(0.0, time - asyncio.get_running_loop().time()))
