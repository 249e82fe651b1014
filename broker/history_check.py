"""The history checker: one session's stored log, held against the promises that every log keeps.

Pure: it reads records, and says in sentences what is wrong with them. A log that the engine wrote has no finding, whatever was
killed, restarted or frozen meanwhile. What an observer saw is held against the log by `broker/seen_check.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from broker.protocol.wire import is_beside, parse_stream_id


class LogRecord(NamedTuple):
    """A stored record, private fields too: its id, its body (blobs put in), and the mark of the run that wrote it ("" = none)."""

    id: str
    body: Mapping[str, Any]
    run: str = ""


@dataclass(frozen=True)
class Finding:
    """A promise that was not kept. `at` is the id of the event where that shows, or else of the turn or callback."""

    code: str
    at: str
    said: str


class AcceptedAnswer(NamedTuple):
    """An answer that counted, as its sender was told; `answer` is its stored form, None = it is not compared."""

    callback_id: str
    answer: Mapping[str, Any] | None = None


def check_history(
    records: Sequence[LogRecord],
    *,
    active: str | None = None,
    last: str | None = None,
    sends: Iterable[str] = (),
    answers: Iterable[AcceptedAnswer] = (),
    reports: Iterable[str] = (),
) -> list[Finding]:
    """Check one session's whole log, in the order in which it was read; return what is wrong with it, by place.

    `active` is the turn that is active by the session's own fields, and `last` the last stored id by them; `sends` are the
    turns that sends returned, `answers` those that callers were told counted; `reports` are the entries that subagents whose
    turns have ended were to complete here.
    """
    turns, entries, callbacks = _Turns(), _Entries(), _Callbacks()
    rules: list[_Rule] = [_Places(), _Runs(), turns, entries, callbacks, _Calls(), _Termination()]
    findings = []
    for each in joined([record if _is_record(record.body) else record._replace(body={}) for record in records]):
        if not each.body:
            findings.append(Finding("no_record", each.id, "What is stored here is no event of ours."))
        if "blob" in each.body or (is_beside(each.body) and "entry" not in each.body):
            findings.append(Finding("lost_body", each.id, f"The body of this {each.body.get('type')} is gone."))
        for rule in rules:
            findings += rule.take(each)

    def over(turn: str | None) -> bool:
        return turn is None or turn in turns.ended or turn != active

    for rule in rules:
        findings += rule.end(over)
    findings += _tail(records, last)
    findings += turns.accepted(sends, active)
    findings += callbacks.accepted(answers)
    findings += entries.reported(reports)
    return sorted(findings, key=_place)


_FORMS: Final[dict[str, type]] = {
    **dict.fromkeys(("type", "turnId", "status", "callbackId"), str),
    **dict.fromkeys(("entry", "callback", "private", "state"), dict),
}


def _is_record(body: Mapping[str, Any]) -> bool:
    """Whether the members that rules look at have the forms that they look for."""
    parts = [body.get(name) for name in ("entry", "callback")]
    return all(isinstance(body[name], form) for name, form in _FORMS.items() if name in body) and all(
        isinstance(part.get("id"), str) for part in parts if isinstance(part, Mapping)
    )


def _place(finding: Finding) -> tuple[int, str]:
    """By position; what has none comes last."""
    n, _, ms = finding.at.partition("-")
    return (int(n), "") if n.isdecimal() and ms.isdecimal() else (2**63, finding.at)


def joined(records: Sequence[LogRecord]) -> Iterator[LogRecord]:
    """Put into a record whose entry lies in the next one that entry."""
    for at, each in enumerate(records):
        after = records[at + 1].body if at + 1 < len(records) else {}
        if is_beside(each.body) and after.get("type") == "entryCompleted" and "entry" in after:
            yield each._replace(body={**each.body, "entry": after["entry"]})
        else:
            yield each


def _tail(records: Sequence[LogRecord], last: str | None) -> Iterator[Finding]:
    found = records[-1].id if records else "0-0"
    if last is not None and last != found and parse_stream_id(last) > parse_stream_id(found):
        yield Finding("lost_event", last, f"The session counts its events up to {last}, and its log ends at {found}.")


class _Rule(Protocol):
    """One promise: it sees every record, in order, and then the end."""

    def take(self, each: LogRecord) -> Iterator[Finding]:
        """Take the next record."""

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:
        """Say what is left open; `over` tells whether a turn is over."""


class _Places:
    """Positions are dense and in order, and their times never go back."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._found: set[int] = set()
        self._before = (0, 0)

    def take(self, each: LogRecord) -> Iterator[Finding]:
        n, ms, _ = parse_stream_id(each.id)
        before, before_ms = self._before
        if n in self._found:
            yield Finding("doubled_event", each.id, f"Event {n} is there twice.")
        elif n < before:
            yield Finding("order", each.id, f"Event {n} stands behind event {before}.")
        elif ms < before_ms:
            yield Finding("time", each.id, f"Event {n} is stored with an earlier time than event {before} before it.")
        self._found.add(n)
        self._ids.append(each.id)
        self._before = max((n, ms), self._before)

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:  # noqa: ARG002 - of every rule
        before = 0
        for each in sorted(self._ids, key=parse_stream_id):
            n = parse_stream_id(each).n
            if n > before + 1:
                lost = f"Event {n - 1} is" if n == before + 2 else f"Events {before + 1} to {n - 1} are"
                yield Finding("lost_event", each, f"{lost} missing before this one.")
            before = n


class _Runs:
    """A run that another one followed writes no more; nor does one write for two turns."""

    def __init__(self) -> None:
        self._last = ""
        self._turns: dict[str, str] = {}
        """Each run with its turn, as soon as it wrote an event of one."""
        self._followed: set[str] = set()

    def take(self, each: LogRecord) -> Iterator[Finding]:
        run, turn = each.run, each.body.get("turnId")
        if not run:
            return
        if run in self._followed:
            yield Finding("fenced_run", each.id, f"Run {run} wrote this after run {self._last} had taken its place.")
            return
        held = self._turns.setdefault(run, turn) if turn is not None else turn
        if held != turn:
            yield Finding("fenced_run", each.id, f"Run {run} held turn {held}, and wrote this for turn {turn}.")
            return
        if run != self._last and self._last:
            self._followed.add(self._last)
        self._last = run

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:  # noqa: ARG002 - of every rule
        yield from ()


class _Turns:
    """A turn starts once, one at a time, ends once, and nothing of it follows its end."""

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self._started: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        """Each turn that an event names, and the first such event."""

    def take(self, each: LogRecord) -> Iterator[Finding]:
        kind, turn = each.body.get("type"), each.body.get("turnId")
        if turn is None:
            return
        self._seen.setdefault(turn, each.id)
        ended = self.ended.get(turn)
        if kind == "turnEnded":
            if ended is not None:
                yield Finding("ended_twice", each.id, f"Turn {turn} ends here again; it had ended at {ended}.")
            self.ended.setdefault(turn, each.id)
        elif ended is not None:
            yield Finding("after_end", each.id, f"A {kind} of turn {turn}, which had ended at {ended}.")
        elif kind == "turnStarted":
            yield from self._start(each.id, turn)

    def _start(self, at: str, turn: str) -> Iterator[Finding]:
        if (before := self._started.get(turn)) is not None:
            yield Finding("started_twice", at, f"Turn {turn} starts here again; it had started at {before}.")
            return
        for other in self._started.keys() - self.ended.keys():
            yield Finding("two_turns", at, f"Turn {turn} starts while turn {other} has not ended.")
        self._started[turn] = at

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:
        for turn, at in self._seen.items():
            if turn not in self._started:
                yield Finding("never_started", at, f"This is of turn {turn}, and the log does not say that it started.")
            if turn not in self.ended and over(turn):
                yield Finding("never_ended", at, f"Turn {turn} is not active and has no end.")

    def accepted(self, sends: Iterable[str], active: str | None) -> Iterator[Finding]:
        """Every accepted send has its turn in the log, with its end or active."""
        for turn in dict.fromkeys(sends):
            if turn not in self._seen:
                yield Finding("lost_send", turn, f"A send returned turn {turn}, of which the log has nothing.")
        if active is not None and active in self.ended:
            yield Finding("wrong_active", self.ended[active], f"Turn {active} ended here, and is still the active one.")
        if active is not None and active not in self._seen:
            yield Finding("wrong_active", active, f"Turn {active} is the active one, and the log has nothing of it.")


def _same_turn(each: LogRecord, what: str, at: str, turn: str | None) -> Iterator[Finding]:
    """What began in a turn ends in it: the next one has nothing to do with it."""
    here = each.body.get("turnId")
    if here != turn:
        yield Finding("other_turn", each.id, f"{what} here in turn {here}; it began at {at} in turn {turn}.")


class _Entries:
    """Each entry is added once and then completed once, in the same turn."""

    def __init__(self) -> None:
        self._added: dict[str, tuple[str, str | None]] = {}
        self._completed: dict[str, str] = {}

    def take(self, each: LogRecord) -> Iterator[Finding]:
        entry, kind = each.body.get("entry"), each.body.get("type")
        if not entry or kind not in ("entryAdded", "entryCompleted"):
            return
        name = str(entry.get("id"))
        if kind == "entryAdded":
            if name in self._added:
                at = self._added[name][0]
                yield Finding("added_twice", each.id, f"Entry {name} is added here again; it was added at {at}.")
            elif name in self._completed:
                at = self._completed[name]
                yield Finding("added_late", each.id, f"Entry {name} is added here; it was completed at {at} before.")
            self._added.setdefault(name, (each.id, each.body.get("turnId")))
            return
        if name in self._completed:
            at = self._completed[name]
            yield Finding("completed_twice", each.id, f"Entry {name} is completed here again; it was at {at}.")
        elif name in self._added:
            yield from _same_turn(each, f"Entry {name} is completed", *self._added[name])
        self._completed.setdefault(name, each.id)

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:
        for name, at in self._completed.items():
            if name not in self._added:
                yield Finding("never_added", at, f"Entry {name} is completed here and was never added.")
        for name, (at, turn) in self._added.items():
            if name not in self._completed and over(turn):
                yield Finding("never_completed", at, f"Entry {name} is added here and never completed.")

    def reported(self, reports: Iterable[str]) -> Iterator[Finding]:
        """A subagent whose turn has ended has completed the result of the call that started it."""
        for name in reports:
            if name not in self._completed:
                at, _ = self._added.get(name, (name, None))
                yield Finding(
                    "lost_report", at, f"A subagent has ended and did not complete its call's result, {name}."
                )


class _Callbacks:
    """Each callback opens once, and is then resolved once in its turn, by the answer that was told to count."""

    def __init__(self) -> None:
        self._opened: dict[str, tuple[str, str | None]] = {}
        self._resolved: dict[str, LogRecord] = {}

    def take(self, each: LogRecord) -> Iterator[Finding]:
        kind = each.body.get("type")
        if kind == "callbackOpened" and "callback" in each.body:
            name = str(each.body["callback"].get("id"))
            if name in self._opened:
                at = self._opened[name][0]
                yield Finding("opened_twice", each.id, f"Callback {name} opens here again; it had opened at {at}.")
            self._opened.setdefault(name, (each.id, each.body.get("turnId")))
        elif kind == "callbackResolved" and "callbackId" in each.body:
            name = each.body["callbackId"]
            if name in self._resolved:
                at = self._resolved[name].id
                yield Finding("resolved_twice", each.id, f"Callback {name} is resolved here again; it was at {at}.")
            elif name not in self._opened:
                yield Finding("never_opened", each.id, f"Callback {name} is resolved here and had not opened.")
            else:
                yield from _same_turn(each, f"Callback {name} is resolved", *self._opened[name])
            self._resolved.setdefault(name, each)

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:
        for name, (at, turn) in self._opened.items():
            if name not in self._resolved and over(turn):
                yield Finding("never_resolved", at, f"Callback {name} opens here and is never resolved.")

    def accepted(self, answers: Iterable[AcceptedAnswer]) -> Iterator[Finding]:
        """Of each callback one answer counted, and that is the one in the log."""
        told: set[str] = set()
        for name, answer in answers:
            stored = self._resolved.get(name)
            at = name if stored is None else stored.id
            private = stored.body.get("private", {}) if stored is not None else {}
            if name in told:
                yield Finding("two_answers", at, f"Two answers to callback {name} were both told to count.")
            elif private.get("outcome") != "answered":
                yield Finding("lost_answer", at, f"An answer to callback {name} was told to count; the log has none.")
            elif answer is not None and private.get("answer") != answer:
                yield Finding("other_answer", at, f"Callback {name} has another answer than the one told to count.")
            told.add(name)


class _Calls:
    """Each tool call has an id of its own and one result, after it in its turn: providers refuse an orphan."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, str, str | None]] = {}
        """Each call: where it was made, its entry, its turn."""
        self._results: dict[str, tuple[str, str]] = {}

    def take(self, each: LogRecord) -> Iterator[Finding]:
        entry, turn = each.body.get("entry") or {}, each.body.get("turnId")
        if turn is None or each.body.get("type") != "entryAdded":
            return  # an imported history has what it had
        call, name = str(entry.get("toolCallId")), str(entry.get("id"))
        if entry.get("type") == "toolCall":
            at, made, _ = self._made.setdefault(call, (each.id, name, turn))
            if made != name:
                yield Finding("called_twice", each.id, f"Tool call {call} is made here again; it was made at {at}.")
        elif entry.get("type") == "toolResult":
            if call not in self._made:
                yield Finding("no_call", each.id, f"A result of tool call {call}, which the log does not hold.")
            elif call not in self._results:
                began, _, made_in = self._made[call]
                yield from _same_turn(each, f"Tool call {call} gets its result", began, made_in)
            at, made = self._results.setdefault(call, (each.id, name))
            if made != name:
                yield Finding("two_results", each.id, f"Tool call {call} gets a result here again; it had one at {at}.")

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:
        for call, (at, _, turn) in self._made.items():
            if call not in self._results and over(turn):
                yield Finding("no_result", at, f"Tool call {call} is made here and has no result.")


class _Termination:
    """After a session's end only its title and its archive mark change."""

    def __init__(self) -> None:
        self._at = ""

    def take(self, each: LogRecord) -> Iterator[Finding]:
        body = each.body
        kind, ends = body.get("type"), body.get("status") == "terminated"
        if kind == "sessionUpdated" and ends:
            self._at = self._at or each.id
        elif self._at and (kind != "notice" or "turnId" in body):
            yield Finding("after_termination", each.id, f"A {kind} after the session's end at {self._at}.")

    def end(self, over: Callable[[str | None], bool]) -> Iterator[Finding]:  # noqa: ARG002 - of every rule
        yield from ()
