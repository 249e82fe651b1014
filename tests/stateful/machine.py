"""The state machine: people, workers, time and accidents in any order, on a broker and in the model at once."""

from __future__ import annotations

import copy
from typing import Final

import holders
import verbs
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from leaks import drop_keys
from model import Limits, World
from sides import Run, Sides
from verbs import Effect

from broker import queue
from broker.deadlines import expire

LEASE_S: Final = 1050.0
"""Limits end between whole hundreds of seconds, where time stands: a machine that stands still for a moment changes nothing."""

SESSIONS: Final = 4
ATTEMPTS: Final = 2
CHILDREN: Final = 3
PICK: Final = st.integers(0, 7)


class Protocol(Sides):
    """What people, workers, time and accidents may do, each with how it was."""

    # People.

    @initialize(
        callback=st.sampled_from([None, 1250.0]),
        idle=st.sampled_from([None, 2550.0]),
        lifetime=st.sampled_from([None, 6050.0]),
        progress=st.sampled_from([None, 1550.0]),
        retention=st.just(86_400.0),
    )
    def begins(self, **limits: float | None) -> None:
        """A deployment with these limits, and its first session."""
        options = {"callback_timeout": limits["callback"], "idle_limit": limits["idle"], "lease": LEASE_S}
        options |= {"session_lifetime": limits["lifetime"], "no_progress": limits["progress"], "max_attempts": ATTEMPTS}
        self.broker.settings = self.broker.settings.model_copy(update=options | {"retention": limits["retention"]})
        self.world = World(Limits(lease=LEASE_S, max_attempts=ATTEMPTS, **limits))  # type: ignore[arg-type] # retention is a number
        self.wait(drop_keys(self.broker.client, self.broker.settings.prefix))
        self.opens(once=False)

    def opens(self, *, once: bool) -> None:
        """Somebody opens a session."""
        self.do("open_session", self.session_name(), digest="d", once=once)

    @rule(pick=PICK, key=st.sampled_from(["", "", "k1", "k2"]), digest=st.sampled_from("ab"), join=st.booleans())
    def sends(self, pick: int, key: str, digest: str, join: bool) -> None:
        """A message, with a key or without."""
        told = {"nonce": self.name("n"), "turn": self.name("t"), "entry": self.name("u")}
        self.command("start", self.a_session(pick).id, key=key, digest=digest, join=join, **told)

    @rule(
        pick=PICK,
        what=st.sampled_from(
            [
                "open",
                "open",
                "again",
                "other",
                "title",
                "title",
                "steer",
                "steer",
                "wrong",
                "stop",
                "wrong_stop",
                "cancel",
            ]
        ),
        flag=st.booleans(),
    )
    def people_do(self, pick: int, what: str, flag: bool) -> None:
        """Somebody opens a session, or the same once more, or with other options; names one; steers or stops a turn; ends one."""
        parked = [each for each in self.world.sessions.values() if each.job == "parked"]
        s = parked[pick % len(parked)] if parked and pick % 2 else self.a_session(pick)
        turn = s.turn.id if s.turn and not what.startswith("wrong") else [*s.started, "none"][0]
        match what:
            case "open" if len(self.world.sessions) < SESSIONS:
                self.opens(once=flag and pick < 2)
            case "again" | "other" if s.spawn is None:
                self.do("open_session", s.id, digest="d" if what == "again" else "e", once=False)
            case "title":
                titles = ("", '"a"', '"b"')
                self.do("retitle", s.id, title=titles[pick % 3], archived=str(flag).lower() if pick % 2 else "")
            case "steer" | "wrong":
                self.command("steer", s.id, nonce=self.name("n"), turn=turn, entry=self.name("u"))
            case "stop" | "wrong_stop":
                self.command("interrupt", s.id, nonce=self.name("n"), turn=turn)
            case "cancel":
                children = [each for each in self.world.sessions.values() if each.spawn is not None]
                self.do("cancel", children[0].id if children and flag else s.id)
            case _:
                self.do("open_session", s.id, digest="d", once=False)

    @precondition(lambda self: self.world.dead or any(s.retried for s in self.world.sessions.values()))
    @rule(pick=PICK, again=st.booleans())
    def retries(self, pick: int, again: bool) -> None:
        """Somebody has a dead letter's turn done once more, or one that was retried already."""
        known = [*self.world.dead, *((s.id, turn) for s in self.world.sessions.values() for turn in s.retried)]
        sid, dead = known[pick % len(known)]
        turn = self.world.sessions[sid].turn
        if turn is not None and pick % 2:
            self.command("interrupt", sid, nonce=self.name("n"), turn=turn.id)
        for _ in range(1 + again):
            self.do("retry", sid, dead=dead, turn=self.name("t"), entry=self.name("u"))

    @rule(pick=PICK, of=st.sampled_from(["open", "open", "open", "settled", "below"]), client_tool=st.booleans())
    def answers(self, pick: int, of: str, client_tool: bool) -> None:
        """Somebody answers: what is open, what is settled, or what is not this session's to take."""
        below = of == "below"
        asking = [s for s in self.world.sessions.values() if s.asking(below=below)] if of != "settled" else []
        s = asking[pick % len(asking)] if asking else self.a_session(pick)
        callback = [*(s.settled if of == "settled" else s.asking(below=below)), "never"][0]
        call = next((name for name in s.turn.open if name.startswith("call:")), "") if s.turn and client_tool else ""
        result = f"completed {call.removeprefix('call:')}.result answered"
        self.tick()
        nonce = self.name("n")
        expected = verbs.answer(self.world, s.id, callback, nonce=nonce, call=call, result=result)
        said = self.wait(self.real.answer(s.id, callback, nonce=nonce, call=call, result="answered"))
        assert said == expected
        self.read()
        again = self.wait(self.real.answer(s.id, callback, nonce=nonce, call=call, result="answered"))
        assert again == expected

    @precondition(lambda self: self.commands)
    @rule(pick=PICK)
    def repeats(self, pick: int) -> None:
        """A client has not got its reply, and sends the same once more."""
        self.commands[-1 - pick % len(self.commands)][1]()

    # Workers.

    @rule(worker=st.sampled_from(["w1", "w2"]), slots=st.integers(0, 3), again=st.booleans())
    def claims(self, worker: str, slots: int, again: bool) -> None:
        """A worker claims, and once more when the reply was lost."""
        nonce = self.name("n")
        for _ in range(1 + again):
            for job in self.do("claim", worker=worker, nonce=nonce, slots=slots):
                if (job, worker) not in self.claimed:
                    self.claimed.append((job, worker))
                    self.jobs.append(job)

    @precondition(lambda self: self.claimed)
    @rule(pick=PICK, again=st.booleans())
    def begins_claimed(self, pick: int, again: bool) -> None:
        """A worker begins what it has claimed, however long ago."""
        job, worker = self.claimed.pop(-1 - pick % len(self.claimed))
        self.takes_up(job, worker, again=again, rung=False)

    def takes_up(self, job: str, worker: str, *, again: bool, rung: bool, protocol: int = 1) -> None:
        """A job is begun, and once more with the same fence when the reply was lost."""
        fence = f"{worker}:{self.name('')}"
        told = [
            self.do("begin", job, fence=fence, worker=worker, rung=rung, protocol=protocol)[0] for _ in range(1 + again)
        ]
        if told[0] in ("newer", "later"):
            self.tick(100)  # it is due again in a second
        if told[0] != "begun":
            return
        self.runs.append(Run(job, fence, worker, self.world.sessions[job.split(":", maxsplit=1)[0]].head))
        self.jobs.append(job)

    @precondition(lambda self: self.jobs or self.world.queue)
    @rule(pick=PICK, what=st.sampled_from(["now", "now", "late", "late", "old worker"]), again=st.booleans())
    def is_rung(self, pick: int, what: str, again: bool) -> None:
        """A worker begins what it was rung for: at once, long after that, or without knowing the record protocol."""
        queued = list(self.world.queue)
        if what == "late" and self.jobs:
            self.takes_up(self.jobs[-1 - pick % len(self.jobs)], "w3", again=again, rung=pick % 2 == 0)
        elif queued:
            old = what == "old worker"
            self.takes_up(queued[pick % len(queued)], "w2", again=again, rung=True, protocol=int(not old))

    @rule()
    def work_is_taken_up(self) -> None:
        """A worker takes up all that waits."""
        self.takes_all("w1")

    def takes_all(self, worker: str) -> None:
        """All that waits is claimed and begun."""
        for job in self.do("claim", worker=worker, nonce=self.name("n"), slots=10):
            self.takes_up(job, worker, again=False, rung=False)

    WRITES = st.sampled_from(["next"] * 6 + ["unread"] * 3 + ["again"] * 2 + ["late", "early", "blind", "elsewhere"])
    KINDS = st.lists(
        st.sampled_from(["note", "text", "text", "afresh", "call", "tool", "tool", "ask"]), min_size=1, max_size=4
    )

    @rule(
        pick=PICK,
        doing=st.sampled_from(["write", "write", "write", "ask", "ask", "spawn", "spawn", "race", "park", "finish"]),
        how=WRITES,
        kinds=KINDS,
    )
    def works(self, pick: int, doing: str, how: str, kinds: list[str]) -> None:
        """A run does something; when nobody runs, what waits is taken up; when nothing waits, somebody sends a message."""
        if not self.alive():
            if self.world.queue:
                self.work_is_taken_up()
            else:
                self.sends(pick, "", "a", join=False)
            return
        run = self.a_run(pick)
        match doing:
            case "write":
                self.appends(run, how, self.effects(run, kinds))
            case "ask":
                self.appends(run, "next", self.effects(run, [*kinds, "ask"]))
                self.parks(run, how)
            case "spawn":
                self.spawns(run, how, 1 + pick % 2)
                if pick % 4:
                    self.parks(run, "next")
                if pick % 3:
                    self.takes_all("w2")
                    self.appends(self.runs[-1], "next", self.effects(self.runs[-1], ["ask"]))
            case "race":
                self.race(run, pick)
            case "park":
                self.parks(run, how)
            case "finish":
                self.finishes(run, how, kinds[1:])

    def race(self, run: Run, pick: int) -> None:
        """Somebody answers or sends a message while the run is about to park, or to end its turn; it finds out by doing so."""
        s = self.world.sessions[run.session]
        self.appends(run, "next", self.effects(run, ["ask"]))
        own = s.asking()
        if not own:
            return  # the run has found that the log is another one
        if pick % 2:
            self.do("answer", s.id, own[-1], nonce=self.name("n"))
        elif s.turn is not None:
            self.command("steer", s.id, nonce=self.name("n"), turn=s.turn.id, entry=self.name("u"))
        if pick % 3:
            self.write("park", run, self.stamp(run, "unread"))
        else:
            self.write("finish", run, self.stamp(run, "unread"))

    works_on = works_further = works

    def appends(self, run: Run, how: str, effects: list[Effect]) -> None:
        """One append, and again with the same number when the first reply was lost."""
        stamp = self.stamp(run, how)
        words = self.write("append", run, stamp, effects)
        if words[:1] == ["ok"] and stamp.op == run.op:
            run.seen = self.world.sessions[run.session].head

    def effects(self, run: Run, kinds: list[str]) -> list[Effect]:
        """Effects that the run's turn has a use for, as it stands."""
        turn = self.world.sessions[run.session].turn
        opened = dict(turn.open) if turn else {}
        message = turn.message if turn else None
        found: list[Effect] = []
        for kind in kinds:
            calls = [name.removeprefix("call:") for name in opened if name.startswith("call:")]
            tools = [name.removesuffix(".result") for name in opened if name.endswith(".result")]
            match kind:
                case "text" if message is None:
                    message = self.name("m")
                    found.append(Effect("open", message, "a"))
                case "text":
                    what = ("more", "complete")[self.counted % 2]
                    found.append(Effect(what, message or "", "b"))
                    self.counted += 1
                    message = None if what == "complete" else message
                case "afresh" if message is not None:  # what is open stands in the order of events: let there be one
                    found += [Effect("note", ""), Effect("afresh", message, "c")]
                case "ask":
                    call = self.name("c")
                    found += [Effect("call", call), Effect("ask", self.name("q"))]
                    opened[f"call:{call}"] = ""
                case "tool" if calls:
                    found.append(Effect("tool", calls[0]))
                    del opened[f"call:{calls[0]}"]
                    opened[f"{calls[0]}.result"] = ""
                case "call" if tools and not self.spawned(run, tools[0]):
                    found.append(Effect("result", tools[0], "worked"))
                    del opened[f"{tools[0]}.result"]
                case "call":
                    found.append(Effect("call", self.name("c")))
                case _:
                    found.append(Effect("note", ""))
        return found

    def spawned(self, run: Run, call: str) -> bool:
        """Whether a call's result is a subagent's to give."""
        children = [self.world.sessions[child] for child in self.world.sessions[run.session].children]
        return any(child.spawn is not None and child.spawn.entry == f"{call}.result" for child in children)

    def parks(self, run: Run, how: str) -> None:
        """A run parks, if it waits for something."""
        s = self.world.sessions[run.session]
        if s.turn is None or s.turn.asked or s.at_work or s.fence != run.fence:
            self.write("park", run, self.stamp(run, how))

    def finishes(self, run: Run, how: str, kinds: list[str]) -> None:
        """A run ends its turn; it fails, whatever came, when its log is another one."""
        self.write(
            "finish", run, self.stamp(run, how), self.effects(run, kinds), regardless=how == "unread" and not kinds
        )

    def spawns(self, run: Run, how: str, limit: int) -> None:
        """A run starts a subagent."""
        if len(self.world.sessions) < SESSIONS + CHILDREN:
            call = self.name("c")
            self.appends(run, "next", [Effect("call", call)])
            turn = self.world.sessions[run.session].turn
            if run in self.alive() and turn is not None and f"call:{call}" not in turn.open:
                return  # the run has found that the log is another one
            told = {"child": self.session_name(), "turn": self.name("t"), "entry": self.name("u")}
            words = self.write("spawn", run, self.stamp(run, how), call=call, limit=limit, **told)
            if words[0] == "ok":
                run.seen = self.world.sessions[run.session].head

    @precondition(lambda self: self.runs)
    @rule(pick=PICK, again=st.booleans())
    def hands_back(self, pick: int, again: bool) -> None:
        """A worker drains; it says so twice when the reply was lost."""
        run = self.a_run(pick)
        for _ in range(1 + again):
            self.do("release", run.session, run.fence)

    @rule(worker=st.sampled_from(["w1", "w2"]), pick=PICK, serves=st.booleans())
    def renews(self, worker: str, pick: int, serves: bool) -> None:
        """A worker renews what it holds, or believes to hold."""
        jobs = [run.job for run in self.runs[-1 - pick :] if run.worker == worker]
        self.do("renew", worker=worker, jobs=jobs, serves=serves)

    # Time and accidents.

    @rule(seconds=st.sampled_from([100.0, 300.0, 400.0, 1300.0]), look=st.sampled_from([True, True, False]))
    def time_passes(self, seconds: float, look: bool) -> None:
        """Nobody does anything; somebody may look after the deadlines then."""
        self.tick(seconds)
        if look:
            self.looks()

    @rule(keep=st.booleans())
    def leases_lapse(self, keep: bool) -> None:
        """Time passes under the eyes of a worker that has no slot; another one renews, or has died."""
        for _ in range(4):
            self.tick(300)
            if keep:
                self.renews("w1", 7, serves=True)
            self.do("claim", worker="w9", nonce=self.name("n"), slots=0)

    def looks(self) -> None:
        """A worker looks after the deadlines."""
        self.tick()
        verbs.expire(self.world, late=LEASE_S)
        self.wait(expire(self.broker, 0, budget=30))
        self.read()

    def sweeps(self) -> None:
        """A worker sweeps, and another one does too."""
        for _ in range(2):
            self.tick()
            assert self.wait(queue.sweep(self.broker, 0)) == verbs.sweep(self.world)

    @precondition(lambda self: self.world.queue)
    @rule(pick=PICK, again=st.booleans())
    def a_turn_ends_its_workers(self, pick: int, again: bool) -> None:
        """Whoever takes up what waits is lost, as often as is allowed; then somebody may have it done once more."""
        for _ in range(ATTEMPTS):
            self.work_is_taken_up()
            self.leases_lapse(keep=False)
        self.work_is_taken_up()
        if self.world.dead:
            self.retries(pick, again)

    @rule(pick=PICK, accident=st.sampled_from(["none", "lost", "back in the queue", "back in running"]))
    def somebody_sweeps(self, pick: int, accident: str) -> None:
        """A worker sweeps, maybe after what no script does: a job is in no set any more, or an old one is back."""
        queued, held = self.broker.keys.queue(0, "agent"), f"{self.broker.keys.queue(0, 'agent')}:running"
        jobs = [*self.world.queue, *self.world.running]
        current = {s.job_id for s in self.world.sessions.values() if s.turn is not None}
        old = [job for job in self.jobs if job not in current]
        if accident == "lost" and jobs:
            job = jobs[pick % len(jobs)]
            self.world.queue.pop(job, None)
            self.world.running.pop(job, None)
            for zset in (queued, held):
                self.wait(holders.command(self.broker, "ZREM", zset, self.real.job_id(job)))
        elif accident.startswith("back") and old:
            job, of = old[pick % len(old)], self.world.queue if accident.endswith("queue") else self.world.running
            of[job] = 0.0
            zset = queued if accident.endswith("queue") else held
            self.wait(holders.command(self.broker, "ZADD", zset, 0, self.real.job_id(job)))
        self.sweeps()

    @rule(back=st.booleans())
    def the_broker_is_restored(self, back: bool) -> None:
        """The broker is backed up; or set back to that, and has lost what came after it; or it comes back with what was lost."""
        now = copy.deepcopy(self.world), self.wait(self.real.back_up()), copy.deepcopy(self.real.ids)
        if self.backup is None or not back:
            self.backup = now
            return
        (world, backup, ids), self.backup = self.backup, now
        world.now, world.counted = self.world.now, self.world.counted
        self.world = world
        self.wait(self.real.restore(backup, ids))
        self.runs = [run for run in self.runs if run.session in self.world.sessions]
        self.jobs = [job for job in self.jobs if job.split(":")[0] in self.world.sessions]
        self.claimed = [each for each in self.claimed if each[0].split(":")[0] in self.world.sessions]
        self.commands = [each for each in self.commands if each[0] in self.world.sessions]
        self.tick()

    @precondition(lambda self: self.alive())
    @rule(pick=PICK, writes=st.integers(1, 3))
    def the_broker_fails_over_and_back(self, pick: int, writes: int) -> None:
        """A run writes into a history that is lost, into the one that stays, and meets the lost one again."""
        run, note = self.alive()[-1 - pick % len(self.alive())], [Effect("note", "")]
        self.the_broker_is_restored(back=False)
        for _ in range(writes):
            self.appends(run, "next", note)
        self.the_broker_is_restored(back=True)
        for how in ("unread", "next"):
            self.appends(run, how, note)
        self.the_broker_is_restored(back=True)
        self.appends(run, "unread", note)

    def teardown(self) -> None:
        """What is active is driven to its end; every send that was accepted has one, and nothing is left of what has ended."""
        try:
            if hasattr(self, "world") and not self.broken:
                self.drive()
        finally:
            self.wait(drop_keys(self.broker.client, self.broker.settings.prefix))

    def drive(self) -> None:
        """Work until nothing is left to do, then end every session."""
        for _ in range(60):
            active = [s for s in self.world.sessions.values() if s.turn is not None]
            if not active:
                break
            self.tick(300)
            self.sweeps()
            for s in active:
                for callback in s.asking():
                    self.do("answer", s.id, callback, nonce=self.name("n"))
            before = len(self.runs)
            self.takes_all(self.name("w"))
            for run in self.runs[before:]:
                if self.world.sessions[run.session].fence == run.fence:
                    self.write("finish", run, self.stamp(run, "next"))
        self.ends()
