"""Listings of many sessions: page by page, newest first, none twice and none left out."""

from __future__ import annotations

from typing import Any

import pytest
from agents_for_tests import Home, StepModel, home_fixture  # noqa: F401 - pytest finds the fixture `home` here

import api_shim as agents
from broker.keys import new_session_id
from broker.transitions import SessionOptions, open_session

MANY = 230


async def open_many(home: Home, *, shards: int = 1) -> list[str]:
    """Open sessions of one agent; return their ids, newest first. As many as 130 come to exist in one millisecond."""
    broker = home.broker
    ids = [new_session_id(shards) for _ in range(MANY)]
    for session_id in ids:
        await open_session(broker, session_id, SessionOptions(agent="many", queue="many", digest="-"))
    created = {session_id: 1_000 if at < 130 else 1_001 + at // 2 for at, session_id in enumerate(ids)}
    for session_id, ms in created.items():
        for kind in ("sessions", "sessions:many"):
            key = broker.keys.base(int(session_id.partition("-")[0])) + kind
            await broker.client.zadd(key, {session_id: ms})
    return sorted(ids, key=lambda session_id: (created[session_id], session_id), reverse=True)


@pytest.mark.parametrize("shards", [1, 3])
async def test_pages_leave_nobody_out_and_name_nobody_twice(
    home: Home, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    monkeypatch.setenv("TURNSTREAM_SHARDS", str(shards))
    await (await home.agent(StepModel())).start_session()
    ids = await open_many(home, shards=shards)
    listed = [info.id async for info in agents.list_sessions(agent_name="many")]

    assert len(listed) == len(ids)
    assert set(listed) == set(ids)
    if shards == 1:
        assert listed == ids


async def test_what_is_opened_meanwhile_shifts_nothing(home: Home) -> None:
    agent = await home.agent(StepModel(), name="many")
    await agent.start_session()
    await open_many(home)
    before = [info.id async for info in agents.list_sessions(agent_name="many")]
    listing = agents.list_sessions(agent_name="many")
    listed = [(await anext(listing)).id for _ in range(50)]
    new = await agent.start_session()
    listed += [info.id async for info in listing]

    assert listed == before
    assert (await anext(agents.list_sessions(agent_name="many"))).id == new.id


async def test_a_listing_is_read_as_it_is_asked_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await home.agent(StepModel())).start_session()
    await open_many(home)
    pages = 0
    read = home.broker.read

    async def counted(*commands: tuple[Any, ...], **options: Any) -> list[Any]:
        nonlocal pages
        pages += sum(command[0] == "ZREVRANGEBYSCORE" for command in commands)
        return await read(*commands, **options)

    monkeypatch.setattr(home.broker, "read", counted)
    listing = agents.list_sessions(agent_name="many")
    assert pages == 0
    await anext(listing)
    assert pages == 1
    assert len([info async for info in listing]) == MANY - 1
    assert pages > 2


async def test_sessions_of_one_millisecond_are_in_their_order_too(home: Home) -> None:
    ids = [new_session_id(1) for _ in range(100)]
    for session_id in ids:
        await open_session(home.broker, session_id, SessionOptions(agent="many", queue="many", digest="-"))
    await home.agent(StepModel())

    assert [info.id async for info in agents.list_sessions(agent_name="many")] == ids[::-1]
