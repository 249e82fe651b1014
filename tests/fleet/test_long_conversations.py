"""A conversation of 200,000 tokens that goes on for many tool calls: what is stored grows by what was said (F42)."""

from __future__ import annotations

from typing import Any, Final

from fleet import Fleet
from long_agents import PAGE_BYTES
from test_stored_bytes import stored

import api_shim as agents
from api_shim.local import place_of
from broker.log import PAGE

SAID: Final = 4000
HISTORY: Final[list[dict[str, Any]]] = [
    {"type": "message", "role": ("user", "assistant")[at % 2], "content": [{"type": "text", "text": "w" * SAID}]}
    for at in range(200)
]
"""800 KB: about 200,000 tokens."""

WORKER: Final = "long_agents:reader"


async def test_stored_bytes_grow_with_the_calls_and_not_with_their_square(fleet: Fleet) -> None:
    agent = agents.Agent.load_from(agent_name="reader", url=fleet.url)
    grown: dict[int, int] = {}
    with fleet.worker(serves=WORKER):
        for calls in (25, 50, 100):
            session = await agent.start_session(history=HISTORY)
            before = await stored(session, fleet)
            state = await session.run(f"read {calls}", timeout=60)
            assert isinstance(state, agents.Completed)
            assert len(state.tool_calls) == calls
            grown[calls] = await stored(session, fleet) - before

    for calls, more in grown.items():
        assert calls * PAGE_BYTES < more < 2 * calls * PAGE_BYTES
    assert 1.8 < grown[50] / grown[25] < 2.1
    assert 1.8 < grown[100] / grown[50] < 2.1


async def test_a_long_session_is_listed_read_in_pages_and_resumed_elsewhere(fleet: Fleet) -> None:
    agent = agents.Agent.load_from(agent_name="reader", url=fleet.url)
    with fleet.worker(serves=WORKER):
        session = await agent.start_session(history=HISTORY)
        assert isinstance(await session.run("read 100", timeout=60), agents.Completed)
    [listed] = [found async for found in agents.list_sessions(host=fleet.url, agent_name="reader")]
    assert (listed.id, listed.preview) == (session.id, "w" * 120)

    client = place_of(fleet.url).broker.client
    await client.config_resetstat()
    entries = [entry async for entry in session.history()]
    commands = await client.info("commandstats")
    assert len(entries) == 200 + 2 + 2 * 100
    assert commands["cmdstat_xrange"]["calls"] >= 2 * len(entries) / PAGE
    assert [entry async for entry in session.history(limit=7)] == entries[:7]

    with fleet.worker(serves=WORKER):  # one that has read nothing of it
        state = await session.run("read 0", timeout=30)
        assert isinstance(state, agents.Completed)
        assert state.text == f"{200 + 1 + 2 * 100 + 1 + 1} messages"
