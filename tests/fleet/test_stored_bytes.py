"""What is stored follows the finished text, not the number of deltas; its life is set by the session's end (F47)."""

from __future__ import annotations

from fleet import Fleet

import api_shim as agents
from api_shim.local import place_of


async def stored(session: agents.Session, fleet: Fleet) -> int:
    """Bytes that all of a session's keys take."""
    client = place_of(fleet.url).broker.client
    keys = [key async for key in client.scan_iter(match=f"{fleet.prefix}*{session.id}*", count=1000)]
    return sum([await client.memory_usage(key, samples=0) or 0 for key in keys])


async def test_2000_deltas_take_no_more_than_one_message_of_their_text(fleet: Fleet, clerk: agents.Agent) -> None:
    with fleet.worker():
        streamed, whole = await clerk.start_session(), await clerk.start_session()
        for _ in range(2):
            state = await streamed.run("stream 2000")
            assert isinstance(state, agents.Completed)
            assert len(state.text) == 10_000
        for _ in range(2):
            await whole.run("w" * 9_990)

        assert await stored(streamed, fleet) < 2 * await stored(whole, fleet)
        log = place_of(fleet.url).broker.keys.of("log", streamed.id)
        assert await place_of(fleet.url).broker.client.xlen(log) < 2 * 12


async def test_an_open_session_has_no_ttl_and_an_ended_one_has_it_on_every_key(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    client = place_of(fleet.url).broker.client
    with fleet.worker():
        session = await clerk.start_session()
        await session.run("hello")

        keys = [key async for key in client.scan_iter(match=f"{fleet.prefix}*{session.id}*")]
        assert {await client.pttl(key) for key in keys} == {-1}
        await session.cancel()
        keys = [key async for key in client.scan_iter(match=f"{fleet.prefix}*{session.id}*")]
        assert keys
        for key in keys:
            assert 0 < await client.pttl(key) <= 7 * 86_400_000
