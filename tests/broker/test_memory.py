"""A server whose memory is full: what runs goes on and ends, what would bring new work is refused whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from holders import (
    Holder,
    ask,
    begin,
    called,
    claim,
    command,
    expect_whole,
    fields,
    kinds,
    last_id,
    lost,
    message,
    more,
    move_clock,
    open_session,
    queued,
    records,
    running,
    sent,
    start,
    writing,
)
from holders import answer as allow
from leaks import drop_keys, leaked_keys
from real_server import RealServer, serving
from test_spawn import child_of, end_of, family, finish, spawn

from broker import contents, queue, runs, transitions
from broker.broker import Broker
from broker.contents import Message
from broker.dead_letters import retry
from broker.deadlines import expire
from broker.keys import new_id, new_session_id
from broker.protocol.errors import SessionBusyError
from broker.settings import Settings
from broker.transitions import Draft, Sent, SessionOptions


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with serving(tmp_path_factory.mktemp("full"), "--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
async def broker(small_server: RealServer) -> AsyncIterator[Broker]:
    broker = Broker(Settings(redis_url=small_server.url, prefix="full:"))
    try:
        yield broker
        assert await leaked_keys(broker.client, "full:") == []
    finally:
        await free(broker)
        await drop_keys(broker.client, "full:")
        await broker.close()


async def fill(broker: Broker) -> None:
    """Let the server hold more than it may. Its scripts are loaded by then, as on a server that has run for a while."""
    await command(broker, "CONFIG", "SET", "maxmemory", "1")


async def free(broker: Broker) -> None:
    await command(broker, "CONFIG", "SET", "maxmemory", "0")


async def everything(broker: Broker) -> list[tuple[bytes, object]]:
    """All that lies in the broker."""
    return [(key, await broker.client.dump(key)) for key in sorted(await broker.client.keys("*"))]


# What runs goes on, and ends.


async def test_a_run_writes_parks_and_is_answered(broker: Broker) -> None:
    holder = await running(broker)
    await fill(broker)

    assert (await holder.append(*writing("message", "m", "one"), *more("m", "two")))[0] == "ok"
    assert (await holder.append(*called("c"), *ask("c1")))[0] == "ok"
    assert await holder.park() == ["parked"]
    assert await allow(broker, holder.session_id, "c1") == transitions.Answered()
    assert len((await queued(broker))[0]) == 1


async def test_a_run_ends(broker: Broker) -> None:
    holder = await running(broker)
    await fill(broker)

    assert (await holder.finish())[0] == "finished"
    expect_whole(await records(broker, holder.session_id))


@pytest.mark.parametrize("verb", ["interrupt", "cancel"])
async def test_a_turn_is_cut(broker: Broker, verb: str) -> None:
    holder = await running(broker)
    await holder.append(*writing("message", "m", "one"), *called("c"), *ask("c1"))
    await fill(broker)

    if verb == "interrupt":
        assert await transitions.interrupt(broker, holder.session_id, holder.turn) is None
    else:
        await transitions.cancel(broker, holder.session_id)

    expect_whole(await records(broker, holder.session_id))
    assert await fields(broker, holder.session_id, "turn") == [""]


async def test_a_session_without_a_turn_is_cancelled(broker: Broker) -> None:
    session_id = await open_session(broker)
    await fill(broker)

    await transitions.cancel(broker, session_id)

    assert await fields(broker, session_id, "status") == ["terminated"]


async def test_a_turn_is_handed_back_and_claimed_and_begun(broker: Broker) -> None:
    """What was accepted is done: a claim brings no new work."""
    holder = await running(broker)
    await fill(broker)

    await runs.release(broker, holder.session_id, holder.fence, budget=5)
    (job,) = await claim(broker)
    begun = await begin(broker, job, fence="w2:1")

    assert isinstance(begun, runs.Begun)
    assert job.wake == 2


async def test_leases_are_renewed_and_lapse(broker: Broker) -> None:
    """Else every run would be lost, and no place be left to write that down."""
    holder, other = await running(broker), await running(broker)
    await fill(broker)
    key = broker.keys.queue(0, "agent")

    lost = await queue.renew(broker, key, [holder.job.id], worker="w1", agent="agent", slots=1, version="1", budget=5)
    assert lost == {}
    await command(broker, "ZREM", f"{key}:running", other.job.id)
    assert await queue.sweep(broker, 0) == 1


async def test_a_turn_whose_workers_are_lost_ends(broker: Broker) -> None:
    holder = await running(broker)
    await command(
        broker, "HSET", broker.keys.of("session", holder.session_id), "attempts", broker.settings.max_attempts
    )
    job = await lost(broker, holder.job)
    await fill(broker)

    assert await begin(broker, job, fence="w2:1") == "dead"
    expect_whole(await records(broker, holder.session_id))


async def test_looking_for_what_is_due_goes_on(broker: Broker) -> None:
    assert (await expire(broker, 0)).wait is None  # as on a server that has run for a while
    await command(broker, "DEL", f"{broker.keys.base(0)}swept")
    await fill(broker)

    assert (await expire(broker, 0)).sweep


async def test_what_is_over_ends(broker: Broker) -> None:
    """A callback expires and its turn goes on; a session that is idle ends, and so does a turn without progress."""
    limits = {"callback_timeout": 60.0, "idle_limit": 300.0, "no_progress": 120.0}
    broker.settings = broker.settings.model_copy(update=limits)
    parked, hung, idle = await running(broker), await running(broker), await open_session(broker)
    await parked.append(*called("c"), *ask("c1"))
    await parked.park()
    await move_clock(broker, 121_000)
    await fill(broker)

    assert (await expire(broker, 0)).wait != 0

    assert len((await queued(broker))[0]) == 1
    assert (await records(broker, hung.session_id))[-2]["state"]["error"]["code"] == "no_progress"
    await free(broker)
    await move_clock(broker, 301_000)
    await fill(broker)
    await expire(broker, 0)
    assert await fields(broker, idle, "status", "termination") == ["terminated", "idle_limit"]


# New work is refused, whole.


def large() -> Message:
    blob = contents.Blob("b", message("x" * 100))
    return Message(
        tails=[(blob, b'"type":"entryCompleted","blob":"b"}'), message("context", role="context")], digest="d"
    )


@pytest.mark.parametrize("contents", [sent(), large()], ids=["small", "blob"])
@pytest.mark.parametrize("active", [False, True])
async def test_a_start_is_refused_whole(broker: Broker, contents: Message, *, active: bool) -> None:
    session_id = await open_session(broker)
    if active:
        await start(broker, session_id)
    await fill(broker)
    before = await everything(broker)

    with pytest.raises(SessionBusyError, match="memory"):
        await transitions.start(broker, session_id, contents, key="k", join=active)

    assert await everything(broker) == before
    await free(broker)
    got = await transitions.start(broker, session_id, contents, key="k", join=active)
    assert isinstance(got, transitions.Sent)
    assert got.started is not active


@pytest.mark.parametrize("contents", [sent(), large()], ids=["small", "blob"])
async def test_a_steer_is_refused_whole(broker: Broker, contents: Message) -> None:
    holder: Holder = await running(broker)
    await fill(broker)
    before = await everything(broker)

    with pytest.raises(SessionBusyError):
        await transitions.steer(broker, holder.session_id, holder.turn, contents)

    assert await everything(broker) == before


async def test_a_dead_letter_is_not_retried_and_stays(broker: Broker) -> None:
    holder = await running(broker)
    await command(broker, "HSET", broker.keys.of("session", holder.session_id), "attempts", 99)
    assert await begin(broker, await lost(broker, holder.job), fence="w2:1") == "dead"
    await fill(broker)
    before = await everything(broker)

    with pytest.raises(SessionBusyError):
        await retry(broker, holder.session_id, holder.turn)

    assert await everything(broker) == before
    await free(broker)
    assert isinstance(await retry(broker, holder.session_id, holder.turn), Sent)


async def test_a_subagent_is_not_started(broker: Broker) -> None:
    parent = await running(broker)
    await parent.append(*called("c"))
    child = child_of()
    assert await spawn(parent, child_of()) is not None  # as on a server that has run for a while
    await fill(broker)
    before = await everything(broker)

    with pytest.raises(SessionBusyError):
        await spawn(parent, child)

    assert await everything(broker) == before


async def test_what_a_subagent_says_upward_is_written(broker: Broker) -> None:
    parent, child, held = await family(broker)
    assert held is not None
    await fill(broker)

    question = new_id()
    assert (await held.append(*ask(question)))[0] == "ok"
    assert await allow(broker, child.session_id, question) == transitions.Answered()
    assert await finish(held, end_of(child))
    assert kinds(await records(broker, parent.session_id))[-1] == "entryCompleted"
    assert len((await queued(broker))[0]) == 1


async def test_a_session_is_not_opened(broker: Broker) -> None:
    session_id = new_session_id(1)
    await fill(broker)

    with pytest.raises(SessionBusyError):
        await transitions.open_session(broker, session_id, SessionOptions(agent="agent", queue="agent", digest="-"))

    assert await broker.client.keys(f"*{session_id}*") == []


async def test_a_page_of_a_starting_history_is_refused_whole(broker: Broker) -> None:
    session_id = new_session_id(1)
    await fill(broker)

    with pytest.raises(SessionBusyError):
        await transitions.stage(broker, session_id, Draft("d", 0), [message("one")], ttl=60)

    assert await broker.client.keys(f"*{session_id}*") == []


async def test_a_session_is_not_opened_with_what_was_staged_and_later_it_is(broker: Broker) -> None:
    session_id = new_session_id(1)
    options = SessionOptions(agent="agent", queue="agent", digest="-")
    draft = await transitions.stage(broker, session_id, Draft("d", 0), [message("one")], ttl=60)
    assert draft is not None
    await fill(broker)
    before = await everything(broker)

    with pytest.raises(SessionBusyError):
        await transitions.open_session(broker, session_id, options, draft)

    assert await everything(broker) == before
    await free(broker)
    assert await transitions.open_session(broker, session_id, options, draft)
    await transitions.cancel(broker, session_id)


async def test_a_title_is_not_changed(broker: Broker) -> None:
    session_id = await open_session(broker, title=b'"old"')
    await fill(broker)

    with pytest.raises(SessionBusyError):
        await transitions.retitle(broker, session_id, title=b'"new"')

    assert await fields(broker, session_id, "title", "n") == ['"old"', "0"]


async def test_a_token_that_nobody_can_hand_on_is_let_go(broker: Broker) -> None:
    await fill(broker)

    await queue.hand_on(broker, f"{broker.keys.queue(0, 'agent')}:wake", "job")

    assert await broker.client.keys("full:*") == []


async def test_reading_goes_on(broker: Broker) -> None:
    holder = await running(broker)
    await fill(broker)

    assert isinstance(await transitions.record(broker, holder.session_id, holder.turn), transitions.OpenRecord)
    assert await transitions.tails(broker, [holder.session_id]) == [await last_id(broker, holder.session_id)]
