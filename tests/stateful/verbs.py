"""The transitions of the model, one for each verb: what it answers, in words, and what it does to the world.

Positions stand for event ids; what a verb only reads (a log's tail, how long to wait) is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from model import INTERRUPTED, Session, Spawn, Turn, World

Words = list[str]


@dataclass(frozen=True)
class Effect:
    """What one part of a worker's write does: `kind`, the entry, call or callback that it is about, and text."""

    kind: str
    name: str
    text: str = ""


@dataclass(frozen=True)
class Stamp:
    """Who writes: the run's fence, the write's number, and which event is the last that it has folded (0: none of this log)."""

    session: str
    fence: str
    op: int
    seen: int


# Clients.


def open_session(w: World, sid: str, *, digest: str, once: bool) -> Words:
    """A session comes to exist."""
    if sid in w.sessions:
        return ["same" if w.sessions[sid].digest == digest else "conflict"]
    w.sessions[sid] = Session(sid, w.now, w.now, once=once, digest=digest)
    due = min(w.limits.idle or math.inf, w.limits.lifetime or math.inf)
    if due < math.inf:
        w.deadlines["session", sid] = w.now + due
    return ["opened"]


def start(w: World, sid: str, *, nonce: str, key: str, digest: str, join: bool, turn: str, entry: str) -> Words:
    """A message starts a turn, joins the active one, or finds the turn that its key has started."""
    s = w.sessions[sid]
    if s.spawn is not None:
        return ["child"]
    if nonce in w.said:
        return w.said[nonce]
    if key in s.receipts:
        was, began, of = s.receipts[key]
        if of == digest and (join or began):
            return ["receipt", was, str(int(began))]
        return ["terminated" if s.status == "terminated" else "conflict"]
    if s.status == "terminated":
        return ["terminated"]
    if s.turn is not None and not join:
        return ["busy", s.turn.id]
    if s.turn is not None:
        w.emit_entry(s, entry)
        words = ["joined", s.turn.id]
    else:
        words = ["started", turn, str(s.last + 1)]
        w.start_turn(s, turn, entry)
    if key:
        s.receipts[key] = (words[1], words[0] == "started", digest)
    w.said[nonce] = words
    return words


def steer(w: World, sid: str, *, nonce: str, turn: str, entry: str) -> Words:
    """A message joins one named turn. A parked one reads it when an answer wakes it."""
    s = w.sessions[sid]
    if s.spawn is not None:
        return ["child"]
    if nonce in w.said:
        return w.said[nonce]
    if s.turn is None or s.turn.id != turn:
        return ["conflict", s.turn.id if s.turn else "-"]
    w.emit_entry(s, entry)
    w.said[nonce] = ["joined", turn]
    return w.said[nonce]


def interrupt(w: World, sid: str, *, nonce: str, turn: str) -> Words:
    """One turn ends at once, in whatever state it is."""
    s = w.sessions[sid]
    if nonce in w.said:
        return w.said[nonce]
    if s.turn is None or s.turn.id != turn:
        return ["conflict", s.turn.id if s.turn else "-"]
    w.said[nonce] = ["interrupted", str(w.cut_turn(s, INTERRUPTED, "waiting"))]
    return w.said[nonce]


def cancel(w: World, sid: str) -> Words:
    """A session ends with everything below."""
    s = w.sessions[sid]
    if s.spawn is not None:
        return ["child"]
    if s.status == "terminated":
        return ["ended"]
    w.end_session(s, "cancelled")
    return ["cancelled"]


def retitle(w: World, sid: str, *, title: str, archived: str) -> Words:
    """A session's title changes, or it is archived or taken back."""
    s = w.sessions[sid]
    if (title or s.title, archived or s.archived) == (s.title, s.archived):
        return ["same"]
    s.title, s.archived = title or s.title, archived or s.archived
    w.emit_status(s, s.status)
    return ["changed"]


def answer(w: World, sid: str, callback: str, *, nonce: str, call: str = "", result: str = "") -> Words:
    """The first answer counts. A client tool's answer is what completes its call from now on."""
    s = w.sessions[sid]
    if nonce in w.said:
        return w.said[nonce]
    if s.turn is None or s.turn.asked.get(callback) != sid:
        return ["lost", str(s.settled[callback])] if callback in s.settled else ["unknown"]
    if call in s.turn.open:
        s.turn.open[call] = result
    w.settle(s, callback, "answered")
    w.said[nonce] = ["answered"]
    return w.said[nonce]


def retry(w: World, sid: str, *, dead: str, turn: str, entry: str) -> Words:
    """A turn leaves the dead letters, and a new one starts with what had been sent into it; a repeat finds that one."""
    s = w.sessions[sid]
    if dead in s.retried:
        return ["started", s.retried[dead]]
    if (sid, dead) not in w.dead:
        return ["unknown"]
    if s.spawn is not None:
        return ["told"]
    if s.status == "terminated":
        return ["terminated"]
    if s.turn is not None:
        return ["busy", s.turn.id]
    w.start_turn(s, turn, entry)
    s.retried[dead] = turn
    w.dead.remove((sid, dead))
    return ["started", turn]


# Workers: the queue.


def claim(w: World, *, worker: str, nonce: str, slots: int) -> Words:
    """Due jobs go to `running` under a lease; lapsed ones go back first. A repeat gets what the first one got."""
    if (before := w.claims.get(worker)) is not None and before[0] == nonce:
        return before[1]
    if not w.beat():
        for job in sorted((job for job in w.running if w.running[job] < w.now), key=lambda job: (w.running[job], job)):
            w.put_back(job)
    due = sorted((job for job in w.queue if w.queue[job] <= w.now), key=lambda job: (w.queue[job], job))[:slots]
    for job in due:
        del w.queue[job]
        w.running[job] = w.now + w.limits.lease
    if due:
        w.claims[worker] = nonce, due
    return due


def begin(w: World, job: str, *, fence: str, worker: str, rung: bool, protocol: int = 1) -> Words:
    """A job starts to run: the attempt is counted and the fence written, once for each fence. `rung`: it is claimed here."""
    session, turn, wake = job.split(":")
    s = w.sessions[session]
    if s.turn is None or (s.turn.id, str(s.wake)) != (turn, wake):
        w.running.pop(job, None)
        return ["dropped"]
    if s.fence not in ("", fence):
        return ["taken"]
    if rung and s.fence != fence:
        if w.queue.pop(job, None) is None:
            return ["taken"]
        w.running[job] = w.now + w.limits.lease
    if protocol < 1:
        w.put_off(s)
        return ["newer"]
    if s.fence != fence:
        s.turn.attempts += 1
        if s.turn.attempts > w.limits.max_attempts:
            w.dead.append((s.id, s.turn.id))
            w.cut_turn(s, "failed:worker_lost", "waiting")
            return ["dead"]
        if s.turn.attempts == w.limits.max_attempts and not last_chance(w, s, worker):
            s.turn.attempts -= 1
            w.put_off(s)
            return ["later"]
        s.fence, s.job, s.op, s.result = fence, "running", 0, []
        s.turn.holder, s.turn.written = worker, w.now
        if w.limits.progress is not None:
            w.deadlines["turn", s.id] = w.now + w.limits.progress
        if s.turn.attempts > 1:
            w.emit(s, "notice")
    return ["begun", str(s.turn.attempts), str(s.last)]


def last_chance(w: World, s: Session, worker: str) -> bool:
    """A worker runs one turn at a time on its last attempt: one that ends its process takes no neighbour with it."""
    other = w.sessions.get(w.last_chances.get(worker, ""))
    turn = None if other is None or other is s or other.job != "running" else other.turn
    if turn is not None and turn.holder == worker and turn.attempts >= w.limits.max_attempts:
        return False
    w.last_chances[worker] = s.id
    return True


def renew(w: World, *, worker: str, jobs: Sequence[str], serves: bool) -> Words:
    """A worker lives, and keeps its leases; it hears which it holds no longer, and why. One that leaves serves no more."""
    w.beat()
    if serves:
        w.workers[worker] = w.now + w.limits.lease
    gone: Words = []
    for job in jobs:
        if job in w.running:
            w.running[job] = w.now + w.limits.lease
        elif (why := gone_why(w, worker, job)) is not None:
            gone += [job, why]
    return gone


def gone_why(w: World, worker: str, job: str) -> str | None:
    """Why a job is not held any more: its turn was ended, or is another's; None: the worker itself parked or ended it."""
    session, turn, wake = job.split(":")
    s = w.sessions[session]
    if s.turn is None or s.turn.id != turn:
        return None if s.turn is None and s.fence.startswith(f"{worker}:") else "ended"
    return None if (str(s.wake), s.job) == (wake, "parked") else "lost"


def release(w: World, sid: str, fence: str) -> Words:
    """A turn is handed back, for nothing that it did: so is its attempt."""
    s = w.sessions[sid]
    if not fence or s.fence != fence or s.turn is None or s.job != "running":
        return ["superseded"]
    w.dequeue(s)
    s.turn.attempts = max(0, s.turn.attempts - 1)
    w.enqueue(s)
    return ["released"]


def sweep(w: World) -> int:
    """Turns that are neither queued, running nor parked go back; return how many."""
    back = 0
    for s in w.sessions.values():
        if s.turn is not None and s.job != "parked" and s.job_id not in w.queue and s.job_id not in w.running:
            w.enqueue(s)
            back += 1
    return back


# Workers: writes, each fenced and numbered.


def refuse(w: World, stamp: Stamp, *, regardless: bool = False) -> Words | None:
    """The answer to a write that does nothing: it is another run's turn, it was made before, or the log is another one."""
    s = w.sessions[stamp.session]
    if not stamp.fence or s.fence != stamp.fence:
        return ["superseded"]
    lost = not regardless and stamp.seen not in s.events
    same = not lost and (not regardless or s.result[:1] == ["finished"])
    if stamp.op == s.op and same:
        return s.result
    if s.turn is None or s.job != "running":
        return ["superseded"]
    if stamp.op < s.op and same:
        return ["late"]
    if stamp.op != s.op + 1 or lost:
        return ["gap"]
    return None


def accept(w: World, stamp: Stamp, *words: str) -> Words:
    """A write is made: its number and its answer are kept."""
    s = w.sessions[stamp.session]
    s.op, s.result = stamp.op, list(words)
    if s.turn is not None:
        s.turn.written = w.now
    return s.result


def append(w: World, stamp: Stamp, effects: Sequence[Effect]) -> Words:
    """Effects enter the log together."""
    if (refused := refuse(w, stamp)) is not None:
        return refused
    s = w.sessions[stamp.session]
    first = s.last + 1
    apply(w, s, effects)
    return accept(w, stamp, "ok", str(first), str(s.last))


def apply(w: World, s: Session, effects: Sequence[Effect]) -> None:
    """Do what a worker writes; the turn is blocked when a first question is open."""
    assert s.turn is not None
    blocked, opened = bool(s.turn.asked), []
    for effect in effects:
        if effect.kind == "ask":
            opened.append(effect.name)
            s.turn.asked[effect.name] = s.id
            if w.limits.callback is not None:
                w.deadlines["callback", s.id, effect.name] = w.now + w.limits.callback
        enter(w, s, s.turn, effect)
    if s.turn.asked and not blocked:
        w.emit(s, "turn blocked")
    w.opened(s, opened)


def enter(w: World, s: Session, turn: Turn, effect: Effect) -> None:
    """What one effect writes, and what it leaves open."""
    kind, name, text = effect.kind, effect.name, effect.text
    match kind:
        case "ask":
            w.emit(s, f"opened {name}")
        case "note":
            w.emit(s, "notice")
        case "open":  # a message is begun
            w.emit(s, "added")
            turn.open[name], turn.texts[name], turn.message = f"completed {name} ", text, name
        case "afresh":  # the model call was made again
            turn.open[name] = turn.open.pop(name)
            turn.texts[name], turn.message = text, name
        case "more":
            turn.texts[name] += text
        case "complete":
            w.emit(s, f"completed {name} {text}")
            turn.open.pop(name, None)
            turn.texts.pop(name, None)
            turn.message = None if turn.message == name else turn.message
            turn.last_text = text
        case "call":  # added complete; not started yet
            w.emit_entry(s, name)
            turn.open[f"call:{name}"] = f"completed {name}.result not started"
        case "tool":  # its result is added: from now on it has started
            w.emit(s, "added")
            turn.open.pop(f"call:{name}", None)
            turn.open[f"{name}.result"] = f"completed {name}.result cut"
        case "result":
            w.emit(s, f"completed {name}.result {text}")
            turn.open.pop(f"{name}.result", None)
        case _:
            raise ValueError(kind)


def park(w: World, stamp: Stamp) -> Words:
    """Only answers are missing: the job goes. Not while there is news that the run has not folded."""
    if (refused := refuse(w, stamp)) is not None:
        return refused
    s = w.sessions[stamp.session]
    assert s.turn is not None
    if stamp.seen != s.head:
        return accept(w, stamp, "more", str(s.last))
    w.dequeue(s)
    s.job, s.turn.attempts, s.turn.holder = "parked", 0, ""
    return accept(w, stamp, "parked")


def finish(w: World, stamp: Stamp, effects: Sequence[Effect] = (), *, regardless: bool = False) -> Words:
    """The run ends its turn: not while there is news, unless it has failed."""
    if (refused := refuse(w, stamp, regardless=regardless)) is not None:
        return refused
    s = w.sessions[stamp.session]
    if not regardless and stamp.seen != s.head:
        return accept(w, stamp, "more", str(s.last))
    apply(w, s, effects)
    return accept(w, stamp, "finished", str(w.end_turn(s, "completed", "waiting", report="reported")))


def spawn(w: World, stamp: Stamp, *, call: str, child: str, turn: str, entry: str, limit: int) -> Words:
    """A subagent's session comes to exist with its turn, and its call starts in the parent; `limit` at most work at once."""
    if (refused := refuse(w, stamp)) is not None:
        return refused
    s = w.sessions[stamp.session]
    assert s.turn is not None
    if len(s.at_work) >= limit:
        return accept(w, stamp, "limit", str(s.last))
    first = s.last + 1
    apply(w, s, [Effect("tool", call)])
    c = w.sessions[child] = Session(child, w.now, w.now, spawn=Spawn(s.id, s.turn.id, f"{call}.result"))
    s.children.append(child)
    s.at_work.add(child)
    w.open_turn(c, turn, entry)
    w.enqueue(c)
    return accept(w, stamp, "ok", str(first), str(s.last))


# Time.


def expire(w: World, *, late: float) -> None:
    """What is due happens; what was looked at too early is armed again."""
    looks = {"callback": callback_due, "session": session_due, "turn": turn_due, "gone": gone_due}
    for name, score in sorted(w.deadlines.items(), key=lambda item: (item[1], " ".join(item[0]))):
        if score <= w.now and name in w.deadlines:
            del w.deadlines[name]
            looks[name[0]](w, name, score, late)


def callback_due(w: World, name: tuple[str, ...], _score: float, _late: float) -> None:
    """Nobody has answered in time."""
    s = w.sessions[name[1]]
    if s.turn is not None and name[2] in s.turn.asked:
        w.settle(s, name[2], "expired")


def last_event(w: World, s: Session) -> float:
    """When a session last had an event, or was queued, or one of its subagents at work; now while one of them runs."""
    if s.job == "running":
        return w.now
    queued = w.queue.get(s.job_id, 0.0) if s.job == "queued" else 0.0
    return max([s.heard, queued, *(last_event(w, w.sessions[child]) for child in s.at_work)])


def session_due(w: World, name: tuple[str, ...], _score: float, _late: float) -> None:
    """A session's life is over, or it was idle for too long."""
    s, limits = w.sessions[name[1]], w.limits
    if s.status == "terminated":
        return None
    ends = math.inf if limits.lifetime is None else s.created + limits.lifetime
    if ends <= w.now:
        return w.end_session(s, "lifetime_limit")
    idle = math.inf if limits.idle is None else last_event(w, s) + limits.idle
    if idle <= w.now:
        return w.end_session(s, "idle_limit")
    if min(ends, idle) < math.inf:
        w.deadlines[name] = min(ends, idle)
    return None


def turn_due(w: World, name: tuple[str, ...], score: float, late: float) -> None:
    """A run has written nothing for too long; when nobody was there to look in time, it gets more."""
    s = w.sessions[name[1]]
    if s.turn is None or s.job != "running" or w.limits.progress is None:
        return
    due = s.turn.written + w.limits.progress
    if due > w.now:
        w.deadlines[name] = due
    elif w.now - score > late:
        w.deadlines[name] = w.now + late * 2
    else:
        w.cut_turn(s, "failed:no_progress", "waiting")


def gone_due(w: World, name: tuple[str, ...], _score: float, _late: float) -> None:
    """An ended session's keys are gone when the broker has expired them."""
    w.deadlines[name] = w.now + 60
