"""Observers: any number of them follow one session, each from where it likes, and none is in another's way.

    python examples/observers.py

It prints:

    [typist] The quick brown fox jumps.
    [dropping] 3 events, then 7 more
    [late] The quick brown fox jumps.
    all saw the same: True
"""

from __future__ import annotations

import asyncio

import api_shim as agents

storyteller = agents.Agent(
    name="storyteller",
    model=agents.ScriptedModel([agents.ScriptedReply(text="The quick brown fox jumps.", delay=0.02)]),
)


async def typist(session: agents.Session) -> list[agents.Event]:
    """A window that shows the reply as it is written: the deltas, and what of the text it missed."""
    seen, text = [], ""
    async for event in session.iter_events():
        seen.append(event)
        match event:
            case agents.TextDelta(text=more):
                text += more
            case agents.EntryCompleted(agents.MessageEntry(role="assistant") as reply):
                assert reply.text.startswith(text)
                print("[typist]", reply.text)
    return seen


async def dropping(session: agents.Session) -> list[agents.Event]:
    """A reader that loses its connection after three events, and comes back with the last cursor."""
    seen = []
    async for event in session.iter_events():
        seen.append(event)
        if len(seen) == 3:
            break
    return seen + [event async for event in session.iter_events(after=seen[-1].id)]


async def late(session_id: str) -> list[agents.Event]:
    """Someone who comes when all is over, with nothing but the session's id."""
    return [event async for event in agents.session(session_id).iter_events()]


def lasting(events: list[agents.Event]) -> list[agents.Event]:
    """All but the deltas, which are live only (a replay has the first one of each message)."""
    return [event for event in events if not isinstance(event, agents.TextDelta)]


async def main() -> None:
    session = await storyteller.start_session()
    window, reader = asyncio.create_task(typist(session)), asyncio.create_task(dropping(session))
    await session.run("Tell me a story.")
    await session.cancel()  # observers end with the session
    seen = [await window, await reader, await late(session.id)]
    print("[dropping] 3 events, then", len(lasting(seen[1])) - 3, "more")
    print("[late]", next(event.state.text for event in seen[2] if isinstance(event, agents.TurnEnded)))
    print("all saw the same:", lasting(seen[0]) == lasting(seen[1]) == lasting(seen[2]))


if __name__ == "__main__":
    asyncio.run(main())
