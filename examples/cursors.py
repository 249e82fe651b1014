"""Cursors: an event's id is a cursor. Read a session again, from the start or after any event, and miss nothing.

    python examples/cursors.py

It prints:

    live: EntryAdded, EntryCompleted, TurnStarted, SessionUpdated, EntryAdded, TextDelta, EntryCompleted, TurnUpdated, TurnEnded
    the same when read again: True
    after the third event there are 6 of 9
    the second turn alone: user: Two? | assistant: Two?
    entries, without events: One?, One?, Two?, Two?
    after the last record: SessionUpdated
"""

from __future__ import annotations

import asyncio

import api_shim as agents

parrot = agents.Agent(name="parrot", model="scripted:echo")


def lasting(events: list[agents.Event]) -> list[agents.Event]:
    """Without deltas: a replay has the first one of each message, the text is in the completed entry."""
    return [event for event in events if not isinstance(event, agents.TextDelta)]


async def main() -> None:
    session = await parrot.start_session()
    live: list[agents.Event] = []
    turn = await session.send_message("One?")
    await turn.result(on_event=live.append)
    print("live:", ", ".join(type(event).__name__ for event in live))

    again = [event async for event in turn.iter_events()]
    print("the same when read again:", lasting(again) == lasting(live))
    rest = [event async for event in turn.iter_events(after=live[2].id)]
    print("after the third event there are", len(rest), "of", len(live))

    turn = await session.send_message("Two?")
    record = await turn.result()
    said = []
    async for event in turn.iter_events():
        match event:
            case agents.EntryCompleted(agents.MessageEntry(role) as message):
                said.append(f"{role}: {message.text}")
    print("the second turn alone:", " | ".join(said))
    texts = [entry.text async for entry in session.history() if isinstance(entry, agents.MessageEntry)]
    print("entries, without events:", ", ".join(texts))

    await session.cancel()
    left = [event async for event in session.iter_events(after=record)]  # a record is a cursor too; the end ends it
    print("after the last record:", ", ".join(type(event).__name__ for event in left))


if __name__ == "__main__":
    asyncio.run(main())
