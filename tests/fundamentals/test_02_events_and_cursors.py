"""2. Events and cursors.

Whatever happens in a session is an event in its log, in one order that is the same for every reader. An event's id is a cursor: a
place in the log, from which a reader goes on, in this process or in another, tomorrow.
"""

from __future__ import annotations

import asyncio

import pytest
from homes import Home

import api_shim as agents

WORDS = agents.ScriptedModel([agents.ScriptedReply(text="one two three", delay=0.01)])


def names(events: list[agents.Event]) -> list[str]:
    return [type(event).__name__ for event in events if not isinstance(event, agents.TextDelta)]


async def test_a_turn_is_a_row_of_events_with_its_record_last(home: Home) -> None:
    """The user's message is the first event, not the turn's start: the log has what was said, in the order it was said."""
    session = await (await home.agent(WORDS)).start_session()
    seen: list[agents.Event] = []
    state = await session.run("Count.", on_event=seen.append)

    assert names(seen) == [
        "EntryAdded", "EntryCompleted",  # the user's message
        "TurnStarted", "SessionUpdated",
        "EntryAdded", "EntryCompleted",  # the model's
        "TurnUpdated", "TurnEnded",
    ]  # fmt: skip
    assert isinstance(seen[-1], agents.TurnEnded)
    assert seen[-1].state == state


async def test_text_comes_live_in_deltas_and_whole_in_the_entry(home: Home) -> None:
    """Deltas are for watching: they may be missed. The completed entry is for keeping: it has the whole text."""
    session = await (await home.agent(WORDS)).start_session()
    text, whole = "", ""

    def read(event: agents.Event) -> None:
        nonlocal text, whole
        match event:
            case agents.TextDelta(text=more):
                text += more
            case agents.EntryCompleted(agents.MessageEntry(role="assistant") as reply):
                whole = reply.text

    await session.run("Count.", on_event=read)
    assert whole == "one two three"
    assert whole.startswith(text)
    assert text


async def test_a_reader_that_comes_back_with_its_cursor_misses_nothing(home: Home) -> None:
    """Stop after any event, go on after it: the two parts are the log."""
    session = await (await home.agent(WORDS)).start_session()
    await session.run("Count.")
    await session.cancel()
    log = [event async for event in session.iter_events()]

    for at in range(1, len(log)):
        rest = [event async for event in session.iter_events(after=log[at - 1].id)]
        # The first delta carries its entry's id: a reader after that entry has it behind it.
        assert names(log[:at]) + names(rest) == names(log)


async def test_any_number_of_observers_see_the_same(home: Home) -> None:
    """An observer only reads. One that comes late reads the past first, then goes on live."""
    session = await (await home.agent(WORDS)).start_session()

    async def observe() -> list[str]:
        return names([event async for event in session.iter_events()])

    early = [asyncio.create_task(observe()) for _ in range(3)]
    await session.run("Count.")
    late = asyncio.create_task(observe())
    await session.cancel()

    first, *others = await asyncio.gather(*early, late)
    assert others == [first] * 3
    assert first[-1] == "SessionUpdated"


async def test_a_record_is_a_cursor_too(home: Home) -> None:
    """Reading after a turn's record gives the next turn, and nothing of that one."""
    session = await (await home.agent("scripted:echo")).start_session()
    first = await session.run("One.")
    assert isinstance(first, agents.Completed)
    second = await session.send_message("Two.")
    await second.result()
    said = [
        event.entry.text
        async for event in second.iter_events(after=first)
        if isinstance(event, agents.EntryCompleted) and isinstance(event.entry, agents.MessageEntry)
    ]

    assert said == ["Two.", "Two."]


async def test_a_cursor_of_another_session_is_refused(home: Home) -> None:
    agent = await home.agent("scripted:echo")
    one, other = await agent.start_session(), await agent.start_session()
    state = await one.run("Hello.")
    assert isinstance(state, agents.Completed)

    with pytest.raises(agents.InvalidCursorError):
        await anext(other.iter_events(after=state))
