"""What a run does with its turn: the fence, the number of each write, what it has seen, and how it parks and ends."""

from __future__ import annotations

import asyncio

import pytest
from holders import (
    ENDED,
    Holder,
    answer,
    ask,
    begin,
    claim,
    command,
    expect_whole,
    fields,
    hold,
    keys_of,
    kinds,
    last_id,
    more,
    move_clock,
    notice,
    open_session,
    queued,
    records,
    running,
    sent,
    start,
    writing,
)

from broker import runs, transitions
from broker.broker import Broker
from broker.channels import subscribe
from broker.protocol.values import loads
from broker.queue import Job
from broker.runs import Begun, Gap, Superseded, Write


async def successor(broker: Broker, holder: Holder) -> Holder:
    """Let the turn's lease lapse, and another worker hold it."""
    await lapse(broker, holder.job.id)
    return await hold(broker, worker="w2")


async def lapse(broker: Broker, job_id: str) -> None:
    """Let a job's lease lapse, and somebody without a slot notice it."""
    await command(broker, "ZADD", f"{broker.keys.queue(0, 'agent')}:running", 1, job_id)
    assert await claim(broker, worker="w9", slots=0) == []


# The fence.


async def test_a_superseded_run_writes_nothing(broker: Broker) -> None:
    old = await running(broker)
    new = await successor(broker, old)
    before, state = await last_id(broker, old.session_id), await fields(broker, old.session_id, "job", "op", "fence")

    assert await old.append("e", notice("late")) == ["superseded"]
    assert await old.write("append", "e", notice("late"), op=1) == ["superseded"]
    assert await old.park() == ["superseded"]
    assert await old.finish() == ["superseded"]
    await runs.release(broker, old.session_id, old.fence, budget=5)

    assert await last_id(broker, old.session_id) == before
    assert await fields(broker, old.session_id, "job", "op", "fence") == state
    assert (await new.append("e", notice("mine")))[0] == "ok"


@pytest.mark.parametrize("how", ["interrupt", "cancel", "release", "park"])
async def test_a_fence_falls_with_the_run(broker: Broker, how: str) -> None:
    holder = await running(broker)
    if how == "interrupt":
        await transitions.interrupt(broker, holder.session_id, holder.turn)
    elif how == "cancel":
        await transitions.cancel(broker, holder.session_id)
    elif how == "release":
        await runs.release(broker, holder.session_id, holder.fence, budget=5)
    else:
        await holder.park()
    before = await last_id(broker, holder.session_id)

    assert await holder.append("e", notice("late")) == ["superseded"]
    assert await holder.write("park") == ["superseded"]
    assert await holder.write("finish", ended=ENDED) == ["superseded"]
    assert await last_id(broker, holder.session_id) == before


async def test_an_empty_fence_holds_nothing(broker: Broker) -> None:
    holder = await running(broker)
    await runs.release(broker, holder.session_id, holder.fence, budget=5)
    holder.fence = ""

    assert await holder.append("e", notice("x")) == ["superseded"]
    assert await holder.write("finish", ended=ENDED) == ["superseded"]


async def test_a_refusal_is_an_exception(broker: Broker) -> None:
    holder = await running(broker)
    write = Write(holder.session_id, holder.fence, 1, holder.seen)
    first = await runs.append(broker, write, ["e", notice("x")], budget=5)

    assert await runs.append(broker, write, ["e", notice("x")], budget=5) == first
    with pytest.raises(Gap):
        await runs.append(broker, Write(holder.session_id, holder.fence, 3, holder.seen), [], budget=5)
    with pytest.raises(Superseded):
        await runs.park(broker, Write(holder.session_id, "w9:1", 2, holder.seen), budget=5)


# The number of a write.


async def test_a_repeated_write_gets_its_answer_and_appends_once(broker: Broker) -> None:
    holder = await running(broker)
    first = await holder.append("e", notice("one"), "e", notice("two"))
    after = await last_id(broker, holder.session_id)

    assert await holder.write("append", "e", notice("one"), "e", notice("two"), op=1) == first
    assert await last_id(broker, holder.session_id) == after
    assert first[2] == after
    assert int(first[1]) == int(after.partition("-")[0]) - 1


async def test_a_late_copy_does_nothing(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append("e", notice("one"))
    await holder.append("e", notice("two"))
    after = await last_id(broker, holder.session_id)

    assert await holder.write("append", "e", notice("one"), op=1) == ["late"]
    assert await last_id(broker, holder.session_id) == after


async def test_numbers_begin_anew_with_each_run(broker: Broker) -> None:
    old = await running(broker)
    await old.append("e", notice("one"))
    new = await successor(broker, old)

    assert (await new.append("e", notice("two")))[0] == "ok"
    assert new.op == 1


# Park and finish.


@pytest.mark.parametrize("news", ["answer", "steer", "join"])
async def test_nobody_parks_or_ends_over_news(broker: Broker, news: str) -> None:
    holder = await running(broker)
    await holder.append(*ask("c1"), *ask("c2"))
    await holder.see()
    if news == "answer":
        await answer(broker, holder.session_id, "c1")
    elif news == "steer":
        await transitions.steer(broker, holder.session_id, holder.turn, sent("x"))
    else:
        await transitions.start(broker, holder.session_id, sent("x"), key=None, join=True)
    last = await last_id(broker, holder.session_id)

    assert await holder.write("park") == ["more", last]
    assert await holder.write("park", op=holder.op) == ["more", last]
    assert await holder.write("finish", ended=ENDED) == ["more", last]
    assert await fields(broker, holder.session_id, "job") == ["running"]
    assert await holder.park() == ["parked"]


async def test_a_repeated_park_gets_its_answer(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*ask("c1"))
    assert await holder.park() == ["parked"]

    assert await holder.write("park", op=holder.op) == ["parked"]
    assert await fields(broker, holder.session_id, "job", "holder", "attempts") == ["parked", "", "0"]
    await answer(broker, holder.session_id, "c1")
    assert await holder.write("park", op=holder.op) == ["superseded"]


async def test_a_repeated_finish_gets_its_answer(broker: Broker) -> None:
    holder = await running(broker)
    first = await holder.finish()
    after = await last_id(broker, holder.session_id)

    assert await holder.write("finish", op=holder.op, ended=ENDED) == first
    assert await last_id(broker, holder.session_id) == after
    await start(broker, holder.session_id)
    assert await holder.write("finish", op=holder.op, ended=ENDED) == ["superseded"]
    assert (await fields(broker, holder.session_id, "turn"))[0] not in ("", holder.turn)


async def test_parked_is_gone_from_the_queue(broker: Broker) -> None:
    """No job, no lease, no slot: all that is left of it is the session."""
    holder = await running(broker)
    await holder.append(*ask("c1"))
    await holder.park()

    assert await queued(broker) == ([], [])
    assert await keys_of(broker, "job") == []
    assert await claim(broker) == []


async def test_a_finish_is_one_append_in_the_documented_order(broker: Broker) -> None:
    holder = await running(broker)
    words = await holder.finish()

    found = await records(broker, holder.session_id)
    assert kinds(found)[-3:] == ["turnUpdated(terminated)", "turnEnded", "sessionUpdated(waiting)"]
    assert words == ["finished", found[-2]["at"]]
    assert len({record["at"].partition("-")[2] for record in found[-3:]}) == 1
    assert await queued(broker) == ([], [])
    assert await keys_of(broker, "job", "open", "asked", "text") == []


async def test_a_failure_ends_the_turn_whatever_came(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*writing("message", "m", "par"), *more("m", "tial"), *ask("c1"))
    await transitions.steer(broker, holder.session_id, holder.turn, sent("x"))
    holder.seen = ""

    assert (await holder.write("finish", ended=ENDED))[0] == "finished"

    found = await records(broker, holder.session_id)
    expect_whole(found)
    (completed,) = [r["entry"] for r in found if r["type"] == "entryCompleted" and r["entry"]["id"] == "m"]
    assert completed["content"] == [{"type": "text", "text": "partial"}]


# Deltas.


async def test_deltas_take_no_position(broker: Broker) -> None:
    holder = await running(broker)
    heard = subscribe(broker, [broker.keys.live(holder.session_id)])
    assert await anext(heard) is None
    await holder.append(*writing("message", "m", "one"))
    before = await last_id(broker, holder.session_id)

    await holder.append(*more("m", "two"), *more("m", "three"))
    await holder.append(*more("m", "four"), "e", notice("stored"), *more("m", "five"))

    published = [loads(got[1]) for got in [await anext(heard) for _ in range(6)] if got is not None]
    await heard.aclose()
    n, ms = (int(part) for part in before.split("-"))
    assert (published[0]["n"], [e["type"] for e in published[0]["e"]]) == (n, ["entryAdded"])
    assert [(p["n"], p["ms"], p["k"], p["d"]["text"]) for p in published[1:4]] == [
        (n, ms, 1, "two"),
        (n, ms, 2, "three"),
        (n, ms, 3, "four"),
    ]
    assert published[4]["n"] == n + 1
    assert (published[5]["n"], published[5]["k"]) == (n + 1, 1)
    assert await last_id(broker, holder.session_id) == f"{n + 1}-{published[4]['ms']}"
    assert kinds(await records(broker, holder.session_id)).count("textDelta") == 0
    record = await transitions.record(broker, holder.session_id, holder.turn)
    assert isinstance(record, transitions.OpenRecord)
    assert record.text == b'"onetwothreefourfive"'


async def test_a_model_call_made_again_starts_its_text_afresh(broker: Broker) -> None:
    holder = await running(broker)
    await holder.append(*writing("message", "m", "wrong"), *more("m", " words"))
    await holder.append(*writing("message", "m", "")[2:], *more("m", "right"))
    await transitions.interrupt(broker, holder.session_id, holder.turn)

    found = await records(broker, holder.session_id)
    assert [r["entry"]["content"][0]["text"] for r in found if r.get("entry", {}).get("id") == "m"] == [
        "wrong",
        "right",
    ]
    assert found[-2]["state"]["text"] == "right"


# Begin.


async def test_begin_gives_what_the_run_needs(broker: Broker) -> None:
    session_id = await open_session(broker)
    await start(broker, session_id)
    (job,) = await claim(broker)

    begun = await begin(broker, job)

    assert isinstance(begun, Begun)
    assert (begun.attempt, begun.agent, begun.last) == (1, "agent", await last_id(broker, session_id))
    assert [raw.id for raw in begun.tail] == [record["at"] for record in await records(broker, session_id)]


async def test_begin_counts_attempts_and_says_so(broker: Broker) -> None:
    old = await running(broker)
    new = await successor(broker, old)

    assert (old.attempt, new.attempt) == (1, 2)
    *_, told = await records(broker, old.session_id)
    assert (told["type"], told["level"], told["source"]) == ("notice", "warning", "worker")
    assert told["details"] == {"reason": "worker_lost", "attempt": 2}
    assert new.seen == told["at"]


async def test_a_repeated_begin_counts_nothing(broker: Broker) -> None:
    session_id = await open_session(broker)
    await start(broker, session_id)
    (job,) = await claim(broker)
    first = await begin(broker, job, fence="w1:1")
    await runs.append(broker, Write(session_id, "w1:1", 1, first.last), ["e", notice("x")], budget=5)

    again = await begin(broker, job, fence="w1:1")

    assert (first.attempt, again.attempt) == (1, 1)
    assert again.last == await last_id(broker, session_id)
    assert await fields(broker, session_id, "op") == ["1"]


async def test_a_park_forgives_attempts(broker: Broker) -> None:
    old = await running(broker)
    new = await successor(broker, old)
    await new.append(*ask("c1"))
    await new.park()
    await answer(broker, new.session_id, "c1")

    assert (await hold(broker)).attempt == 1


@pytest.mark.parametrize("how", ["interrupt", "cancel", "lapsed", "no session"])
async def test_begin_drops_what_has_moved_on(broker: Broker, how: str) -> None:
    session_id = await open_session(broker)
    turn = await start(broker, session_id)
    (job,) = await claim(broker)
    if how == "interrupt":
        await transitions.interrupt(broker, session_id, turn)
    elif how == "cancel":
        await transitions.cancel(broker, session_id)
    elif how == "no session":
        await command(broker, "DEL", broker.keys.of("session", session_id))
    else:
        await lapse(broker, job.id)
    before = await records(broker, session_id)

    assert await begin(broker, job) == "dropped"
    assert await records(broker, session_id) == before
    _, held = await queued(broker)
    assert job.id not in held or how == "no session"
    assert await command(broker, "EXISTS", f"arq:job:{job.id}") == 0
    if how == "no session":
        await command(broker, "DEL", *(broker.keys.of(kind, session_id) for kind in ("log", "turns")))


async def test_a_turn_whose_workers_are_all_lost_goes_to_the_dead_letters(broker: Broker) -> None:
    holder = await running(broker)
    first, most = holder, broker.settings.max_attempts
    await holder.append(*writing("message", "m", "half"), *ask("c1"))
    for attempt in range(2, most + 1):
        holder = await successor(broker, holder)
        assert holder.attempt == attempt
    await lapse(broker, holder.job.id)
    (job,) = await claim(broker)

    assert await begin(broker, job) == "dead"

    found = await records(broker, first.session_id)
    expect_whole(found)
    state = found[-2]["state"]
    assert (state["type"], state["error"]["code"], state["text"]) == ("failed", "worker_lost", "half")
    assert f"{most} times" in state["error"]["message"]
    dead = await command(broker, "ZRANGE", f"{broker.keys.base(0)}dead", 0, -1)
    assert dead == [f"{first.session_id} {first.turn}".encode()]
    assert await queued(broker) == ([], [])
    assert await keys_of(broker, "job", "open", "asked", "text") == []
    assert await start(broker, first.session_id) != first.turn


async def test_a_worker_runs_one_turn_at_a_time_on_its_last_attempt(broker: Broker) -> None:
    """So a turn that ends its process is alone when it is counted out, and who stood beside has a chance without it."""
    sessions = [await open_session(broker) for _ in range(3)]
    for session_id in sessions:
        await start(broker, session_id)
        await command(
            broker, "HSET", broker.keys.of("session", session_id), "attempts", broker.settings.max_attempts - 1
        )
    first, second, third = await claim(broker)

    held = await begin(broker, first, fence="w1:1")
    assert held.attempt == broker.settings.max_attempts
    assert await begin(broker, second, fence="w1:2") == "later"
    assert isinstance(await begin(broker, first, fence="w1:1"), Begun), "a repeat gets its answer"
    assert await fields(broker, second.session_id, "attempts", "job") == [
        str(broker.settings.max_attempts - 1),
        "queued",
    ]
    assert await begin(broker, second, fence="w1:2") == "dropped", "a repeat does not meet the job again"
    (due,), running = await queued(broker)
    assert (due, set(running)) == (named_job(second, 2), {first.id, third.id})
    assert (await begin(broker, third, fence="w2:1", worker="w2")).attempt == held.attempt, (
        "another worker takes one too"
    )
    assert await claim(broker) == [], "it is due later"

    await Holder(broker, first, "w1:1", held.last).finish()
    await start(broker, first.session_id)
    (fresh,) = await claim(broker)
    assert (await begin(broker, fresh, fence="w1:2")).attempt == 1, "which is in nobody's way"
    await move_clock(broker, 1000)  # at the latest
    (again,) = await claim(broker)
    assert (again.id, (await begin(broker, again, fence="w1:3")).attempt) == (due, held.attempt)
    assert await begin(broker, again, fence="w2:2", worker="w2") == "taken", "a run that has begun is nobody else's"


async def test_a_newer_record_protocol_puts_the_job_back(broker: Broker) -> None:
    session_id = await open_session(broker)
    await start(broker, session_id)
    (job,) = await claim(broker)
    await command(broker, "DEL", f"{broker.keys.queue(0, 'agent')}:wake")
    await command(broker, "HSET", broker.keys.of("session", session_id), "protocol", transitions.PROTOCOL + 1)

    assert await begin(broker, job) == "newer"
    assert await begin(broker, job) == "dropped", "a repeat does not meet the job again"

    assert await queued(broker) == ([named_job(job, 2)], [])
    assert await command(broker, "EXISTS", f"{broker.keys.queue(0, 'agent')}:wake") == 0
    assert await fields(broker, session_id, "attempts", "fence", "job") == ["0", "", "queued"]
    assert await claim(broker) == []
    await move_clock(broker, 1001)
    assert [again.id for again in await claim(broker)] == [named_job(job, 2)]


def named_job(job: Job, wake: int) -> str:
    """The id of the same turn's job at another wake."""
    return f"{job.id.rpartition(':')[0]}:{wake}"


# Release.


async def test_release_gives_the_attempt_back(broker: Broker) -> None:
    holder = await running(broker)
    await runs.release(broker, holder.session_id, holder.fence, budget=5)
    assert await fields(broker, holder.session_id, "attempts", "job", "fence", "holder") == ["0", "queued", "", ""]
    (waiting,), none = await queued(broker)
    assert waiting.endswith(":2")
    assert none == []

    again = await hold(broker)

    assert again.attempt == 1
    assert "notice" not in kinds(await records(broker, holder.session_id))[5:]


async def test_a_second_release_is_nothing(broker: Broker) -> None:
    holder = await running(broker)
    for _ in range(2):
        await runs.release(broker, holder.session_id, holder.fence, budget=5)
    other = await hold(broker)
    await runs.release(broker, holder.session_id, holder.fence, budget=5)

    assert await fields(broker, holder.session_id, "wake", "fence") == ["2", other.fence]


async def test_only_one_of_many_at_once_claims(broker: Broker) -> None:
    session_id = await open_session(broker)
    await start(broker, session_id)
    claims = await asyncio.gather(*(claim(broker, worker=f"w{at}") for at in range(5)))

    assert sorted(len(jobs) for jobs in claims) == [0, 0, 0, 0, 1]
