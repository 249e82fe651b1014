"""A starting history on its way into the log: staged in pages, there with the session or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from holders import command, fields, open_session, records
from leaks import leaked_keys
from real_server import serving

from broker import starting_history, transitions
from broker.broker import Broker
from broker.keys import new_session_id
from broker.protocol.errors import BrokerUnavailableError, SessionIdempotencyConflictError, SessionNotFoundError
from broker.protocol.values import loads
from broker.settings import Settings
from broker.starting_history import PAGE_BYTES, StartingHistory, check_history, open_with_history
from broker.transitions import Draft, DraftLostError, SessionOptions

OPTIONS = SessionOptions(agent="a", queue="a", digest="-")


def said(words: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "text", "text": words}]}


async def history(*said_: str) -> StartingHistory:
    made = await check_history([said(words) for words in said_], 10**6)
    assert made is not None
    return made


async def texts(broker: Broker, session_id: str) -> list[str]:
    """The texts of the messages that a session's log holds."""
    log = await records(broker, session_id)
    return [record["entry"]["content"][0]["text"] for record in log if record["type"] == "entryCompleted"]


async def keys(broker: Broker) -> list[bytes]:
    return sorted(await command(broker, "KEYS", f"{broker.settings.prefix}*"))


async def test_a_session_opens_with_its_history_and_goes_on_after_it(broker: Broker) -> None:
    session_id = new_session_id(1)

    assert await open_with_history(broker, session_id, OPTIONS, await history("one", "x" * 70_000))

    log = await command(broker, "XRANGE", broker.keys.of("log", session_id), "-", "+")
    ids = [place.decode() for place, _ in log]
    assert [place.partition("-")[0] for place in ids] == ["1", "2", "3", "4"]
    assert await fields(broker, session_id, "n", "ms") == ids[-1].split("-")
    assert b'"blob":' in log[3][1][b"e"]
    assert await texts(broker, session_id) == ["one", "x" * 70_000]
    for kind in ("log", "blobs", "session"):
        assert await command(broker, "PTTL", broker.keys.of(kind, session_id)) == -1
    await transitions.retitle(broker, session_id, title=b'"t"')
    assert (await records(broker, session_id))[-1]["type"] == "sessionUpdated"
    await transitions.cancel(broker, session_id)


async def test_before_it_is_whole_there_is_no_session_and_nothing_that_lives_on(broker: Broker) -> None:
    session_id = new_session_id(1)
    draft = await transitions.stage(broker, session_id, Draft("d", 0), (await history("one", "two")).entries, ttl=60)

    assert draft == Draft("d", 4)
    with pytest.raises(SessionNotFoundError):
        await transitions.record(broker, session_id, "t")
    staged = await keys(broker)
    assert len(staged) == 1
    assert 0 < await command(broker, "PTTL", staged[0]) <= 60_000
    assert await leaked_keys(broker.client, broker.settings.prefix) == []


async def test_a_page_whose_reply_was_lost_is_staged_once(broker: Broker) -> None:
    session_id = new_session_id(1)
    first, second = (await history("one", "two")).entries, (await history("three")).entries

    for _ in range(2):
        assert await transitions.stage(broker, session_id, Draft("d", 0), first, ttl=60) == Draft("d", 4)
    for _ in range(2):
        assert await transitions.stage(broker, session_id, Draft("d", 4), second, ttl=60) == Draft("d", 6)

    assert await transitions.open_session(broker, session_id, OPTIONS, Draft("d", 6))
    assert await texts(broker, session_id) == ["one", "two", "three"]
    await transitions.cancel(broker, session_id)


async def test_pages_that_are_lost_are_said_so_and_open_nothing(broker: Broker) -> None:
    session_id = new_session_id(1)
    page = (await history("one")).entries

    with pytest.raises(DraftLostError):
        await transitions.stage(broker, session_id, Draft("d", 2), page, ttl=60)
    with pytest.raises(DraftLostError):
        await transitions.open_session(broker, session_id, OPTIONS, Draft("d", 2))
    await transitions.stage(broker, session_id, Draft("d", 0), page, ttl=60)
    with pytest.raises(DraftLostError):
        await transitions.open_session(broker, session_id, OPTIONS, Draft("d", 4))
    with pytest.raises(SessionNotFoundError):
        await transitions.record(broker, session_id, "t")


@pytest.mark.parametrize("times", [2, 3])
async def test_what_was_lost_on_its_way_is_staged_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    session_id, lost = new_session_id(1), 0

    async def stage(broker: Broker, session_id: str, draft: Draft, *rest: Any, **more: Any) -> Draft | None:
        nonlocal lost
        staged = await transitions.stage(broker, session_id, draft, *rest, **more)
        if lost < times:
            lost += 1
            await command(broker, "DEL", broker.keys.of("log", f"{session_id}") + f":{draft.name}")
        return staged

    monkeypatch.setattr(starting_history, "stage", stage)
    opening = open_with_history(broker, session_id, OPTIONS, await history("one", "two"))

    if times == 3:
        with pytest.raises(BrokerUnavailableError, match="lost pages of its starting history"):
            await opening
        return
    assert await opening
    assert await texts(broker, session_id) == ["one", "two"]
    await transitions.cancel(broker, session_id)


async def test_a_session_that_exists_takes_no_second_history_and_keeps_no_draft(broker: Broker) -> None:
    session_id = await open_session(broker)
    other = SessionOptions(agent="a", queue="a", digest="other")
    entries = (await history("one")).entries

    assert await transitions.stage(broker, session_id, Draft("d", 0), entries, ttl=60) is None
    assert await open_with_history(broker, session_id, OPTIONS, await history("one")) is False
    with pytest.raises(SessionIdempotencyConflictError):
        await open_with_history(broker, session_id, other, await history("one"))
    assert await records(broker, session_id) == []
    assert not [key for key in await keys(broker) if b":log:" in key]
    await transitions.cancel(broker, session_id)


async def test_of_two_tries_at_once_the_first_to_open_counts_and_the_other_leaves_nothing(broker: Broker) -> None:
    session_id = new_session_id(1)
    pages = [(await history("one", "x" * 70_000)).entries, (await history("two")).entries]
    drafts = [await transitions.stage(broker, session_id, Draft(f"d{at}", 0), pages[at], ttl=60) for at in (0, 1)]

    opened = await asyncio.gather(*(transitions.open_session(broker, session_id, OPTIONS, draft) for draft in drafts))

    assert opened == [True, False]
    assert await texts(broker, session_id) == ["one", "x" * 70_000]
    assert not [key for key in await keys(broker) if key.endswith((b":d0", b":d1"))]
    await transitions.cancel(broker, session_id)


async def test_pages_are_bounded_in_count_and_bytes() -> None:
    many = await history(*("x" for _ in range(600)))
    assert [len(page) for page in many.pages()] == [250, 250, 100]

    heavy = await history(*("x" * (PAGE_BYTES // 3) for _ in range(7)))
    assert [len(page) for page in heavy.pages()] == [3, 3, 1]


async def test_a_hundred_thousand_entries_hold_the_server_up_for_no_moment(tmp_path: Path) -> None:
    with serving(tmp_path, "--slowlog-log-slower-than", "100000") as server:
        broker, session_id = Broker(Settings(redis_url=server.url)), new_session_id(1)
        long = await check_history([said("x" * 100)] * 100_000, 10**6)
        assert long is not None

        assert await open_with_history(broker, session_id, OPTIONS, long)

        assert (await fields(broker, session_id, "n"))[0] == "200000"
        assert await command(broker, "XLEN", broker.keys.of("log", session_id)) == 200_000
        assert await command(broker, "SLOWLOG", "GET") == [], "each script took less than 0.1 s"
        await broker.close()


async def test_the_event_loop_goes_on_while_a_history_is_checked() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await history(*("x" for _ in range(5000)))
    ticking.cancel()

    assert ticks > 40


async def test_equal_histories_share_a_digest_and_a_preview_is_the_first_thing_a_user_said() -> None:
    one = await check_history([{"type": "reasoning", "text": "hm"}, said("first  line\nsecond"), said("more")], 1000)
    two = await check_history(({"text": "hm", "type": "reasoning"}, said("first  line\nsecond"), said("more")), 1000)
    three = await check_history([said("first  line\nsecond"), {"type": "reasoning", "text": "hm"}, said("more")], 1000)

    assert one is not None
    assert two is not None
    assert three is not None
    assert one.digest == two.digest != three.digest
    assert loads(one.preview) == "first line second"
    assert await check_history([], 1000) is None
