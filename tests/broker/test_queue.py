"""The queue: jobs by due time, leases by deadline, and a broker that was away."""

from __future__ import annotations

import asyncio
import re

import orjson
import pytest
from holders import (
    answer,
    ask,
    begin,
    claim,
    command,
    fields,
    hold,
    keys_of,
    move_clock,
    open_session,
    queued,
    running,
    start,
)

from broker import contents, queue, runs, transitions
from broker.broker import Broker
from broker.keys import new_id
from broker.protocol.wire import entry_tail
from broker.queue import BadJobError, read_job
from broker.scripting import Argument

SESSION = "0-3f9c2e71-8c1e-4b7a-9f5e-0a4c8f1d2b3c"
TURN = "7d1e2c3b-8c1e-4b7a-9f5e-0a4c8f1d2b3c"


def queue_key(broker: Broker) -> str:
    return broker.keys.queue(0, "agent")


async def raw_claim(broker: Broker, **more: Argument) -> list[bytes]:
    given: dict[str, Argument] = {"worker": "w1", "nonce": "n", "slots": 10, "lease": 15_000, **more}
    return await broker.run("claim", queue_key(broker), budget=5, **given)


async def renew(broker: Broker, *jobs: str, worker: str = "w1", slots: int = 3) -> dict[str, str]:
    return await queue.renew(
        broker, queue_key(broker), jobs, worker=worker, agent="agent", slots=slots, version="1", budget=5
    )


def lease_ms(broker: Broker) -> int:
    return int(broker.settings.lease * 1000)


async def lapse(broker: Broker, *, step: float = 0.25, renewing: bool = False) -> None:
    """Let a lease pass, with some worker looking at the queue at each quarter."""
    for quarter in range(1, 6):
        await move_clock(broker, int(lease_ms(broker) * step * quarter))
        if renewing:
            await renew(broker, worker="w9")
        else:
            await claim(broker, worker="w9", slots=0)


# Job bodies.


def test_a_job_is_read_from_its_id_and_its_body() -> None:
    body = orjson.dumps({"t": None, "f": "run_turn", "a": [SESSION, TURN, 3], "k": {}, "et": 1})

    job = read_job(f"{{s0}}ts:{SESSION}:{TURN}:3", body)

    assert (job.function, job.session_id, job.turn_id, job.wake) == ("run_turn", SESSION, TURN, 3)


@pytest.mark.parametrize(
    ("job_id", "body", "said"),
    [
        (f"{{s0}}ts:{SESSION}:{TURN}:3", b"", "its body is not one of ours"),
        (f"{{s0}}ts:{SESSION}:{TURN}:3", b"\x80\x04pickle", "its body is not one of ours"),
        (f"{{s0}}ts:{SESSION}:{TURN}:3", b"[1]", "its body is not one of ours"),
        (f"{{s0}}ts:{SESSION}:{TURN}:3", b'{"f":"run_turn","a":["x","y",3]}', "name different turns"),
        ("nonsense", orjson.dumps({"f": "run_turn", "a": [SESSION, TURN, 3]}), "name different turns"),
    ],
)
def test_a_job_that_is_not_ours_is_named(job_id: str, body: bytes, said: str) -> None:
    with pytest.raises(BadJobError, match=f"{re.escape(job_id)}.*{said}"):
        read_job(job_id, body)


def test_jobs_are_json() -> None:
    assert queue.loads(queue.dumps({"a": [1], "o": object})) == {"a": [1], "o": repr(object)}


async def test_what_lua_writes_is_what_arq_and_we_read(broker: Broker) -> None:
    session_id = await open_session(broker)
    turn = await start(broker, session_id)
    (job_id,), _ = await queued(broker)

    body = await command(broker, "GET", f"arq:job:{job_id}")

    assert job_id == f"{{s0}}{broker.settings.prefix}{session_id}:{turn}:1"
    read = queue.loads(body)
    assert {key: read[key] for key in "tfak"} == {"t": None, "f": "run_turn", "a": [session_id, turn, 1], "k": {}}
    assert read["et"] > 0


# Claim.


async def test_a_claim_gives_due_jobs_by_their_time_and_no_more_than_slots(broker: Broker) -> None:
    turns = [await start(broker, await open_session(broker)) for _ in range(4)]
    for at, job_id in enumerate((await queued(broker))[0]):
        order = [job_id.split(":")[-2] for job_id in (await queued(broker))[0]]
        assert set(order) == set(turns)
        await command(broker, "ZADD", queue_key(broker), 1000 + at, job_id)
    order = [job_id.split(":")[-2] for job_id in (await queued(broker))[0]]

    first, second = await claim(broker, slots=3), await claim(broker, slots=3)

    assert [job.turn_id for job in [*first, *second]] == order
    waiting, held = await queued(broker)
    assert (waiting, len(held)) == ([], 4)


async def test_a_worker_without_a_slot_claims_nothing(broker: Broker) -> None:
    await start(broker, await open_session(broker))
    before = await queued(broker)

    assert await claim(broker, slots=0) == []
    assert await queued(broker) == before


async def test_a_repeated_claim_gets_the_same_jobs(broker: Broker) -> None:
    """Its reply was lost: nothing is stranded until its lease lapses, and nobody else is given them."""
    await start(broker, await open_session(broker))
    first = await raw_claim(broker, nonce="one")
    await start(broker, await open_session(broker))

    again = await raw_claim(broker, nonce="one")

    assert again[1:] == first[1:]
    assert len(first) == 3
    assert await raw_claim(broker, nonce="one", worker="w2") != again  # another worker's nonces are its own
    (kept,) = await keys_of(broker, "claimed:w1")
    assert 0 < await command(broker, "PTTL", broker.keys.base(0) + kept) <= 15_000


async def test_an_empty_claim_forgets_nothing_of_the_last(broker: Broker) -> None:
    await start(broker, await open_session(broker))
    first = await raw_claim(broker, nonce="one")
    await raw_claim(broker, nonce="two")

    assert (await raw_claim(broker, nonce="one"))[1:] == first[1:]


async def test_a_claim_says_how_long_nothing_is_due(broker: Broker) -> None:
    claimed = await queue.claim(broker, queue_key(broker), worker="w", slots=1, lease=15, budget=5)
    assert (claimed.jobs, claimed.wait) == ([], None)
    await start(broker, await open_session(broker))
    (job_id,), _ = await queued(broker)
    now = await command(broker, "TIME")
    await command(broker, "ZADD", queue_key(broker), int(now[0]) * 1000 + 4000, job_id)

    claimed = await queue.claim(broker, queue_key(broker), worker="w", slots=1, lease=15, budget=5)

    assert claimed.jobs == []
    assert 2.5 < (claimed.wait or 0) <= 4.0


async def test_a_claim_says_when_the_next_lease_lapses(broker: Broker) -> None:
    await running(broker)

    claimed = await queue.claim(broker, queue_key(broker), worker="w2", slots=1, lease=15, budget=5)

    assert 13 < (claimed.wait or 0) <= 15


async def test_tokens_go_when_nothing_is_due(broker: Broker) -> None:
    wake = f"{queue_key(broker)}:wake"
    for _ in range(2):
        await start(broker, await open_session(broker))
    assert await command(broker, "LLEN", wake) == 2
    assert 0 < await command(broker, "PTTL", wake) <= 60_000

    await claim(broker, slots=1)
    assert await command(broker, "LLEN", wake) == 2
    await claim(broker, slots=1)
    assert await command(broker, "EXISTS", wake) == 0


# Leases.


@pytest.mark.parametrize("renewing", [True, False])
async def test_a_lapsed_lease_puts_the_turn_back_under_its_next_wake(broker: Broker, *, renewing: bool) -> None:
    holder = await running(broker)
    await lapse(broker, renewing=renewing)
    await claim(broker, worker="w2", slots=0)

    (waiting,), held = await queued(broker)

    assert waiting.endswith(f":{holder.turn}:2")
    assert held == []
    assert await keys_of(broker, "job") == [f"arq:job:{waiting}"]
    assert await fields(broker, holder.session_id, "wake", "job", "fence", "attempts") == ["2", "queued", "", "1"]
    assert await command(broker, "LLEN", f"{queue_key(broker)}:wake") >= 1
    assert await begin(broker, holder.job) == "dropped"
    assert (await hold(broker, worker="w2")).attempt == 2


async def test_a_renewed_lease_does_not_lapse(broker: Broker) -> None:
    holder = await running(broker)
    for quarter in range(1, 9):
        await move_clock(broker, lease_ms(broker) * quarter // 4)
        assert await renew(broker, holder.job.id) == {}
        assert await claim(broker, worker="w2") == []

    assert await queued(broker) == ([], [holder.job.id])


async def test_a_broker_that_was_away_is_not_a_dead_fleet(broker: Broker) -> None:
    """Nobody has looked for more than a third of a lease: every lease begins anew, and nothing is reaped."""
    holder = await running(broker)
    await move_clock(broker, lease_ms(broker) * 3)

    assert await claim(broker, worker="w2") == []
    assert await queued(broker) == ([], [holder.job.id])
    claimed = await queue.claim(broker, queue_key(broker), worker="w2", slots=1, lease=15, budget=5)
    assert 13 < (claimed.wait or 0) <= 15
    assert await renew(broker, holder.job.id) == {}
    assert (await holder.append())[0] == "ok"


async def test_a_clock_that_went_back_reaps_nothing(broker: Broker) -> None:
    """After a failover to a server whose clock is behind, deadlines would lie far ahead: they begin anew."""
    await move_clock(broker, 3_600_000)
    holder = await running(broker)
    await move_clock(broker, 0)

    assert await claim(broker, worker="w2") == []
    claimed = await queue.claim(broker, queue_key(broker), worker="w2", slots=1, lease=15, budget=5)
    assert (claimed.wait or 0) <= 15
    assert await queued(broker) == ([], [holder.job.id])


async def test_an_outage_that_outlived_the_tick_reaps_nothing(broker: Broker) -> None:
    holder = await running(broker)
    await command(broker, "DEL", f"{queue_key(broker)}:tick")
    await move_clock(broker, 86_400_000)

    assert await claim(broker, worker="w2") == []
    assert await renew(broker, holder.job.id) == {}


async def test_a_lapsed_job_whose_turn_moved_on_is_dropped(broker: Broker) -> None:
    holder = await running(broker)
    await transitions.interrupt(broker, holder.session_id, holder.turn)
    await start(broker, holder.session_id)
    for stale in (holder.job.id, "nonsense"):
        await command(broker, "ZADD", f"{queue_key(broker)}:running", 1, stale)
        await command(broker, "SET", f"arq:job:{stale}", "x")

    assert await claim(broker, slots=0) == []

    waiting, held = await queued(broker)
    assert (len(waiting), held) == (1, [])
    assert await keys_of(broker, "job") == [f"arq:job:{waiting[0]}"]


async def test_a_token_that_is_handed_on_lives_no_longer_than_others(broker: Broker) -> None:
    wake = f"{queue_key(broker)}:wake"
    await queue.hand_on(broker, wake, "job")

    assert await command(broker, "LRANGE", wake, 0, -1) == [b"job"]
    assert 0 < await command(broker, "PTTL", wake) <= 60_000


# Renew: registration, and what was lost.


async def test_renew_registers_the_worker(broker: Broker) -> None:
    await renew(broker, worker="w5")

    base = broker.keys.base(0)
    assert await command(broker, "ZRANGE", f"{base}workers", 0, -1) == [b"w5"]
    assert await command(broker, "ZRANGE", f"{base}workers:agent", 0, -1) == [b"w5"]
    assert await command(broker, "HMGET", f"{base}worker:w5", "slots", "version") == [b"3", b"1"]
    assert 0 < await command(broker, "PTTL", f"{base}worker:w5") <= lease_ms(broker) * 4
    for listing in ("workers", "workers:agent"):  # else those of an agent that nobody serves any more stay for ever
        assert lease_ms(broker) * 4 < await command(broker, "PTTL", base + listing) <= 86_400_000
    await move_clock(broker, lease_ms(broker) + 1)
    await renew(broker, worker="w6")
    assert await command(broker, "ZRANGE", f"{base}workers:agent", 0, -1) == [b"w6"]


async def test_a_worker_without_slots_renews_and_is_not_registered(broker: Broker) -> None:
    holder = await running(broker)
    await move_clock(broker, lease_ms(broker) // 4)
    await renew(broker, holder.job.id, slots=0)

    assert await keys_of(broker, "worker", "workers") == []
    await move_clock(broker, lease_ms(broker) // 2)
    await renew(broker)
    await move_clock(broker, lease_ms(broker) * 3 // 4)
    await renew(broker)
    await move_clock(broker, lease_ms(broker) + 1)
    assert await claim(broker, slots=0) == []
    assert await queued(broker) == ([], [holder.job.id])


async def test_leaving_rings_for_what_is_due(broker: Broker) -> None:
    """The worker that leaves may have been given the token, and does nothing with it."""
    session_id = await open_session(broker)
    await start(broker, session_id)
    wake = f"{queue_key(broker)}:wake"
    token = await command(broker, "LPOP", wake)

    await queue.leave(broker, queue_key(broker), worker="w5", agent="agent", budget=5)

    assert await command(broker, "LRANGE", wake, 0, -1) == [token]


async def test_leaving_takes_the_worker_out(broker: Broker) -> None:
    await renew(broker, worker="w5")
    await queue.leave(broker, queue_key(broker), worker="w5", agent="agent", budget=5)

    assert await keys_of(broker, "worker", "workers") == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("lapsed", "lost"),
        ("released", "lost"),
        ("interrupted", "ended"),
        ("interrupted and sent again", "ended"),
        ("parked", None),  # its own doing: that write's reply says so
        ("finished", None),
    ],
)
async def test_renew_says_what_is_held_no_longer_and_why(broker: Broker, how: str, why: str | None) -> None:
    lost, kept = await running(broker), await running(broker)
    if how == "lapsed":
        await command(broker, "ZADD", f"{queue_key(broker)}:running", 1, lost.job.id)
        await claim(broker, slots=0)
    elif how.startswith("interrupted"):
        await transitions.interrupt(broker, lost.session_id, lost.turn)
        if how.endswith("again"):
            await start(broker, lost.session_id)
    elif how == "finished":
        await lost.finish()
    elif how == "parked":
        await lost.append(*ask("c"))
        await lost.park()
    else:
        await runs.release(broker, lost.session_id, lost.fence, budget=5)

    assert await renew(broker, lost.job.id, kept.job.id) == ({lost.job.id: why} if why else {})


# Sweep.


async def test_the_sweeper_puts_orphans_back_and_is_safe_twice(broker: Broker) -> None:
    """Neither queued nor running nor parked: what a broker leaves behind that lost a part of its keys."""
    orphan, fine = await running(broker), await running(broker)
    parked = await running(broker)
    await parked.append(*ask("c"))
    await parked.park()
    await start(broker, await open_session(broker))
    await command(broker, "ZREM", f"{queue_key(broker)}:running", orphan.job.id)

    assert [await queue.sweep(broker, 0), await queue.sweep(broker, 0)] == [1, 0]

    waiting, held = await queued(broker)
    assert held == [fine.job.id]
    assert sorted(job_id.rpartition(":")[2] for job_id in waiting) == ["1", "2"]
    assert (await orphan.append())[0] == "superseded"
    assert await fields(broker, parked.session_id, "job") == ["parked"]
    assert (await answer(broker, parked.session_id, "c")) == transitions.Answered()


async def test_the_sweeper_forgets_sessions_that_are_gone(broker: Broker) -> None:
    await command(broker, "ZADD", f"{broker.keys.base(0)}active", 1, SESSION)
    ended = await running(broker)
    await ended.finish()
    await command(broker, "ZADD", f"{broker.keys.base(0)}active", 1, ended.session_id)

    assert await queue.sweep(broker, 0) == 0
    assert await command(broker, "ZCARD", f"{broker.keys.base(0)}active") == 0


async def test_the_sweeper_reads_page_after_page(broker: Broker) -> None:
    """More orphans than a page, with sessions among them that are gone: none is passed over."""
    for _ in range(130):
        await start(broker, await open_session(broker))
    gone = [f"0-{at:08x}-8c1e-4b7a-9f5e-0a4c8f1d2b3c" for at in range(60)]
    for session_id in gone:
        await command(broker, "ZADD", f"{broker.keys.base(0)}active", 1, session_id)
    await command(broker, "DEL", queue_key(broker))

    assert await queue.sweep(broker, 0) == 130
    assert await command(broker, "ZCARD", f"{broker.keys.base(0)}active") == 130


@pytest.mark.parametrize("prefix", ["ts:", "app", "app-", "a_b.", "app1", "app10", "0-"])
@pytest.mark.parametrize("shard", [0, 1, 10])
async def test_a_job_is_read_whatever_the_prefix_ends_with(prefix: str, shard: int, embedded_broker: Broker) -> None:
    """By Python, and by the script that puts a lapsed job back."""
    settings = embedded_broker.settings.model_copy(update={"prefix": prefix, "shards": 11})
    broker = Broker(settings, embedded_broker.embedded)
    session = f"{shard}-{new_id()}"
    await transitions.open_session(broker, session, transitions.SessionOptions(agent="a", queue="a", digest="d"))
    entry = {"type": "message", "id": "u", "role": "user", "content": []}
    message = contents.Message(tails=[entry_tail("entryCompleted", entry)], digest="m")
    sent = await transitions.start(broker, session, message, key=None, join=False)
    assert isinstance(sent, transitions.Sent)
    line = broker.keys.queue(shard, "a")

    for wake in (1, 2):
        (claimed,) = (await queue.claim(broker, line, worker="w", slots=1, lease=0.001, budget=5)).jobs
        for job in (queue.read_job(*claimed), queue.named_job(claimed[0])):
            assert (job.session_id, job.turn_id, job.wake) == (session, sent.turn, wake)
        for _ in range(2):  # one look finds the lease lapsed unseen, the next puts the job back under its next wake
            await asyncio.sleep(0.005)
            await queue.claim(broker, line, worker="w", slots=0, lease=60, budget=5)
    await broker.close()
