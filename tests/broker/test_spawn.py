"""A tree of sessions, in the scripts: how a child starts, what it tells upward, and how a tree ends."""

from __future__ import annotations

from typing import Any

import holders
import pytest
from holders import Holder, answer, ask, called, fields, keys_of, kinds, records, result, running, tool_started

from broker import dead_letters, runs, transitions
from broker.broker import Broker
from broker.contents import Message
from broker.deadlines import expire
from broker.keys import new_id
from broker.protocol.errors import UnsupportedSessionProcedureError
from broker.protocol.wire import INLINE_LIMIT, entry_tail
from broker.runs import Child, SpawnCall, Superseded, Write


def child_of(*, call: str = "c", entry: str | None = None, agent: str = "helper") -> Child:
    """A child that answers the call `c`."""
    entry = entry or new_id()
    return Child(
        session_id=f"0-{new_id()}",
        turn_id=new_id(),
        agent=agent,
        path=[agent],
        customization=b"{}",
        call=SpawnCall(entry, call),
        cut=entry_tail("entryCompleted", result(call, "the child was cut", entry_id=entry)),
        task=Message(tails=[holders.message("the task")], digest="", preview=b'"the task"'),
    )


async def spawn(holder: Holder, child: Child, *, limit: int = 10, op: int | None = None) -> tuple[int, str] | None:
    """Spawn a child as the holder's next write."""
    if op is None:
        op = holder.op = holder.op + 1
    write = Write(holder.session_id, holder.fence, op, holder.seen)
    done = await runs.spawn(
        holder.broker, write, child, tool_started(child.call.call, child.call.entry), limit=limit, budget=5
    )
    if done is not None:
        holder.seen = done[1]
    return done


async def family(broker: Broker, *, take_up: bool = True) -> tuple[Holder, Child, Holder | None]:
    """A parent that has parked for its child, and the child's holder."""
    parent = await running(broker)
    child = child_of()
    await parent.append(*called("c"))
    await spawn(parent, child)
    await parent.park()
    return parent, child, await holders.hold(broker, worker="w2") if take_up else None


def end_of(child: Child, text: str = "done") -> bytes:
    return entry_tail("entryCompleted", result("c", text, entry_id=child.call.entry))


async def finish(holder: Holder, report: bytes = b"") -> bool:
    """Let a child's turn end, with what its parent gets for it."""
    await holder.see()
    holder.op += 1
    write = Write(holder.session_id, holder.fence, holder.op, holder.seen)
    return await runs.finish(holder.broker, write, holders.ENDED, report=report, budget=5)


async def texts(broker: Broker, session_id: str) -> list[str]:
    """The texts of the results in a log."""
    entries = [record["entry"] for record in await records(broker, session_id) if record["type"] == "entryCompleted"]
    return [entry["content"][0]["text"] for entry in entries if entry["type"] == "toolResult"]


async def test_a_child_is_a_session_of_the_same_queue(broker: Broker) -> None:
    parent, child, held = await family(broker)
    assert held is not None
    assert held.session_id == child.session_id
    assert kinds(await records(broker, child.session_id)) == [
        *("entryAdded", "entryCompleted", "turnStarted", "sessionUpdated(running)"),
    ]
    of = await fields(broker, child.session_id, "parent", "root", "agent", "queue", "path")
    assert of == [parent.session_id, parent.session_id, "helper", "agent", "helper"]
    assert await keys_of(broker, "children", "spawned") == [
        f"children:{parent.session_id}",
        f"spawned:{parent.session_id}",
    ]


async def test_begin_tells_a_child_what_it_answers(broker: Broker) -> None:
    _, child, _ = await family(broker, take_up=False)
    (job,) = await holders.claim(broker)
    begun = await holders.begin(broker, job)
    assert isinstance(begun, runs.Begun)
    assert (begun.agent, begun.path, begun.spawned) == ("agent", ("helper",), child.call)


async def test_a_repeated_spawn_starts_one_child(broker: Broker) -> None:
    parent = await running(broker)
    child = child_of()
    await parent.append(*called("c"))
    first = await spawn(parent, child)
    assert await spawn(parent, child, op=parent.op) == first
    assert len(await keys_of(broker, "log")) == 2
    assert kinds(await records(broker, parent.session_id)).count("entryAdded") == 3


async def test_a_run_that_was_fenced_off_starts_none(broker: Broker) -> None:
    parent = await running(broker)
    await runs.release(broker, parent.session_id, parent.fence, budget=5)
    with pytest.raises(Superseded):
        await spawn(parent, child_of())
    assert await keys_of(broker, "children", "spawned") == []


async def test_over_the_limit_nothing_starts_and_nothing_is_written(broker: Broker) -> None:
    parent = await running(broker)
    await parent.append(*called("c"), *called("d"))
    assert await spawn(parent, child_of(), limit=1) is not None
    before = await records(broker, parent.session_id)
    assert await spawn(parent, child_of(call="d"), limit=1) is None
    assert await records(broker, parent.session_id) == before
    assert len(await keys_of(broker, "log")) == 2


async def test_a_childs_end_is_the_calls_result_and_wakes_its_parent(broker: Broker) -> None:
    parent, child, held = await family(broker)
    assert held is not None
    assert await finish(held, end_of(child))
    assert await texts(broker, parent.session_id) == ["done"]
    (job,) = await holders.claim(broker)
    assert (job.session_id, job.wake) == (parent.session_id, 2)
    assert await keys_of(broker, "spawned") == []


async def test_a_childs_long_answer_is_a_blob_of_its_parent(broker: Broker) -> None:
    parent, child, held = await family(broker)
    assert held is not None
    text = "x" * (INLINE_LIMIT + 1)
    await finish(held, end_of(child, text))
    assert await texts(broker, parent.session_id) == [text]
    assert await keys_of(broker, "blobs") == [f"blobs:{parent.session_id}"]


async def test_a_parent_that_runs_is_told_and_a_queued_one_reads_it_anyway(broker: Broker) -> None:
    parent = await running(broker)
    child = child_of()
    await parent.append(*called("c"))
    await spawn(parent, child)
    held = await holders.hold(broker, worker="w2")
    await finish(held, end_of(child))
    assert await fields(broker, parent.session_id, "job") == ["running"]
    assert (await parent.write("park"))[0] == "more"


async def test_the_end_of_a_child_that_was_cut_is_what_was_kept_for_it(broker: Broker) -> None:
    parent, child, _ = await family(broker)
    assert await transitions.interrupt(broker, child.session_id, child.turn_id) is None
    assert await texts(broker, parent.session_id) == ["the child was cut"]
    assert await fields(broker, parent.session_id, "job") == ["queued"]


async def test_a_child_whose_workers_are_lost_ends_its_call_too(broker: Broker) -> None:
    parent, child, held = await family(broker)
    assert held is not None
    await holders.command(
        broker, "HSET", broker.keys.of("session", child.session_id), "attempts", broker.settings.max_attempts
    )
    assert await holders.begin(broker, await holders.lost(broker, held.job), fence="w3:1") == "dead"
    assert await texts(broker, parent.session_id) == ["the child was cut"]
    letter = await dead_letters.read_letter(broker, child.session_id, child.turn_id)
    assert (letter.agent_name, letter.parent_id) == ("helper", parent.session_id)
    with pytest.raises(UnsupportedSessionProcedureError, match="its parent was told"):
        await dead_letters.retry(broker, child.session_id, child.turn_id)


async def test_a_child_writes_nothing_into_a_parent_whose_turn_has_ended(broker: Broker) -> None:
    parent, child, held = await family(broker)
    assert held is not None
    await transitions.interrupt(broker, parent.session_id, parent.turn)
    before = await records(broker, parent.session_id)
    assert (await fields(broker, child.session_id, "turn")) == [""]
    with pytest.raises(Superseded):
        await finish(held, end_of(child))
    assert await records(broker, parent.session_id) == before
    for session_id in (parent.session_id, child.session_id):
        holders.expect_whole(await records(broker, session_id))


async def test_a_childs_question_is_asked_of_each_session_above(broker: Broker) -> None:
    parent, _, held = await family(broker)
    assert held is not None
    inner = child_of(call="i", agent="inner")
    await held.append(*called("i"))
    await spawn(held, inner)
    lowest = await holders.hold(broker, worker="w3")
    first, second = new_id(), new_id()
    await lowest.append(*ask(first))
    await lowest.append(*ask(second))
    for each in (parent, held):
        state = await transitions.record(broker, each.session_id, each.turn)
        assert isinstance(state, transitions.OpenRecord)
        assert {found.session_id for found in state.callbacks} == {inner.session_id}
        assert len({found.place for found in state.callbacks}) == 2
        assert kinds(await records(broker, each.session_id)).count("turnUpdated(blocked)") == 1
    await answer(broker, inner.session_id, first)
    assert kinds(await records(broker, parent.session_id)).count("turnUpdated(running)") == 0
    await answer(broker, inner.session_id, second)
    for each in (parent, held):
        assert kinds(await records(broker, each.session_id))[-1] == "turnUpdated(running)"
        assert await keys_of(broker, "asked") == []


async def test_an_own_question_and_a_childs_block_once(broker: Broker) -> None:
    parent = await running(broker)
    child, own, theirs = child_of(), new_id(), new_id()
    await parent.append(*called("c"), *ask(own))
    await spawn(parent, child)
    held = await holders.hold(broker, worker="w2")
    await held.append(*ask(theirs))
    await answer(broker, parent.session_id, own)
    assert "turnUpdated(running)" not in kinds(await records(broker, parent.session_id))
    assert await answer(broker, parent.session_id, theirs) is None  # it is answered in its own session
    await answer(broker, child.session_id, theirs)
    found = kinds(await records(broker, parent.session_id))
    assert [kind for kind in found if kind.startswith("turnUpdated")] == [
        "turnUpdated(blocked)",
        "turnUpdated(running)",
    ]


async def test_a_childs_question_that_expires_lets_its_root_go_on(broker: Broker) -> None:
    broker.settings = broker.settings.model_copy(update={"callback_timeout": 60.0})
    parent, _, held = await family(broker)
    assert held is not None
    await held.append(*ask(new_id()))
    await holders.move_clock(broker, 61_000)
    await expire(broker, 0)
    assert kinds(await records(broker, parent.session_id))[-1] == "turnUpdated(running)"
    assert await keys_of(broker, "asked") == []


@pytest.mark.parametrize("verb", ["start", "steer", "cancel"])
async def test_what_a_childs_session_refuses(broker: Broker, verb: str) -> None:
    _, child, _ = await family(broker)
    before = await records(broker, child.session_id)
    refused: Any = {
        "start": lambda: transitions.start(broker, child.session_id, holders.sent(), key=None, join=True),
        "steer": lambda: transitions.steer(broker, child.session_id, child.turn_id, holders.sent()),
        "cancel": lambda: transitions.cancel(broker, child.session_id),
    }[verb]
    with pytest.raises(UnsupportedSessionProcedureError, match=child.session_id):
        await refused()
    assert await records(broker, child.session_id) == before


async def test_a_cancelled_tree_leaves_nothing_but_what_retention_keeps(broker: Broker) -> None:
    parent, child, held = await family(broker)
    assert held is not None
    await held.append(*ask(new_id()))
    await transitions.cancel(broker, parent.session_id)
    assert await keys_of(broker, "asked", "spawned", "open", "text", "job") == []
    for session_id in (parent.session_id, child.session_id):
        assert await fields(broker, session_id, "status", "termination") == ["terminated", "cancelled"]
        for kind in ("session", "log", "turns"):
            assert await holders.command(broker, "PTTL", broker.keys.of(kind, session_id)) > 0
    assert await holders.command(broker, "PTTL", broker.keys.of("children", parent.session_id)) > 0
    assert await holders.queued(broker) == ([], [])
