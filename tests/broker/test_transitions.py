"""What a client does to a session: start, join, steer, answer, retitle. Each is one script, whole or not at all."""

from __future__ import annotations

import pytest
from holders import (
    answer,
    ask,
    command,
    expect_whole,
    fields,
    hold,
    keys_of,
    kinds,
    last_id,
    message,
    move_clock,
    open_session,
    queued,
    raw_records,
    records,
    running,
    sent,
    start,
)

from broker import queue, transitions
from broker.broker import Broker
from broker.channels import subscribe
from broker.contents import Blob, Message
from broker.keys import new_id, new_session_id
from broker.protocol.errors import (
    SessionIdempotencyConflictError,
    SessionNotFoundError,
    SessionTerminatedError,
)
from broker.protocol.wire import INLINE_LIMIT, resolved_tail, tail
from broker.scripting import Argument
from broker.transitions import ActiveTurn, Answered, EndedRecord, Lost, NoRecord, OpenRecord, Sent

STARTED = ["entryAdded", "entryCompleted", "turnStarted", "sessionUpdated(running)"]


async def verb(broker: Broker, name: str, session_id: str, *rest: Argument, **arguments: Argument) -> list[bytes]:
    """Run a verb with a nonce of the test's own, as a retry does."""
    key = broker.keys.of("session", session_id)
    return await broker.run(name, key, rest, budget=5, sid=session_id, **arguments)


async def serve(broker: Broker, agent: str = "agent") -> None:
    key = broker.keys.queue(0, agent)
    await queue.renew(broker, key, [], worker="w", agent=agent, slots=1, version="1", budget=5)


# Sessions.


async def test_the_same_options_open_a_session_once(broker: Broker) -> None:
    session_id = new_session_id(1)
    options = transitions.SessionOptions(agent="agent", queue="agent", digest="one")

    assert await transitions.open_session(broker, session_id, options) is True
    assert await transitions.open_session(broker, session_id, options) is False
    with pytest.raises(SessionIdempotencyConflictError):
        await transitions.open_session(
            broker, session_id, transitions.SessionOptions(agent="agent", queue="agent", digest="two")
        )
    assert await records(broker, session_id) == []


@pytest.mark.parametrize(
    "session_id", ["", "nonsense", "0-nonsense", new_session_id(1)], ids=["empty", "word", "half", "unknown"]
)
async def test_a_session_that_is_not_there_is_named(broker: Broker, session_id: str) -> None:
    with pytest.raises(SessionNotFoundError, match=f"no session '?{session_id}"):
        await transitions.cancel(broker, session_id)
    with pytest.raises(SessionNotFoundError):
        await start(broker, session_id)
    with pytest.raises(SessionNotFoundError):
        await transitions.record(broker, session_id, new_id())


async def test_a_title_changes_once(broker: Broker) -> None:
    session_id = await open_session(broker)

    await transitions.retitle(broker, session_id, title=b'"a \\u0000 title"')
    await transitions.retitle(broker, session_id, title=b'"a \\u0000 title"')
    await transitions.retitle(broker, session_id, archived=True)

    first, second = await records(broker, session_id)
    assert (first["title"], first["archived"], first["status"]) == ("a \x00 title", False, "waiting")
    assert (second["title"], second["archived"]) == ("a \x00 title", True)


# Ids.


async def test_ids_are_dense_and_their_time_never_goes_back(broker: Broker) -> None:
    session_id = await open_session(broker)
    for offset in (0, 5000, -60_000, 0, 90_000, 0):
        await move_clock(broker, offset)
        await transitions.retitle(broker, session_id, title=b'"%d"' % len(await records(broker, session_id)))
        turn = await start(broker, session_id)
        await transitions.interrupt(broker, session_id, turn)

    found = await records(broker, session_id)
    expect_whole(found)
    turns = await command(broker, "HVALS", broker.keys.of("turns", session_id))
    ids = {record["at"] for record in found} | {"-"}
    assert {place for line in turns for place in line.decode().split()} <= ids


async def test_events_of_one_append_have_one_time(broker: Broker) -> None:
    session_id = await open_session(broker)
    await serve(broker)
    await start(broker, session_id)

    found = await records(broker, session_id)
    assert kinds(found) == STARTED
    assert len({record["at"].partition("-")[2] for record in found}) == 1


# Start.


async def test_a_start_is_one_append_in_the_documented_order(broker: Broker) -> None:
    session_id = await open_session(broker)
    await serve(broker)
    contents = Message(tails=[message("hello"), message("seen", role="context")], digest="d")

    got = await transitions.start(broker, session_id, contents, key=None, join=False)

    assert isinstance(got, Sent)
    found = await records(broker, session_id)
    assert kinds(found) == [*STARTED, "entryAdded", "entryCompleted"]
    assert [record.get("turnId") for record in found] == [got.turn, got.turn, got.turn, None, got.turn, got.turn]
    (waiting,), none = await queued(broker)
    assert waiting.endswith(f"{session_id}:{got.turn}:1")
    assert none == []


async def test_a_start_says_when_no_worker_serves_its_agent(broker: Broker) -> None:
    session_id = await open_session(broker)
    turn = await start(broker, session_id)

    *_, last = await records(broker, session_id)
    assert (last["type"], last["level"], last["source"], last["turnId"]) == ("notice", "warning", "agent:agent", turn)
    assert (last["details"], "agent" in last["message"]) == (None, True)


@pytest.mark.parametrize(("agent", "notices"), [("agent", 0), ("another", 1)])
async def test_a_start_is_silent_when_a_worker_is_registered(broker: Broker, agent: str, notices: int) -> None:
    session_id = await open_session(broker)
    await serve(broker, agent)
    await start(broker, session_id)

    assert kinds(await records(broker, session_id)).count("notice") == notices


async def test_a_worker_that_stopped_renewing_serves_no_more(broker: Broker) -> None:
    await serve(broker)
    await move_clock(broker, int(broker.settings.lease * 1000) + 1)
    session_id = await open_session(broker)
    await start(broker, session_id)

    assert kinds(await records(broker, session_id))[-1] == "notice"


async def test_a_second_start_is_busy_and_writes_nothing(broker: Broker) -> None:
    session_id = await open_session(broker)
    turn = await start(broker, session_id)
    before = await last_id(broker, session_id)

    got = await transitions.start(broker, session_id, sent("other"), key="k", join=False)

    assert got == ActiveTurn(turn)
    assert await last_id(broker, session_id) == before
    assert await command(broker, "EXISTS", broker.keys.of("receipts", session_id)) == 0


async def test_a_message_may_join_the_active_turn(broker: Broker) -> None:
    session_id = await open_session(broker)
    turn = await start(broker, session_id)

    got = await transitions.start(broker, session_id, sent("more"), key=None, join=True)

    assert got == Sent(turn, started=False)
    *_, added, completed = await records(broker, session_id)
    assert [added["turnId"], completed["turnId"]] == [turn, turn]
    assert completed["entry"]["content"][0]["text"] == "more"


async def test_receipts_give_a_key_its_turn(broker: Broker) -> None:
    session_id = await open_session(broker)
    first = await transitions.start(broker, session_id, sent("a"), key="one", join=False)
    assert isinstance(first, Sent)
    joined = await transitions.start(broker, session_id, sent("b"), key="two", join=True)
    before = await last_id(broker, session_id)

    assert await transitions.start(broker, session_id, sent("a"), key="one", join=False) == first
    assert await transitions.start(broker, session_id, sent("a"), key="one", join=True) == first
    assert await transitions.start(broker, session_id, sent("b"), key="two", join=True) == joined
    with pytest.raises(SessionIdempotencyConflictError) as conflict:
        await transitions.start(broker, session_id, sent("other"), key="one", join=False)
    assert conflict.value.idempotency_key == "one"
    with pytest.raises(SessionIdempotencyConflictError):  # it joined: no turn was started by it
        await transitions.start(broker, session_id, sent("b"), key="two", join=False)
    assert await last_id(broker, session_id) == before


async def test_receipts_outlive_the_turn_and_the_session(broker: Broker) -> None:
    session_id = await open_session(broker)
    first = await transitions.start(broker, session_id, sent("a"), key="one", join=False)
    await transitions.cancel(broker, session_id)

    assert await transitions.start(broker, session_id, sent("a"), key="one", join=False) == first
    for text, key in (("other", "one"), ("a", "new"), ("a", None)):
        with pytest.raises(SessionTerminatedError, match=session_id):
            await transitions.start(broker, session_id, sent(text), key=key, join=False)


# A command that is repeated because its reply was lost.


async def test_a_repeated_start_starts_once(broker: Broker) -> None:
    session_id = await open_session(broker)
    given: dict[str, Argument] = {
        "nonce": new_id(),
        "key": "",
        "digest": "d",
        "join": 0,
        "turn": new_id(),
        "preview": "",
    }

    first = await verb(broker, "start", session_id, message(), **given)
    assert await verb(broker, "start", session_id, message(), **given) == first
    assert kinds(await records(broker, session_id)).count("turnStarted") == 1
    assert len((await queued(broker))[0]) == 1


async def test_a_repeated_start_that_joined_joins_once(broker: Broker) -> None:
    session_id = await open_session(broker)
    turn = await start(broker, session_id)
    given: dict[str, Argument] = {
        "nonce": new_id(),
        "key": "",
        "digest": "d",
        "join": 1,
        "turn": new_id(),
        "preview": "",
    }

    first = await verb(broker, "start", session_id, message(), **given)
    after = await last_id(broker, session_id)
    assert await verb(broker, "start", session_id, message(), **given) == first == [b"joined", turn.encode()]
    assert await last_id(broker, session_id) == after


async def test_a_repeated_steer_joins_once(broker: Broker) -> None:
    session_id = await open_session(broker)
    turn, nonce = await start(broker, session_id), new_id()

    first = await verb(broker, "steer", session_id, message(), nonce=nonce, turn=turn)
    after = await last_id(broker, session_id)
    assert await verb(broker, "steer", session_id, message(), nonce=nonce, turn=turn) == first
    assert await last_id(broker, session_id) == after


async def test_a_repeated_interrupt_is_no_conflict(broker: Broker) -> None:
    session_id = await open_session(broker)
    turn, nonce = await start(broker, session_id), new_id()

    first = await verb(broker, "interrupt", session_id, nonce=nonce, turn=turn)
    following = await start(broker, session_id)
    assert await verb(broker, "interrupt", session_id, nonce=nonce, turn=turn) == first
    assert first[0] == b"interrupted"
    assert await fields(broker, session_id, "turn") == [following]


async def test_a_repeated_answer_is_the_one_that_counted(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*ask("c1"))
    given: dict[str, Argument] = {
        "callback": "c1", "nonce": new_id(), "resolved": resolved_tail("c1", "answered"), "call": "", "result": ""
    }  # fmt: skip

    for _ in range(2):
        assert await verb(broker, "answer", holder.session_id, **given) == [b"answered"]
    assert kinds(await records(broker, holder.session_id)).count("callbackResolved") == 1


async def test_nonces_are_kept_for_ten_minutes(broker: Broker) -> None:
    session_id = await open_session(broker)
    await start(broker, session_id)

    (nonce,) = await keys_of(broker, "nonce")
    assert 590_000 < await command(broker, "PTTL", broker.keys.base(0) + nonce) <= 600_000


# Steer and interrupt name a turn.


@pytest.mark.parametrize("state", ["none", "other", "ended session"])
async def test_only_the_active_turn_is_steered_or_interrupted(broker: Broker, state: str) -> None:
    session_id = await open_session(broker)
    ended = await start(broker, session_id)
    await transitions.interrupt(broker, session_id, ended)
    active = await start(broker, session_id) if state == "other" else None
    if state == "ended session":
        await transitions.cancel(broker, session_id)
    before = await last_id(broker, session_id)

    for turn in (ended, new_id()):
        assert await transitions.steer(broker, session_id, turn, sent("x")) == ActiveTurn(active)
        assert await transitions.interrupt(broker, session_id, turn) == ActiveTurn(active)
    assert await last_id(broker, session_id) == before


# Answers, and who is woken.


async def test_an_answer_wakes_a_parked_turn_once(broker: Broker) -> None:
    """Two questions are answered, one after the other: the first wakes the turn, for the second it is queued already."""
    holder = await running(broker)
    await holder.append(*ask("c1"), *ask("c2"))
    assert await holder.park() == ["parked"]
    assert await queued(broker) == ([], [])

    assert await answer(broker, holder.session_id, "c1") == Answered()
    assert await answer(broker, holder.session_id, "c2") == Answered()

    (waiting,), none = await queued(broker)
    assert waiting.endswith(f":{holder.turn}:2")
    assert none == []
    assert (await hold(broker)).attempt == 1
    blocked = [kind for kind in kinds(await records(broker, holder.session_id)) if kind.startswith("turnUpdated")]
    assert blocked == ["turnUpdated(blocked)", "turnUpdated(running)"]


async def test_an_answer_to_a_queued_turn_adds_no_job(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*ask("c1"))
    await broker.run("release", broker.keys.of("session", holder.session_id), sid=holder.session_id, fence=holder.fence)
    before = await queued(broker)

    assert await answer(broker, holder.session_id, "c1") == Answered()
    assert await queued(broker) == before
    assert await fields(broker, holder.session_id, "wake", "job") == ["2", "queued"]


async def test_an_answer_to_a_running_turn_only_hints(broker: Broker) -> None:
    holder = await running(broker, worker="w7")
    await holder.append(*ask("c1"))
    before = await fields(broker, holder.session_id, "wake", "job", "fence", "holder")
    hints = subscribe(broker, [broker.keys.control(0, "w7")])
    assert await anext(hints) is None

    await answer(broker, holder.session_id, "c1")

    heard = await anext(hints)
    await hints.aclose()
    assert heard is not None
    assert heard[1].decode() == f"news {holder.session_id} {holder.turn}"
    assert await fields(broker, holder.session_id, "wake", "job", "fence", "holder") == before
    assert (await holder.append("e", message()))[0] == "ok"


async def test_a_steer_does_not_wake_a_parked_turn(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*ask("c1"))
    await holder.park()

    assert await transitions.steer(broker, holder.session_id, holder.turn, sent("and")) is None
    got = await transitions.start(broker, holder.session_id, sent("so"), key=None, join=True)
    assert got == Sent(holder.turn, started=False)
    assert await queued(broker) == ([], [])
    assert await fields(broker, holder.session_id, "job") == ["parked"]


async def test_the_first_answer_counts(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*ask("c1"))
    assert await answer(broker, holder.session_id, "c1") == Answered()

    late = await transitions.answer(
        broker, holder.session_id, "c1", resolved_tail("c1", "answered", {"type": "deny", "reason": None})
    )

    assert isinstance(late, Lost)
    assert b'"allow"' in late.record.body
    assert await answer(broker, holder.session_id, "never") is None


async def test_an_answer_after_the_cut_finds_the_question_closed(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*ask("c1"))
    await transitions.interrupt(broker, holder.session_id, holder.turn)

    late = await answer(broker, holder.session_id, "c1")
    assert isinstance(late, Lost)
    assert b'"closed"' in late.record.body


# Reading.


async def test_a_record_is_read_in_every_state(broker: Broker) -> None:
    session_id = await open_session(broker)
    assert await transitions.record(broker, session_id, new_id()) == NoRecord("0-0", "waiting")
    turn = await start(broker, session_id)
    holder = await hold(broker)
    await holder.append(*ask("c2"), *ask("c1"), "l", '"so far"')

    open_ = await transitions.record(broker, session_id, turn)

    assert isinstance(open_, OpenRecord)
    assert (open_.text, open_.last, open_.previous_end) == (b'"so far"', await last_id(broker, session_id), "-")
    assert sorted(b'"c1"' in raw.body for raw in open_.callbacks) == [False, True]
    await holder.finish()
    ended = await transitions.record(broker, session_id, turn)
    assert isinstance(ended, EndedRecord)
    assert ended.end.body.startswith(b'{"turnId":"' + turn.encode() + b'","type":"turnEnded"')
    following = await transitions.record(broker, session_id, await start(broker, session_id))
    assert isinstance(following, OpenRecord)
    assert following.previous_end == ended.end.id


async def test_the_last_ids_of_many_sessions_are_read_at_once(broker: Broker) -> None:
    first, second = await open_session(broker), await open_session(broker)
    await start(broker, first)

    assert await transitions.tails(broker, [first, new_session_id(1), second]) == [
        await last_id(broker, first),
        None,
        "0-0",
    ]


# Bodies over the limit are stored once, beside the log.


def _large(kind: str, **more: str) -> tuple[Blob, bytes, bytes]:
    body = tail({"type": kind, "message": "x" * (INLINE_LIMIT + 1), "level": "info", "source": "test", **more})
    name = new_id()
    return Blob(name, body), tail({"type": kind, "blob": name}), body


async def test_a_large_message_round_trips(broker: Broker) -> None:
    session_id = await open_session(broker)
    name, text = new_id(), "ä\x00" * INLINE_LIMIT
    blob = (Blob(name, message(text)), tail({"type": "entryCompleted", "blob": name}))
    contents = Message(tails=[blob, message("note", role="context")], digest="d")
    await transitions.start(broker, session_id, contents, key=None, join=False)
    turn = (await fields(broker, session_id, "turn"))[0]
    assert turn is not None
    again = (Blob(new_id(), message(text)), b"")
    steered = (again[0], tail({"type": "entryCompleted", "blob": again[0].id}))
    await transitions.steer(broker, session_id, turn, Message(tails=[steered], digest="e"))

    found = [record["entry"] for record in await records(broker, session_id) if record["type"] == "entryCompleted"]
    assert [entry["content"][0]["text"] for entry in found] == [text, "note", text]
    assert await command(broker, "HLEN", broker.keys.of("blobs", session_id)) == 2


async def test_a_large_write_and_a_large_end_round_trip(broker: Broker) -> None:
    holder = await running(broker)
    blob, reference, body = _large("notice")
    assert (await holder.append("b", blob.id, blob.body, "e", reference))[0] == "ok"
    ended = tail({"type": "turnEnded", "state": {"type": "completed", "text": "y" * (INLINE_LIMIT + 1)}})
    await holder.see()

    words = await holder.write("finish", "b", "end", ended, ended=tail({"type": "turnEnded", "blob": "end"}))

    assert words[0] == "finished"
    read = await transitions.record(broker, holder.session_id, holder.turn)
    assert isinstance(read, EndedRecord)
    assert read.end.body == b'{"turnId":"' + holder.turn.encode() + b'",' + ended
    found = await records(broker, holder.session_id)
    assert len([record for record in found if len(record.get("message", "")) > INLINE_LIMIT]) == 1
    assert body == blob.body
    stored = await command(broker, "XRANGE", broker.keys.of("log", holder.session_id), "-", "+")
    assert max(len(each[1][b"e"]) for each in stored) < 1000


async def test_a_large_answer_and_a_large_question_round_trip(broker: Broker) -> None:
    holder, large = await running(broker), "z" * (INLINE_LIMIT + 1)
    opened = tail({"type": "callbackOpened", "callback": {"type": "approval", "id": "c1", "title": large}})
    await holder.append("b", "q", opened, "q", "c1", tail({"type": "callbackOpened", "blob": "q"}))
    resolved = resolved_tail("c1", "answered", {"type": "clientTool", "result": {"content": [large]}})

    assert await transitions.answer(broker, holder.session_id, "c1", resolved) == Answered()

    found = await records(broker, holder.session_id)
    assert [r["private"]["answer"]["result"]["content"] for r in found if r["type"] == "callbackResolved"] == [[large]]
    assert [r["callback"]["title"] for r in found if r["type"] == "callbackOpened"] == [large]
    assert max(len(raw.body) for raw in await raw_records(broker, holder.session_id)) < 1000
