"""A deployment for each test, which this process uses as a client too."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import redis.asyncio as aioredis
from fleet import Fleet
from leaks import drop_keys, leaked_keys
from real_server import RealServer

import api_shim as agents
from api_shim.local import place_of


@pytest.fixture
async def fleet(real_server: RealServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fleet]:
    """Open a deployment of its own on the real server; `agents` in this process is a client of it."""
    fleet = Fleet(real_server.url, f"f{uuid.uuid4().hex[:8]}:")
    monkeypatch.setenv("TURNSTREAM_PREFIX", fleet.prefix)
    agents.connect(fleet.url)
    async with aioredis.Redis.from_url(fleet.url) as client:
        try:
            yield fleet
            leaked = await leaked_keys(client, fleet.prefix)
            assert [key for key in leaked if not key.startswith(f"{fleet.prefix}effect:")] == []  # what its tools count
        finally:
            await place_of(fleet.url).close()
            agents.connect(None)
            await drop_keys(client, fleet.prefix)


@pytest.fixture
def clerk(fleet: Fleet) -> agents.Agent:
    """Return a handle of the agent that the fleet's workers serve."""
    return agents.Agent.load_from(agent_name="clerk", url=fleet.url)
