"""Interrupt and cancel in every job state: all that is open is completed, and nothing of the turn is left."""

from __future__ import annotations

from typing import Final

import pytest
from holders import (
    Holder,
    Record,
    answer,
    ask,
    called,
    command,
    expect_whole,
    fields,
    hold,
    keys_of,
    kinds,
    last_id,
    more,
    open_session,
    queued,
    records,
    result,
    running,
    sent,
    start,
    tool_started,
    writing,
)

from broker import runs, transitions
from broker.broker import Broker
from broker.channels import subscribe
from broker.protocol.errors import SessionNotFoundError
from broker.protocol.wire import entry_tail, tail
from broker.transitions import Answered, EndedRecord

STATES: Final = ("queued", "running", "parked")
VERBS: Final = ("interrupt", "cancel")


async def open_everything(holder: Holder) -> None:
    """Leave open what a turn can leave open: a message, reasoning, a running tool, unstarted calls, two questions."""
    await holder.append(*writing("reasoning", "r", "I thi"), "t", "r", "nk \\u0000")
    await holder.append(*writing("message", "m", "Hello"), *more("m", " \\n\\u2028"), *more("m", "wor"))
    await holder.append(*called("running"), *called("unstarted"), *called("asked"), *called("client"))
    await holder.append(*tool_started("running", "result"), *ask("c2"), *ask("c1", call="client"))


async def to_state(holder: Holder, state: str) -> None:
    if state == "queued":
        await runs.release(holder.broker, holder.session_id, holder.fence, budget=5)
    elif state == "parked":
        assert await holder.park() == ["parked"]


async def cut(broker: Broker, verb: str, session_id: str, turn: str) -> None:
    if verb == "interrupt":
        assert await transitions.interrupt(broker, session_id, turn) is None
    else:
        await transitions.cancel(broker, session_id)


def entry(found: list[Record], entry_id: str) -> Record:
    (completed,) = [r["entry"] for r in found if r["type"] == "entryCompleted" and r["entry"]["id"] == entry_id]
    return dict(completed)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
async def test_a_cut_completes_everything_that_is_open(broker: Broker, state: str, verb: str) -> None:
    holder = await running(broker)
    await open_everything(holder)
    await to_state(holder, state)

    await cut(broker, verb, holder.session_id, holder.turn)

    found = await records(broker, holder.session_id)
    expect_whole(found)
    assert entry(found, "m")["content"] == [{"type": "text", "text": "Hello \n\u2028wor"}]
    assert entry(found, "r")["text"] == "I think \x00"
    assert entry(found, "result")["content"][0]["text"] == "cut"
    results = [r["entry"] for r in found if r["type"] == "entryCompleted" and r["entry"]["type"] == "toolResult"]
    assert {each["toolCallId"]: each["content"][0]["text"] for each in results} == {
        "running": "cut",
        "unstarted": "not started",
        "asked": "not started",
        "client": "not started",
    }
    resolved = [r["private"] for r in found if r["type"] == "callbackResolved"]
    assert resolved == [{"outcome": "closed"}, {"outcome": "closed"}]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
async def test_a_cut_ends_the_turn_in_one_append(broker: Broker, state: str, verb: str) -> None:
    holder = await running(broker)
    await open_everything(holder)
    await to_state(holder, state)
    before = int((await last_id(broker, holder.session_id)).partition("-")[0])

    await cut(broker, verb, holder.session_id, holder.turn)

    found = (await records(broker, holder.session_id))[before:]
    status = "waiting" if verb == "interrupt" else "terminated"
    assert kinds(found)[-3:] == ["turnUpdated(terminated)", "turnEnded", f"sessionUpdated({status})"]
    assert "turnUpdated(running)" not in kinds(found)
    assert found[-2]["state"] == {
        "type": "interrupted",
        "cause": "interrupted" if verb == "interrupt" else "cancelled",
        "text": "Hello \n\u2028wor",
    }
    assert len({record["at"].partition("-")[2] for record in found}) == 1


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", STATES)
async def test_a_cut_leaves_nothing_of_the_turn(broker: Broker, state: str, verb: str) -> None:
    holder = await running(broker)
    await open_everything(holder)
    await to_state(holder, state)

    await cut(broker, verb, holder.session_id, holder.turn)

    assert await queued(broker) == ([], [])
    assert await keys_of(broker, "open", "asked", "text", "job") == []
    assert await command(broker, "ZSCORE", f"{broker.keys.base(0)}active", holder.session_id) is None
    assert await fields(broker, holder.session_id, "turn", "job", "fence", "holder") == ["", "", "", ""]
    record = await transitions.record(broker, holder.session_id, holder.turn)
    assert isinstance(record, EndedRecord)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_cut_before_the_first_claim(broker: Broker, verb: str) -> None:
    session_id = await open_session(broker)
    turn = await start(broker, session_id)

    await cut(broker, verb, session_id, turn)

    expect_whole(await records(broker, session_id))
    assert await queued(broker) == ([], [])
    assert await keys_of(broker, "job", "open", "asked") == []


async def test_a_cut_hints_the_holder(broker: Broker) -> None:
    holder = await running(broker, worker="w3")
    hints = subscribe(broker, [broker.keys.control(0, "w3")])
    assert await anext(hints) is None

    await transitions.interrupt(broker, holder.session_id, holder.turn)

    heard = await anext(hints)
    await hints.aclose()
    assert heard is not None
    assert heard[1].decode() == f"stop {holder.session_id} {holder.turn}"


async def test_what_is_completed_is_cut_no_more(broker: Broker) -> None:
    holder = await running(broker)
    await open_everything(holder)
    done = tail({"type": "entryCompleted", "entry": {"type": "message", "id": "m", "role": "assistant", "content": []}})
    await holder.append("e", done, "c", "m", "l", '"whole"')
    await holder.append("e", entry_tail("entryCompleted", result("running", "ran", entry_id="result")), "c", "result")
    await answer(broker, holder.session_id, "c1")

    await transitions.interrupt(broker, holder.session_id, holder.turn)

    found = await records(broker, holder.session_id)
    expect_whole(found)
    assert entry(found, "result")["content"][0]["text"] == "ran"
    assert found[-2]["state"]["text"] == "whole"


async def test_an_answered_client_tool_has_its_answer_as_result_when_cut(broker: Broker) -> None:
    """The client did its work: a cut between its answer and the worker's next step must not say that it did not run."""
    holder = await running(broker)
    await open_everything(holder)
    await holder.park()
    done = entry_tail("entryCompleted", result("client", "the client's", entry_id="answered"))
    assert await answer(broker, holder.session_id, "c1", call="call:client", result=done) == Answered()

    await transitions.interrupt(broker, holder.session_id, holder.turn)

    found = await records(broker, holder.session_id)
    expect_whole(found)
    assert entry(found, "answered")["content"][0]["text"] == "the client's"


async def test_what_opens_first_is_completed_first(broker: Broker) -> None:
    holder = await running(broker)
    for at in (10, 2, 33, 4):
        await holder.append(*called(f"c{at}"))
    await holder.append(*called("c7"), *called("c5"))
    await transitions.interrupt(broker, holder.session_id, holder.turn)

    found = await records(broker, holder.session_id)
    done = [r["entry"] for r in found if r["type"] == "entryCompleted" and r["entry"]["type"] == "toolResult"]
    assert [each["toolCallId"] for each in done] == ["c10", "c2", "c33", "c4", "c7", "c5"]


# The session's end.


async def test_cancel_ends_the_session_once(broker: Broker) -> None:
    session_id = await open_session(broker)
    await transitions.cancel(broker, session_id)
    await transitions.cancel(broker, session_id)

    assert kinds(await records(broker, session_id)) == ["sessionUpdated(terminated)"]


async def test_a_session_for_one_turn_ends_with_it(broker: Broker) -> None:
    await start(broker, await open_session(broker, once=True))
    holder = await hold(broker)
    await holder.finish()

    assert kinds(await records(broker, holder.session_id))[-1] == "sessionUpdated(terminated)"
    assert await without_ttl(broker, holder.session_id) == []


async def without_ttl(broker: Broker, session_id: str) -> list[str]:
    names = [key for key in await broker.client.keys(f"*{session_id}*") if await broker.client.pttl(key) == -1]
    return sorted(name.decode() for name in names)


async def _everything(broker: Broker) -> Holder:
    holder = await running(broker)
    await transitions.start(broker, holder.session_id, sent("joins"), key="k", join=True)
    await holder.append("b", "blob", tail({"type": "notice"}), "e", tail({"type": "notice", "blob": "blob"}))
    await open_everything(holder)
    return holder


@pytest.mark.parametrize("active", [True, False])
async def test_every_key_of_an_ended_session_has_a_ttl(broker: Broker, *, active: bool) -> None:
    holder = await _everything(broker)
    open_keys = {key.rpartition(":")[0] for key in await without_ttl(broker, holder.session_id)}
    assert len(open_keys) >= 8

    if not active:
        await holder.finish()
    await transitions.cancel(broker, holder.session_id)

    assert await without_ttl(broker, holder.session_id) == []
    ttl = await command(broker, "PTTL", broker.keys.of("log", holder.session_id))
    kept = (broker.settings.retention or 0) * 1000
    assert kept - 60_000 < ttl <= kept


async def test_no_key_of_an_open_session_has_a_ttl(broker: Broker) -> None:
    holder = await _everything(broker)
    await holder.finish()
    await start(broker, holder.session_id)

    names = [key.decode() for key in await broker.client.keys(f"*{holder.session_id}*")]
    assert sorted(names) == await without_ttl(broker, holder.session_id)
    assert {"session", "log", "turns", "settled", "receipts", "blobs"} <= {name.split(":")[-2] for name in names}


async def test_nothing_after_the_end_gives_a_key_for_ever(broker: Broker) -> None:
    holder = await _everything(broker)
    await transitions.cancel(broker, holder.session_id)

    await answer(broker, holder.session_id, "c1")
    await transitions.retitle(broker, holder.session_id, title=b'"late"', archived=True)
    await transitions.steer(broker, holder.session_id, holder.turn, sent("late"))
    await transitions.interrupt(broker, holder.session_id, holder.turn)
    await holder.append("b", "late", b"x", "e", tail({"type": "notice"}))

    assert await without_ttl(broker, holder.session_id) == []


async def test_a_session_whose_keys_expired_is_not_found(broker: Broker) -> None:
    holder = await _everything(broker)
    await transitions.cancel(broker, holder.session_id)
    for key in await broker.client.keys(f"*{holder.session_id}*"):
        await broker.client.delete(key)

    with pytest.raises(SessionNotFoundError):
        await transitions.record(broker, holder.session_id, holder.turn)
    assert await holder.append("e", tail({"type": "notice"})) == ["superseded"]
    assert await keys_of(broker, "log", "session") == []
