"""A run's writes: one in flight, each folded once, whatever else reads the log meanwhile."""

from __future__ import annotations

import asyncio

import holders
import pytest
from turns import writer_for

from broker import fault_points, transitions
from broker.broker import Broker
from broker.keys import new_id
from broker.log import read_raw
from broker.protocol.content import content_text
from broker.runs import Child, Gap, SpawnCall, Superseded
from broker.transitions import Raw
from workers import writer as module
from workers.effects import Effects
from workers.fold import Input
from workers.writer import Writer


def message(text: str) -> Effects:
    effects = Effects()
    effects.entry({"type": "message", "id": text, "role": "user", "content": [{"type": "text", "text": text}]})
    return effects


def said(writer: Writer) -> list[str]:
    return [content_text(item.content) for item in writer.history.timeline if isinstance(item, Input)]


async def test_writes_are_folded_in_their_order(broker: Broker) -> None:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)

    await asyncio.gather(*(writer.write(message(str(at))) for at in range(20)))

    assert said(writer) == ["hello", *map(str, range(20))]
    assert writer.history.last == await holders.last_id(broker, holder.session_id)
    assert (await writer_for(broker, holder)).history == writer.history
    assert await holders.fields(broker, holder.session_id, "op") == ["1"]  # what is handed in together goes as one


async def test_what_people_sent_between_is_folded_in_its_place(broker: Broker) -> None:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    await transitions.steer(broker, holder.session_id, holder.turn, holders.sent("between"))

    await writer.write(message("mine"))

    assert said(writer) == ["hello", "between", "mine"]
    assert writer.history.last == await holders.last_id(broker, holder.session_id)


async def test_a_write_that_is_answered_while_the_log_is_read_is_folded_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page read holds the write's own events, and arrives after the write's answer."""
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    written = asyncio.Event()

    async def late(broker: Broker, session_id: str, after_id: str, count: int) -> list[Raw]:
        await written.wait()
        page = await read_raw(broker, session_id, "0-0", count)
        return [raw for raw in page if int(raw.id.partition("-")[0]) > int(after_id.partition("-")[0])]

    monkeypatch.setattr(module, "read_raw", late)
    reading = asyncio.create_task(writer.catch_up())
    await asyncio.sleep(0)
    await writer.write(message("once"))
    written.set()
    await reading

    assert said(writer) == ["hello", "once"]


async def test_two_that_read_the_log_at_once_fold_it_once(broker: Broker) -> None:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    for text in ("one", "two"):
        await transitions.steer(broker, holder.session_id, holder.turn, holders.sent(text))

    await asyncio.gather(writer.catch_up(), writer.write(message("mine")), writer.catch_up())

    assert said(writer) == ["hello", "one", "two", "mine"]
    assert (await writer_for(broker, holder)).history == writer.history


async def test_a_refused_write_is_told_to_everyone_who_waits(broker: Broker) -> None:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    assert await holders.verb_interrupt(broker, holder)

    told = await asyncio.gather(*(writer.write(message(str(at))) for at in range(5)), return_exceptions=True)

    assert [type(each) for each in told] == [Superseded] * 5
    with pytest.raises(Superseded):
        writer.more_text("message", "m", "text")
    assert said(writer) == ["hello"]


async def test_what_a_write_behind_a_gap_met_ends_the_recovery(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn is interrupted just then. To come back with nothing read would have the run recover for ever."""
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    await writer.write(message("lost"))
    await holders.command(broker, "XDEL", broker.keys.of("log", holder.session_id), writer.history.last)

    async def interrupted() -> None:
        await holders.verb_interrupt(broker, holder)

    monkeypatch.setitem(fault_points.armed, "spawn.after", interrupted)
    child = Child(
        session_id=f"0-{new_id()}",
        turn_id=new_id(),
        agent="helper",
        path=("helper",),
        customization=b"",
        call=SpawnCall(new_id(), "c"),
        cut=b"{}",
        task=holders.sent("do"),
    )
    spawning = asyncio.create_task(writer.spawn(child, message("spawned"), 5))
    await asyncio.sleep(0)
    told = await asyncio.gather(spawning, writer.write(message("behind")), return_exceptions=True)
    assert [type(each) for each in told] == [Gap, Superseded]
    assert writer.gap

    with pytest.raises(Superseded):
        await writer.reload()


async def test_a_cancelled_waiter_does_not_take_the_write_back(broker: Broker) -> None:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    waiting = asyncio.create_task(writer.write(message("stays")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    await writer.write(message("next"))

    assert said(writer) == ["hello", "stays", "next"]


async def test_parking_and_ending_wait_for_what_was_handed_in(broker: Broker) -> None:
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    effects = Effects()
    effects.event({"type": "entryAdded", "entry": {"type": "message", "id": "m", "role": "assistant", "content": []}})
    effects.write("m", "message", b'"type":"notice","message":"', b'"}', "one")
    await writer.write(effects)
    writer.more_text("message", "m", " two")

    assert await writer.finish({"type": "completed", "text": ""})

    found = await holders.records(broker, holder.session_id)
    assert [r["message"] for r in found if r["type"] == "notice"][-1] == "one two"


async def test_a_page_of_news_is_not_all_there_is(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAGE", 3)
    holder = await holders.running(broker)
    writer = await writer_for(broker, holder)
    for at in range(7):
        await transitions.steer(broker, holder.session_id, holder.turn, holders.sent(str(at)))

    await writer.catch_up()

    assert said(writer) == ["hello", *map(str, range(7))]
