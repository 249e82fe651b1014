"""The protocol as a pure model: what a session is, and the pieces that every transition is made of. No Redis, no clock, no I/O.

`verbs.py` has the transitions. A log is the list of what its records say, in words: a label each. Times are in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

INTERRUPTED: Final = "interrupted:interrupted"
"""How a turn ends that is interrupted: the state's type, and its cause or code."""

Job = Literal["", "queued", "running", "parked"]


@dataclass(frozen=True)
class Limits:
    """The settings that decide what ends by itself, and how often a turn is tried."""

    lease: float
    callback: float | None
    idle: float | None
    lifetime: float | None
    progress: float | None
    retention: float
    max_attempts: int


@dataclass
class Turn:
    """An active turn.

    `open`: what would complete each open entry if the turn were cut now, in the order of opening: the label of its record; a call
    that has not started is opened as `call:<id>`, and its result is added and completed at once. `asked`: the callbacks that
    are open in this session, or in one of its subagents' (then the session's id is their value, else its own).
    """

    id: str
    open: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    message: str | None = None
    last_text: str = ""
    asked: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    holder: str = ""
    op: int = 0
    result: list[str] = field(default_factory=list)
    written: float = 0.0

    @property
    def text(self) -> str:
        """The text so far: of the message that is open, else of the last one."""
        return self.last_text if self.message is None else self.texts[self.message]


@dataclass
class Spawn:
    """Where a subagent's session hangs: its parent's session and turn, the entry of the call's result, and what cuts it."""

    parent: str
    turn: str
    entry: str


@dataclass
class Session:
    """A session. Fence, op and result outlive the turn, so that a repeated `finish` gets its answer."""

    id: str
    created: float
    heard: float
    once: bool = False
    digest: str = "-"
    status: str = "waiting"
    title: str = "null"
    archived: str = "false"
    termination: str | None = None
    spawn: Spawn | None = None
    children: list[str] = field(default_factory=list)
    at_work: set[str] = field(default_factory=set)
    turn: Turn | None = None
    job: Job = ""
    wake: int = 0
    fence: str = ""
    op: int = 0
    result: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    """Which event each of the log is: after lost writes another one stands at the same position."""
    settled: dict[str, int] = field(default_factory=dict)
    receipts: dict[str, tuple[str, bool, str]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    retried: dict[str, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The position of the last event."""
        return len(self.log)

    @property
    def head(self) -> int:
        """Which event is the last one."""
        return self.events[-1]

    @property
    def job_id(self) -> str:
        """The id of the active turn's job: of session, turn and wake."""
        assert self.turn is not None
        return f"{self.id}:{self.turn.id}:{self.wake}"

    def asking(self, *, below: bool = False) -> list[str]:
        """Its own open callbacks, or those of the subagents below it."""
        asked = self.turn.asked if self.turn else {}
        return [callback for callback, of in asked.items() if (of != self.id) == below]


@dataclass
class World:
    """One shard with the queue of one agent."""

    limits: Limits
    now: float = 0.0
    counted: int = 0
    """Events that ever were."""
    sessions: dict[str, Session] = field(default_factory=dict)
    queue: dict[str, float] = field(default_factory=dict)
    """Job ids by the time when they are due."""
    running: dict[str, float] = field(default_factory=dict)
    """Claimed job ids by the end of their lease."""
    tick: float | None = None
    """When somebody last claimed or renewed."""
    workers: dict[str, float] = field(default_factory=dict)
    claims: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """Each worker's last claim that gave something: its nonce, and what it gave."""
    said: dict[str, list[str]] = field(default_factory=dict)
    """What was answered to clients' commands, by nonce."""
    last_chances: dict[str, str] = field(default_factory=dict)
    """Of each worker, the session whose turn it began last on its last attempt."""
    dead: list[tuple[str, str]] = field(default_factory=list)
    """The dead letters: session and turn."""
    deadlines: dict[tuple[str, ...], float] = field(default_factory=dict)
    """When to look at what: ("callback", session, callback), ("session", …), ("turn", …), ("gone", …)."""

    # The log.

    def emit(self, s: Session, *labels: str) -> int:
        """Events are stored; return the position of the last one."""
        for label in labels:
            self.counted += 1
            s.log.append(label)
            s.events.append(self.counted)
        s.heard = self.now
        return s.last

    def emit_entry(self, s: Session, *ids: str) -> None:
        """Entries are stored that are complete when they are added."""
        for entry in ids:
            self.emit(s, "added", f"completed {entry}")

    def emit_status(self, s: Session, status: str) -> None:
        """The session's status changes."""
        s.status = status
        self.emit(s, f"session {status} {s.title} {s.archived}")

    # The queue.

    def enqueue(self, s: Session, delay: float = 0.0) -> None:
        """The turn goes into its queue, under its next wake: an id is enqueued once in its life."""
        s.wake += 1
        s.job, s.fence = "queued", ""
        self.queue[s.job_id] = self.now + delay

    def dequeue(self, s: Session) -> None:
        """Its job is in neither set any more; nobody has to make progress with it."""
        self.queue.pop(s.job_id, None)
        self.running.pop(s.job_id, None)
        self.deadlines.pop(("turn", s.id), None)

    def put_off(self, s: Session) -> None:
        """A claimed job is due again in a second, under its next wake, for another worker or a better moment."""
        self.dequeue(s)
        self.enqueue(s, 1)

    def wake_up(self, s: Session) -> None:
        """News for the turn is in its log. Who runs gets a hint, which is no truth; who is queued will read it."""
        if s.job == "parked":
            self.enqueue(s)

    def put_back(self, job: str) -> None:
        """A lapsed lease: the turn returns under its next wake; of one that has moved on nothing is left."""
        self.running.pop(job, None)
        session, turn, wake = job.split(":")
        s = self.sessions[session]
        if s.turn is not None and (s.turn.id, str(s.wake)) == (turn, wake):
            self.enqueue(s)

    def beat(self) -> bool:
        """Somebody looks after the queue. True: nobody did for a third of a lease, the broker was away: all leases are new."""
        away = self.tick is None or self.now - self.tick > self.limits.lease / 3
        gap, self.tick = self.now - (self.now if self.tick is None else self.tick), self.now
        if away:
            anew = self.now + self.limits.lease
            self.running = {job: max(anew, until + gap) for job, until in self.running.items()}
        return away

    # The tree.

    def above(self, s: Session) -> list[Session]:
        """The sessions above that have an active turn, the parent first."""
        found, spawn = [], s.spawn
        while spawn is not None:
            found.append(self.sessions[spawn.parent])
            spawn = found[-1].spawn
        return [each for each in found if each.turn is not None]

    def opened(self, s: Session, callbacks: list[str]) -> None:
        """Callbacks opened: the sessions above are blocked too."""
        for above in self.above(s) if callbacks else []:
            assert above.turn is not None
            if not above.turn.asked:
                self.emit(above, "turn blocked")
            above.turn.asked.update(dict.fromkeys(callbacks, s.id))

    def resolved(self, s: Session, callbacks: list[str]) -> None:
        """Callbacks are open no more: the sessions above may go on too."""
        for above in self.above(s):
            assert above.turn is not None
            gone = [each for each in callbacks if above.turn.asked.pop(each, None) is not None]
            if gone and not above.turn.asked:
                self.emit(above, "turn running")

    def settle(self, s: Session, callback: str, how: str) -> None:
        """One open callback is answered, or expires: the turn has news."""
        assert s.turn is not None
        del s.turn.asked[callback]
        self.deadlines.pop(("callback", s.id, callback), None)
        s.settled[callback] = self.emit(s, f"resolved {callback} {how}")
        if not s.turn.asked:
            self.emit(s, "turn running")
        self.resolved(s, [callback])
        self.wake_up(s)

    # Ends.

    def open_turn(self, s: Session, turn: str, entry: str) -> None:
        """A turn starts with its first entry."""
        s.turn, s.op, s.result = Turn(turn), 0, []
        s.started.append(turn)
        self.emit_entry(s, entry)
        self.emit(s, f"started {turn}")
        self.emit_status(s, "running")

    def start_turn(self, s: Session, turn: str, entry: str) -> None:
        """A person's turn starts, and is queued; when nobody serves the agent, that is said."""
        self.open_turn(s, turn, entry)
        if not any(until >= self.now for until in self.workers.values()):
            self.emit(s, "notice")
        self.enqueue(s)

    def cut_open(self, s: Session) -> list[str]:
        """Everything that is open is completed, the turn's own callbacks are closed; return these."""
        assert s.turn is not None
        for name, completed in s.turn.open.items():
            self.emit(s, *(["added"] if name.startswith("call:") else []), completed + s.turn.texts.get(name, ""))
        own = sorted(s.asking())
        for callback in own:
            s.settled[callback] = self.emit(s, f"resolved {callback} closed")
            self.deadlines.pop(("callback", s.id, callback), None)
        return own

    def end_turn(self, s: Session, how: str, status: str, *, below: str = INTERRUPTED, report: str = "cut") -> int:
        """The active turn ends, and with it what its subagents do; its parent gets the report. Return the end's position."""
        assert s.turn is not None
        turn = s.turn
        own = self.cut_open(s)
        end = self.emit(s, "turn terminated", f"ended {turn.id} {how}")
        status = "terminated" if s.once else status
        self.emit_status(s, status)
        self.dequeue(s)
        s.ended[turn.id] = how
        s.turn, s.job = None, ""
        if status == "terminated":
            self.retire(s)
        self.resolved(s, own)
        self.report(s, report)
        self.end_below(s, below, status)
        return end

    def cut_turn(self, s: Session, how: str, status: str) -> int:
        """The turn is ended by somebody else than its worker: the fence falls first."""
        assert s.turn is not None
        s.fence = ""
        text = s.turn.text
        below = how if how.startswith("interrupted") else INTERRUPTED
        return self.end_turn(s, f"{how} '{text}'", status, below=below)

    def end_session(self, s: Session, cause: str) -> None:
        """A session ends, with its turn, and everything below."""
        s.termination = cause
        how = f"interrupted:{cause}"
        if s.turn is not None:
            self.cut_turn(s, how, "terminated")
        else:
            self.emit_status(s, "terminated")
            self.retire(s)
            self.end_below(s, how, "terminated")

    def end_below(self, s: Session, how: str, status: str) -> None:
        """Subagents at work are cut; with an ended session all of them end."""
        every = status == "terminated"
        for name in sorted(s.children if every else s.at_work):
            child = self.sessions[name]
            if child.status == "terminated":
                continue
            if every:
                child.termination = s.termination or "ended"
            if child.turn is not None:
                self.cut_turn(child, how, status)
            elif every:
                self.emit_status(child, status)
                self.retire(child)
                self.end_below(child, how, status)

    def report(self, s: Session, said: str) -> None:
        """The spawn call in the parent gets its result, unless the parent's turn has ended: news for the parent."""
        if s.spawn is None:
            return
        parent = self.sessions[s.spawn.parent]
        parent.at_work.discard(s.id)
        if parent.turn is None or parent.turn.id != s.spawn.turn or parent.turn.open.pop(s.spawn.entry, None) is None:
            return
        self.emit(parent, f"completed {s.spawn.entry} {said}")
        self.wake_up(parent)

    def retire(self, s: Session) -> None:
        """An ended session's keys go when its retention is over."""
        self.deadlines.pop(("session", s.id), None)
        self.deadlines["gone", s.id] = self.now + self.limits.retention + 1
