"""An answer that lands at any point around parking wakes its turn, and only once (F35)."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from broker import queue, runs, transitions
from broker.broker import Broker
from broker.contents import Message
from broker.keys import new_session_id
from broker.protocol.wire import entry_tail, resolved_tail, tail
from broker.transitions import SessionOptions

POINTS = ("before append", "after append", "before park", "after park", "while queued")


async def waiting_turn(broker: Broker) -> tuple[str, str, runs.Write]:
    """A session whose turn a run holds; nothing is asked yet."""
    session = new_session_id(1)
    await transitions.open_session(broker, session, SessionOptions(agent="a", queue="a", digest="d"))
    entry: dict[str, Any] = {"type": "message", "id": "u", "role": "user", "content": [{"type": "text", "text": "x"}]}
    message = Message(tails=[entry_tail("entryCompleted", entry)], digest="m")
    sent = await transitions.start(broker, session, message, key=None, join=False)
    assert isinstance(sent, transitions.Sent)
    write = await take_up(broker, session)
    assert write is not None
    return session, sent.turn, write


async def take_up(broker: Broker, session: str) -> runs.Write | None:
    """Claim and begin the session's job, as a worker would; None when there is none."""
    key = broker.keys.queue(0, "a")
    claimed = await queue.claim(broker, key, worker="w", slots=1, lease=60, budget=5)
    if not claimed.jobs:
        return None
    job = queue.read_job(*claimed.jobs[0])
    fence = f"w:{job.wake}"
    begun = await runs.begin(
        broker, session, job=job.id, turn=job.turn_id, wake=job.wake, fence=fence, worker="w", after="0-0", page=200
    )
    assert isinstance(begun, runs.Begun)
    return runs.Write(session, fence, 1, begun.last)


def question(callback: str) -> list[str | bytes]:
    return ["q", callback, tail({"type": "callbackOpened", "callback": {"type": "approval", "id": callback}})]


async def answer(broker: Broker, session: str, callback: str) -> object:
    return await transitions.answer(broker, session, callback, resolved_tail(callback, "answered", {"type": "allow"}))


async def resume_once(broker: Broker, chance: random.Random) -> None:
    """Two questions; each is answered at a point that chance picks; whoever decides to park folds the news first."""
    session, turn, write = await waiting_turn(broker)
    at = {callback: chance.choice(POINTS) for callback in ("c1", "c2")}

    async def reach(point: str) -> None:
        due = [callback for callback, when in at.items() if when == point]
        if point == "before append":
            for callback in due:
                assert await answer(broker, session, callback) is None  # it was never asked
                at[callback] = "after append"
        else:
            for outcome in await asyncio.gather(*(answer(broker, session, callback) for callback in due)):
                assert outcome == transitions.Answered()

    await reach("before append")
    _, last = await runs.append(broker, write, question("c1") + question("c2"), budget=5)
    await reach("after append")
    await reach("before park")
    parked = await runs.park(broker, runs.Write(session, write.fence, 2, last), budget=5)
    early = [callback for callback, when in at.items() if when in ("after append", "before park")]
    assert parked == (not early)
    op = 3
    if not parked:  # there was news: fold it, and park if a question is still open
        if len(early) == 2:
            return  # the run goes on by itself: it never left
        seen = (await transitions.tails(broker, [session]))[0] or ""
        assert await runs.park(broker, runs.Write(session, write.fence, op, seen), budget=5)
    await reach("after park")
    assert await broker.client.zcard(broker.keys.queue(0, "a")) == ("after park" in at.values())
    await reach("while queued")

    jobs = 0
    while (resumed := await take_up(broker, session)) is not None:
        jobs += 1
        assert await runs.finish(broker, resumed, tail({"type": "turnEnded", "state": {"type": "completed"}}), budget=5)
    assert jobs == 1
    record = await transitions.record(broker, session, turn)
    assert isinstance(record, transitions.EndedRecord)


@pytest.mark.parametrize("seed", range(20))
async def test_the_turn_resumes_exactly_once(seed: int, redis_broker: Broker) -> None:
    """A thousand orders of asking, answering and parking, fifty to a seed."""
    chance = random.Random(seed)  # noqa: S311 - a seed names the orders
    for _ in range(50):
        await resume_once(redis_broker, chance)
