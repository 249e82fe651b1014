"""What a viewer has seen of a turn that was interrupted is in the log that is read afterwards (F32)."""

from __future__ import annotations

import asyncio
import os
import random

from fleet import Fleet

import api_shim as agents
from api_shim.local import place_of
from broker.keys import new_id
from broker.protocol.content import content_text
from broker.seen_check import check_seen
from broker.stored_session import read_stored

TURNS = 40
WORDS = 200


async def watched(session: agents.Session) -> list[agents.Event]:
    """What a viewer sees until the turn ends."""
    seen = []
    async for event in session.iter_events():
        seen.append(event)
        if isinstance(event, agents.TurnEnded):
            break
    return seen


async def test_an_interrupt_loses_nothing_that_was_seen(fleet: Fleet, clerk: agents.Agent) -> None:
    seed = int(os.environ.get("TURNSTREAM_TEST_SEED") or new_id()[:8], 16)
    print(f"TURNSTREAM_TEST_SEED={seed:08x}")
    dice = random.Random(seed)  # noqa: S311 - moments, no secrets

    async def cut(session: agents.Session, at: int, wait: float) -> tuple[list[agents.Event], bool]:
        """Send a message, and interrupt its turn when the viewer has seen so many deltas."""
        viewer = asyncio.create_task(watched(session))
        turn = await session.send_message(f"stream {WORDS}")
        deltas = 0
        async for event in session.iter_events():
            deltas += isinstance(event, agents.TextDelta)
            if deltas >= at or isinstance(event, agents.TurnEnded):
                break
        await asyncio.sleep(wait)
        await turn.interrupt()
        return await asyncio.wait_for(viewer, 30), isinstance(await turn.get(), agents.Interrupted)

    with fleet.worker("--slots", "50"):
        sessions = [await clerk.start_session() for _ in range(TURNS)]
        cuts = [cut(session, dice.randrange(WORDS // 4), dice.uniform(0, 0.05)) for session in sessions]
        seen = await asyncio.gather(*cuts)

    broker, interrupted = place_of(fleet.url).broker, 0
    for session, (events, cut_off) in zip(sessions, seen, strict=True):
        assert check_seen(events, (await read_stored(broker, session.id)).records, live=True) == []
        read: dict[str, str] = {}
        async for event in agents.session(session.id).iter_events():
            if isinstance(event, agents.EntryCompleted) and isinstance(event.entry, agents.MessageEntry):
                read[event.entry.id] = content_text(event.entry.content)
            if isinstance(event, agents.TurnEnded):
                break
        shown: dict[str, str] = {}
        for event in events:
            if isinstance(event, agents.TextDelta):
                shown[event.entry_id] = shown.get(event.entry_id, "") + event.text
        for entry_id, text in shown.items():
            assert read[entry_id] == text
        interrupted += cut_off and bool(shown)
    assert interrupted > TURNS // 2
