"""The history checker finds each planted fault by its name, and nothing beside it; what the scripts store is clean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import holders
import pytest

from broker import scripting, transitions
from broker.broker import Broker
from broker.embedded import EmbeddedServer
from broker.history_check import AcceptedAnswer, LogRecord, check_history, joined
from broker.keys import new_id
from broker.protocol.events import Event, SessionUpdated, TextDelta
from broker.protocol.wire import Position, decode, entry_tail, parse_stream_id
from broker.seen_check import check_seen
from broker.settings import Settings
from broker.stored_session import StoredSession, check_tree, read_stored

CALLBACK: Final = "c-1"
ANSWER: Final = {"type": "allow", "scope": "once"}
Log = list[LogRecord]
Plant = Callable[[Log], Log]


async def story(broker: Broker) -> StoredSession:
    """Two turns: one asks, parks, is answered and writes a message; one loses its worker. Then the session ends."""
    holder = await holders.running(broker, worker="run-a1")
    call, entry = new_id(), new_id()
    await holder.append(*holders.called(call), *holders.ask(CALLBACK))
    assert await holder.park() == ["parked"]
    await holders.answer(broker, holder.session_id, CALLBACK)
    holder = await holders.hold(broker, worker="run-b1")
    await holder.append(*holders.tool_started(call, entry))
    await holder.append("e", entry_tail("entryCompleted", holders.result(call, "paid", entry_id=entry)), "c", entry)
    await holder.append(*holders.writing("message", new_id(), "Good"))
    assert (await holder.finish())[0] == "finished"

    await holders.start(broker, holder.session_id, "again")
    lost = await holders.hold(broker, worker="run-c1")
    await lost.append("e", holders.notice("from the first"))
    await holders.command(broker, "ZADD", f"{broker.keys.queue(0, 'agent')}:running", 1, lost.job.id)
    last = await holders.hold(broker, worker="run-d1")
    await last.append("e", holders.notice("from the second"))
    assert (await last.finish())[0] == "finished"
    await transitions.cancel(broker, holder.session_id)
    await transitions.retitle(broker, holder.session_id, title=b'"old"')
    return await read_stored(broker, holder.session_id)


@pytest.fixture
async def told() -> AsyncIterator[StoredSession]:
    broker = Broker(Settings(prefix="h:"), EmbeddedServer())
    try:
        yield await story(broker)
    finally:
        await broker.close()


def turns_of(records: Log) -> list[str]:
    return list(dict.fromkeys(each.body["turnId"] for each in records if "turnId" in each.body))


async def test_what_the_scripts_wrote_is_clean_and_names_each_run(broker: Broker) -> None:
    stored = await story(broker)
    sends, answers = turns_of(list(stored.records)), [AcceptedAnswer(CALLBACK, ANSWER)]

    found = check_history(stored.records, active=stored.active, last=stored.last, sends=sends, answers=answers)

    assert found == []
    marks = [mark for mark in dict.fromkeys(each.run for each in stored.records) if mark]
    assert marks == ["run-a1", "run-b1", "run-c1", "run-d1"]


async def test_the_active_turn_may_stand_in_the_middle_of_anything(broker: Broker) -> None:
    holder = await holders.running(broker)
    call = new_id()
    await holder.append(*holders.called(call), *holders.ask(CALLBACK), *holders.writing("message", new_id(), "He"))
    stored = await read_stored(broker, holder.session_id)

    assert check_history(stored.records, active=stored.active, last=stored.last) == []
    assert {each.code for each in check_history(stored.records)} == {
        *("never_ended", "never_completed", "never_resolved", "no_result"),
    }


# Planted into the stored log.


def place(log: Log, kind: str, nth: int = 0, **fields: Any) -> int:
    """Where the nth record of a type is, with these fields."""
    fits = [at for at, each in enumerate(log) if each.body["type"] == kind and fields.items() <= each.body.items()]
    return fits[nth]


def result(log: Log, kind: str) -> int:
    """Where the tool's result is added, or completed."""
    return next(
        at
        for at, each in enumerate(log)
        if each.body["type"] == kind and each.body.get("entry", {}).get("type") == "toolResult"
    )


def numbered(log: Log) -> Log:
    """As if the log had been written so: positions are dense, and times in order."""
    return [each._replace(id=f"{n}-{log[0].id.partition('-')[2]}") for n, each in enumerate(log, 1)]


def without(log: Log, *places: int) -> Log:
    """As if these had never been written."""
    return numbered([each for at, each in enumerate(log) if at not in places])


def between(log: Log, at: int, body: Any, run: str = "") -> Log:
    """As if this had been written before record `at`."""
    return numbered([*log[:at], LogRecord("", body, run), *log[at:]])


def changed(log: Log, at: int, **fields: Any) -> Log:
    """The record at a place with other fields."""
    return [*log[:at], log[at]._replace(**fields), *log[at + 1 :]]


def turn(log: Log, nth: int) -> str:
    return turns_of(log)[nth]


def note(of: str | None = None) -> dict[str, Any]:
    body = {"type": "notice", "message": "m", "level": "info", "source": None, "details": None}
    return body if of is None else {"turnId": of, **body}


FAULTS: Final[list[Any]] = []


def fault(code: str) -> Callable[[Plant], Plant]:
    """Let this be a planted fault, and the one finding it must lead to."""

    def listed(plant: Plant) -> Plant:
        FAULTS.append(pytest.param(plant, code, id=plant.__name__))
        return plant

    return listed


@fault("lost_event")
def a_lost_event(log: Log) -> Log:
    at = place(log, "notice")
    return [*log[:at], *log[at + 1 :]]


@fault("lost_event")
def the_last_event_lost(log: Log) -> Log:
    return log[:-1]


@fault("order")
def a_swapped_pair(log: Log) -> Log:
    at = place(log, "notice", 1)
    return [*log[:at], log[at + 1], log[at], *log[at + 2 :]]


@fault("doubled_event")
def a_doubled_event(log: Log) -> Log:
    at = place(log, "notice")
    return [*log[:at], log[at], *log[at:]]


@fault("time")
def a_time_that_goes_back(log: Log) -> Log:
    return changed(log, 9, id="10-1")


@fault("lost_body")
def a_body_that_is_gone(log: Log) -> Log:
    return changed(log, place(log, "turnUpdated"), body={"type": "turnUpdated", "turnId": turn(log, 0), "blob": "b"})


@fault("ended_twice")
def a_doubled_end(log: Log) -> Log:
    at = place(log, "turnEnded")
    return between(log, at + 1, log[at].body)


@fault("after_end")
def an_event_of_a_turn_after_its_end(log: Log) -> Log:
    return between(log, place(log, "turnEnded") + 2, note(turn(log, 0)))


@fault("never_ended")
def a_turn_without_an_end(log: Log) -> Log:
    return without(log, place(log, "turnEnded", 1))


@fault("never_started")
def a_turn_without_a_start(log: Log) -> Log:
    return without(log, place(log, "turnStarted"))


@fault("started_twice")
def a_doubled_start(log: Log) -> Log:
    return between(log, place(log, "notice", 1), {"type": "turnStarted", "turnId": turn(log, 1)})


@fault("two_turns")
def two_turns_at_once(log: Log) -> Log:
    at, start = place(log, "turnEnded"), place(log, "turnStarted", 1)
    return numbered([*log[:at], *log[at + 1 : start + 1], log[at], *log[start + 1 :]])


@fault("added_twice")
def an_entry_added_twice(log: Log) -> Log:
    at = result(log, "entryAdded")
    return between(log, at + 1, log[at].body, log[at].run)


@fault("added_late")
def an_entry_completed_before_it_is_added(log: Log) -> Log:
    at = result(log, "entryAdded")
    assert log[at + 1].body["type"] == "entryCompleted"
    return numbered([*log[:at], log[at + 1], log[at], *log[at + 2 :]])


@fault("completed_twice")
def an_entry_completed_twice(log: Log) -> Log:
    at = result(log, "entryCompleted")
    return between(log, at + 1, log[at].body, log[at].run)


@fault("never_completed")
def an_entry_never_completed(log: Log) -> Log:
    return without(log, result(log, "entryCompleted"))


@fault("never_added")
def an_entry_never_added(log: Log) -> Log:
    return without(log, place(log, "entryAdded", delta=True))


@fault("no_result")
def a_call_without_a_result(log: Log) -> Log:
    return without(log, result(log, "entryAdded"), result(log, "entryCompleted"))


@fault("two_results")
def a_call_with_two_results(log: Log) -> Log:
    at = result(log, "entryCompleted")
    entry = {**log[at].body["entry"], "id": "other"}
    added = {"type": "entryAdded", "turnId": turn(log, 0), "entry": entry}
    return between(between(log, at + 1, added), at + 2, {**added, "type": "entryCompleted"})


@fault("resolved_twice")
def a_callback_resolved_twice(log: Log) -> Log:
    at = place(log, "callbackResolved")
    return between(log, at + 1, log[at].body)


@fault("never_opened")
def a_resolution_without_an_opening(log: Log) -> Log:
    return without(log, place(log, "callbackOpened"))


@fault("opened_twice")
def a_callback_opened_twice(log: Log) -> Log:
    at = place(log, "callbackOpened")
    return between(log, at + 1, log[at].body)


@fault("never_resolved")
def a_callback_never_resolved(log: Log) -> Log:
    return without(log, place(log, "callbackResolved"))


@fault("fenced_run")
def a_fenced_run_s_write(log: Log) -> Log:
    """One run, the one that took its place, and the first again."""
    return between(log, place(log, "notice", -2) + 1, note(turn(log, 1)), "run-c1")


@fault("fenced_run")
def a_run_that_writes_into_the_next_turn(log: Log) -> Log:
    return between(log, place(log, "turnStarted", 1) + 1, note(turn(log, 1)), "run-b1")


def in_the_next_turn(log: Log, *moved: int) -> Log:
    """As if these had been written in the second turn, by nobody's run."""
    rest = [each for at, each in enumerate(log) if at not in moved]
    start = place(rest, "turnStarted", 1) + 1
    late = [LogRecord("", {**log[at].body, "turnId": turn(log, 1)}) for at in moved]
    return numbered([*rest[:start], *late, *rest[start:]])


@fault("other_turn")
def a_callback_answered_in_the_next_turn(log: Log) -> Log:
    return in_the_next_turn(log, place(log, "callbackResolved"))


@fault("other_turn")
def an_entry_completed_in_the_next_turn(log: Log) -> Log:
    return in_the_next_turn(log, result(log, "entryCompleted"))


@fault("other_turn")
def a_call_that_gets_its_result_in_the_next_turn(log: Log) -> Log:
    return in_the_next_turn(log, result(log, "entryAdded"), result(log, "entryCompleted"))


@fault("after_termination")
def a_turn_s_event_after_the_session_s_end(log: Log) -> Log:
    return between(log, len(log), {"type": "sessionUpdated", "status": "waiting", "title": None, "archived": False})


@pytest.mark.parametrize(("plant", "code"), FAULTS)
async def test_a_planted_fault_is_found_and_nothing_beside_it(plant: Plant, code: str, told: StoredSession) -> None:
    log = plant(list(told.records))
    last = log[-1].id if plant is not the_last_event_lost else told.last

    found = check_history(log, active=told.active, last=last)

    assert [each.code for each in found] == [code]
    assert found[0].at in {each.id for each in [*log, told.records[-1]]}
    assert found[0].said.endswith(".")


@pytest.fixture
def failing_fence(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the scripts take a write by whoever sends it."""

    def broken(name: str) -> str:
        text = real(name)
        return text.replace("s.fence ~= fence or ", "") if name == "include/fenced.lua" else text

    real = scripting._file
    monkeypatch.setattr(scripting, "_file", broken)
    scripting.load_script.cache_clear()
    yield
    scripting.load_script.cache_clear()


@pytest.mark.usefixtures("failing_fence")
async def test_a_fence_that_failed_shows_in_the_marks(embedded_broker: Broker) -> None:
    """A mark is of the fence that the writer sent: scripts that let a fenced run write are found out by it."""
    holder = await holders.running(embedded_broker, worker="run-a1")
    await holder.append("e", holders.notice("mine"))
    key = f"{embedded_broker.keys.queue(0, 'agent')}:running"
    await holders.command(embedded_broker, "ZADD", key, 1, holder.job.id)
    successor = await holders.hold(embedded_broker, worker="run-b1")
    await successor.append("e", holders.notice("now mine"))

    words = await holder.write("append", "e", holders.notice("still mine"), op=2)

    assert words[0] == "ok"
    stored = await read_stored(embedded_broker, holder.session_id)
    found = check_history(stored.records, active=stored.active, last=stored.last)
    assert [(each.code, each.at) for each in found] == [("fenced_run", stored.last)]
    assert "run-a1" in found[0].said
    assert "run-b1" in found[0].said


async def test_what_callers_were_told_is_held_against_the_log(told: StoredSession) -> None:
    def codes(**told_: Any) -> list[tuple[str, str]]:
        return [(each.code, each.at) for each in check_history(told.records, **told_)]

    resolved = told.records[place(list(told.records), "callbackResolved")].id
    counted = AcceptedAnswer(CALLBACK, ANSWER)
    assert codes(sends=["t-1"]) == [("lost_send", "t-1")]
    assert codes(active="t-1") == [("wrong_active", "t-1")]
    assert codes(active=turn(list(told.records), 0))[0][0] == "wrong_active"
    assert codes(answers=[counted, counted]) == [("two_answers", resolved)]
    assert codes(answers=[AcceptedAnswer("c-2")]) == [("lost_answer", "c-2")]
    assert codes(answers=[AcceptedAnswer(CALLBACK, {"type": "deny"})]) == [("other_answer", resolved)]


async def test_a_subagent_that_ended_without_telling_its_parent_is_found(told: StoredSession) -> None:
    log = list(told.records)
    calls_result = log[result(log, "entryCompleted")].body["entry"]["id"]

    def codes(entry: str, **child: Any) -> list[list[tuple[str, str]]]:
        below = replace(told, session_id="below", spawned_by=entry, **child)
        checked = check_tree([replace(told, children=("below",)), below])
        return [[(each.code, each.at) for each in findings] for _, findings in checked]

    assert codes(calls_result) == [[], []]
    assert codes("e-1") == [[("lost_report", "e-1")], []]


@pytest.mark.parametrize("body", ["no JSON", "[]", '{"type":', '{"type":["x"]}', '{"type":"entryAdded","entry":"x"}'])
async def test_what_is_no_event_is_a_finding_beside_all_that_is(broker: Broker, body: str) -> None:
    holder = await holders.running(broker)
    assert (await holder.finish())[0] == "finished"
    n, ms, _ = parse_stream_id((await read_stored(broker, holder.session_id)).last)
    await holders.command(broker, "XADD", broker.keys.of("log", holder.session_id), f"{n + 1}-{ms}", "e", body)
    await holders.command(broker, "HINCRBY", broker.keys.of("session", holder.session_id), "n", 1)

    stored = await read_stored(broker, holder.session_id)

    found = check_history(stored.records, active=stored.active, last=stored.last)
    assert [(each.code, each.at) for each in found] == [("no_record", f"{n + 1}-{ms}")]


# What an observer saw.


def seen_of(stored: StoredSession) -> list[Event]:
    """What a live observer sees of the story: the stored events."""
    seen: list[Event] = []
    for each in joined(stored.records):
        seen += decode(stored.session_id, parse_stream_id(each.id), dict(each.body))
    return seen


def where(seen: list[Event], kind: type[Event]) -> int:
    return next(at for at, event in enumerate(seen) if isinstance(event, kind))


async def test_what_an_observer_saw_is_clean_from_anywhere(told: StoredSession) -> None:
    seen = seen_of(told)

    for at in range(len(seen)):
        assert check_seen(seen[at:], told.records, ended=True, live=at == 0) == []
    assert check_seen(seen, told.records, after=Position(0, 0)) == []
    assert check_seen([], told.records) == []


async def test_an_observer_leaves_at_the_sessions_end_and_sees_no_later_title(told: StoredSession) -> None:
    seen = seen_of(told)
    assert [event.status for event in seen[-2:] if isinstance(event, SessionUpdated)] == ["terminated", "terminated"]

    assert check_seen(seen[:-1], told.records, ended=True) == []
    assert [each.code for each in check_seen(seen[:-2], told.records, ended=True)] == ["seen_missed"]


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        pytest.param(lambda seen: seen[:5] + seen[6:], "seen_missed", id="an event missed"),
        pytest.param(lambda seen: seen[:-2], "seen_missed", id="the session's end missed"),
        pytest.param(lambda seen: seen[1:], "seen_missed", id="the beginning missed"),
        pytest.param(lambda seen: [*seen[:5], seen[4], *seen[5:]], "seen_twice", id="an event doubled"),
        pytest.param(lambda seen: [*seen[:4], seen[5], seen[4], *seen[6:]], "seen_order", id="a pair turned round"),
    ],
)
async def test_an_observers_fault_is_found(plant: Any, code: str, told: StoredSession) -> None:
    found = check_seen(plant(seen_of(told)), told.records, after=Position(0, 0), ended=True)

    assert [each.code for each in found] == [code]


async def test_an_observer_that_saw_what_is_not_stored_is_found(told: StoredSession) -> None:
    seen = seen_of(told)
    n, ms, _ = parse_stream_id(told.last)
    end = decode(told.session_id, Position(n + 1, ms), note())
    other = decode(told.session_id, parse_stream_id(told.records[6].id), note())

    assert [each.code for each in check_seen([*seen, *end], told.records)] == ["seen_unstored"]
    text = TextDelta(id=f"{seen[-1].id}.1", session_id=told.session_id, turn_id=None, entry_id="nobody's", text="x")
    assert [each.code for each in check_seen([*seen, text], told.records)] == ["seen_unstored"]
    assert [each.code for each in check_seen([*seen[:6], *other, *seen[7:]], told.records)] == ["seen_other"]


async def test_text_that_was_shown_is_stored_and_a_later_try_begins_afresh(told: StoredSession) -> None:
    seen = seen_of(told)
    at = where(seen, TextDelta)
    first = seen[at]
    assert isinstance(first, TextDelta)

    def shown(*texts: str) -> list[str]:
        deltas = [
            TextDelta(**{**vars(first), "id": f"{first.id}.{k}", "text": text}) for k, text in enumerate(texts, 1)
        ]
        return [each.code for each in check_seen([*seen[: at + 1], *deltas, *seen[at + 1 :]], told.records, live=True)]

    assert shown() == []
    assert shown("Go", "od") == []
    assert shown(" day") == ["seen_text"]
