"""The verdict on a part: every log against the checker, the ledger and what clients were told; and what is left in the broker."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio as aioredis
from crew import Crew
from faults import Faults
from leaks import leaked_keys
from ledger import Effect
from lives import Lives
from people import Told
from plans import check_counts, check_plans, made_calls, text_of
from recovery import BOUND_S, able_since, absences, recoveries
from schedule import Schedule
from watchers import Seen

from broker.broker import Broker
from broker.history_check import AcceptedAnswer, Finding, LogRecord, check_history
from broker.protocol.callbacks import AllowApproval, DenyApproval, answer_to_wire
from broker.seen_check import check_seen
from broker.stored_session import StoredSession, check_tree, read_tree

SAFE: Final = ("again",)
"""Tools that are declared `retry_safe`."""


@dataclass
class Evidence:
    """All that is known of a part."""

    broker: Broker
    schedule: Schedule
    told: Told
    effects: Mapping[str, Sequence[Effect]]
    crew: Crew
    faults: Faults


class Verdict:
    """What is wrong with a part, in sentences, and its numbers."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.findings: list[str] = [*evidence.told.findings]
        self.counts: Counter[str] = Counter()
        self.late: list[str] = []
        self._absent = {agent: absences(evidence.crew.lives, agent) for agent in ("plain", "whole")}
        self._drains: list[float] = []
        self._recovered: list[float] = []
        self._tools: set[str] = set()
        self._dead = 0

    async def ghosts(self) -> None:
        """Once every turn has ended, nothing of a turn is left in the broker."""
        broker = self.evidence.broker
        for shard in range(broker.settings.shards):
            await self._ghosts(broker.keys.base(shard), broker.client)

    async def _ghosts(self, base: str, client: aioredis.Redis) -> None:
        for pattern in (f"{base}queue:*", "arq:job:*", f"{base}open:*", f"{base}asked:*", f"{base}text:*"):
            for key in await client.keys(pattern):
                # Of a queue, what is due and what runs are the sorted sets; hints and ticks lie beside them.
                if b":queue:" not in key or await client.type(key) == b"zset":
                    self.findings.append(f"ghost: {key.decode()} is left when every turn has ended")
        for raw in await client.zrange(f"{base}active", 0, -1):
            self.findings.append(f"ghost: session {raw.decode()} is in the list of active turns")
        self.counts["dead letters"] += int(await client.zcard(f"{base}dead"))

    async def leaks(self) -> None:
        """Once every session has ended, every key has a TTL or is permanent, and no deadline but retention's is left.

        Workers of the foundation know no deadline of progress: where one of them ended a turn, that stays until it is due.
        """
        broker = self.evidence.broker
        stays = (b"gone ", b"turn ") if self.evidence.schedule.size.old else (b"gone ",)
        for shard in range(broker.settings.shards):
            for raw in await broker.client.zrange(f"{broker.keys.base(shard)}deadlines", 0, -1):
                if not raw.startswith(stays):
                    self.findings.append(f"ghost: the deadline {raw.decode()!r} is left when every session has ended")
        for key in await leaked_keys(broker.client, broker.settings.prefix):
            self.findings.append(f"leak: {key} has no TTL")

    async def logs(self, watched: Sequence[Seen]) -> None:
        """Hold every session's log, and its subagents', against the checker, the ledger and what clients were told."""
        told = self.evidence.told
        seen: dict[str, list[Seen]] = defaultdict(list)
        for each in watched:
            seen[each.session].append(each)
            self.findings += [f"session {each.session}: {finding}" for finding in each.findings]
            self.counts["observed events"] += len(each.events)
            self.counts["observers' returns"] += each.returns
        for root in told.sessions:
            for stored, found in check_tree(await read_tree(self.evidence.broker, root)):
                self._check(stored, found)
                for each in seen[stored.session_id]:
                    for one in check_seen(each.events, stored.records, ended=each.ended):
                        self._say(stored.session_id, f"observer: {one.code} at {one.at}: {one.said}")
                self._turns(stored.session_id, stored.records)
                self._calls(stored.session_id, stored.records)
                self._recoveries(stored.session_id, stored.records)
        self._unknown_effects()
        self._lives()
        if self._dead != self.counts["dead letters"]:
            self.findings.append(
                f"{self._dead} turns used their attempts up; the dead letters are {self.counts['dead letters']}"
            )

    def _check(self, stored: StoredSession, found: Sequence[Finding]) -> None:
        """The checker's findings, and those that come with what clients were told."""
        told, session_id = self.evidence.told, stored.session_id
        answers: dict[str, Any] = {}
        for of, callback, answer in told.answers:
            if of == session_id and answers.setdefault(callback, answer) != answer:
                self._say(session_id, f"two clients were told of different answers to callback {callback}")
        counted = [
            AcceptedAnswer(name, answer_to_wire(each) if isinstance(each, AllowApproval | DenyApproval) else None)
            for name, each in answers.items()
        ]
        sends = [each.turn for each in told.accepted if each.session == session_id]
        told_of = check_history(stored.records, active=stored.active, last=stored.last, sends=sends, answers=counted)
        for finding in dict.fromkeys((*found, *told_of)):
            self._say(session_id, f"{finding.code} at {finding.at}: {finding.said}")

    def _say(self, session_id: str, said: str) -> None:
        self.findings.append(f"session {session_id}: {said}")

    def _turns(self, session_id: str, records: Sequence[LogRecord]) -> None:
        """What was sent stands in the log once; a turn ended as clients were told, and none failed."""
        told = self.evidence.told
        texts = Counter(text_of(each.body) for each in records)
        for sent in (*told.accepted, *told.steers):
            if sent.session == session_id and texts[sent.text] != 1:
                self._say(session_id, f"{sent.text[:40]!r} was accepted and stands in the log {texts[sent.text]} times")
        for sent in told.unsure:
            if sent.session == session_id and texts[sent.text] > 1:
                self._say(session_id, f"{sent.text[:40]!r} stands in the log {texts[sent.text]} times")
        ends = {each.body["turnId"]: each.body["state"] for each in records if each.body.get("type") == "turnEnded"}
        for turn, state in ends.items():
            self.counts[f"ended {state['type']}"] += 1
            if state["type"] == "failed" and not self._used_up(records, turn, state["error"]):
                self._say(session_id, f"turn {turn} failed: {state['error']}")
        for of, turn, end in told.ends:
            stored = ends.get(turn, {}).get("type")
            if of == session_id and stored != end.lower():
                self._say(session_id, f"turn {turn} ended as {stored}; a client was told {end}")
        for said in (*check_plans(records), *check_counts(records)):
            self._say(session_id, said)
        self.counts["turns"] += len(ends)
        self.counts["notices of lost workers"] += sum(_lost(each.body) for each in records)

    def _used_up(self, records: Sequence[LogRecord], turn: str, error: Mapping[str, Any]) -> bool:
        """Whether a turn failed since its attempts were used up, each of them by a lost worker."""
        lost = [each for each in records if each.body.get("turnId") == turn and _lost(each.body)]
        used_up = error["code"] == "worker_lost" and len(lost) >= self.evidence.schedule.max_attempts - 1
        self._dead += used_up
        return used_up

    def _calls(self, session_id: str, records: Sequence[LogRecord]) -> None:
        """Each call's effect is in the ledger as its result says."""
        entries = [each.body["entry"] for each in records if each.body.get("type") == "entryCompleted"]
        results = {each["toolCallId"]: each for each in entries if each["type"] == "toolResult"}
        for _, call in made_calls(records):
            kind, key = call["name"].removeprefix("client."), call["arguments"]["key"]
            if key in self._tools:
                self._say(session_id, f"call {key} stands in the logs twice: a step was decided again")
            self._tools.add(key)
            self._effect(session_id, kind, key, results.get(call["toolCallId"]))

    def _effect(self, session_id: str, kind: str, key: str, result: Any) -> None:
        count = len(self.evidence.effects.get(key, ()))
        self.counts["effects"] += count
        if kind in SAFE:
            self.counts["effects of retry_safe tools that came again"] += max(0, count - 1)
        elif count > 1:
            self._say(session_id, f"the tool of call {key} ({kind}) ran {count} times")
        text = "" if result is None else "".join(block.get("text", "") for block in result["content"])
        if kind == "client":
            return
        if text.startswith("ran ") and count == 0:
            self._say(session_id, f"call {key} ({kind}) has a result, and the tool did not run")
        if "was not run" in text and count:
            self._say(session_id, f"call {key} ({kind}) is said not to have run, and did")
        if result is not None and not text.startswith("ran ") and kind != "fail":
            self.counts[f"result: {text[:34]}"] += 1

    def _recoveries(self, session_id: str, records: Sequence[LogRecord]) -> None:
        """Another worker went on within the lease and 5 s; a broker that was away meanwhile had its own time."""
        faults, agent = self.evidence.faults, self.evidence.told.sessions.get(session_id, "whole")
        away = [*faults.outages, *self._absent[agent]]
        for kill, took in recoveries(session_id, records, faults.held):
            self._recovered.append(took)
            since = able_since(kill.at, away)
            said = (
                f"turn {kill.turn} stood still for {took:.1f} s after its worker was killed (at {kill.at:.3f}), "
                f"{kill.at + took - since:.1f} s of them with the broker and a worker there"
            )
            if took > BOUND_S:
                self.late.append(f"session {session_id}: {said}")
            if kill.at + took - since > BOUND_S:
                self._say(session_id, said)

    def _unknown_effects(self) -> None:
        for key in self.evidence.effects.keys() - self._tools:
            self.findings.append(f"the tool of call {key} ran, and no log has the call")

    def _lives(self) -> None:
        lives = Lives(self.evidence.crew.lives)
        self.findings += lives.findings
        self.counts += lives.counts
        self.counts["parked"] = len(lives.parked)
        self._drains = lives.drains

    def report(self) -> dict[str, Any]:
        """Return all of it as JSON holds it."""
        told, faults = self.evidence.told, self.evidence.faults
        times = sorted(self._recovered)
        return {
            "seed": self.evidence.schedule.seed,
            "findings": self.findings,
            "counts": dict(sorted((self.counts + told.counts).items())),
            "faults": dict(sorted(faults.counts.items())),
            "recoveries": [round(each, 3) for each in times],
            "drains": sorted(self._drains),
            "late": self.late,
            "outages": faults.outages,
            "accepted": len(told.accepted),
        }


def _lost(body: Mapping[str, Any]) -> bool:
    details = body.get("details")
    return body.get("type") == "notice" and isinstance(details, dict) and details.get("reason") == "worker_lost"
