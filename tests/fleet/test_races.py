"""Races that one script decides: answers, sends."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

import pytest
from fleet import Fleet, end, line_of, tell

import api_shim as agents
from api_shim.local import place_of
from broker.protocol.wire import resolved_tail


@pytest.mark.parametrize("winner", ["AllowApproval", "DenyApproval"])
async def test_of_50_clients_that_answer_at_once_one_counts_and_the_tool_runs_once(
    winner: str, fleet: Fleet, clerk: agents.Agent
) -> None:
    """All have read the approval as open; a 51st, who reads afterwards, is told that it is settled."""
    with fleet.worker():
        session = await clerk.start_session()
        blocked = await session.run("ask race")
        assert isinstance(blocked, agents.Blocked)
        callback = blocked.callbacks[0]
        clients = [
            fleet.client("race", session.id, callback.id, "10", str(int(winner == "DenyApproval"))) for _ in range(5)
        ]
        for client in clients:
            assert await asyncio.to_thread(line_of, client) == "read"

        for client in clients:
            tell(client)
        outcomes = [await asyncio.to_thread(line_of, client) for client in clients for _ in range(10)]

        assert {kind for kind, _, _ in outcomes} == {"Answered"}
        assert len({answer for _, answer, _ in outcomes}) == 1
        assert {of for _, _, of in outcomes} == {session.id}
        late = await session.turn(blocked.turn_id).answer(callback.id, agents.AllowApproval())
        assert late == agents.AlreadySettled()
        state = await session.turn(blocked.turn_id).result(after=blocked)
        assert isinstance(state, agents.Completed)
        redis = place_of(fleet.url).broker.client
        ran = int(await redis.get(f"{fleet.prefix}effect:race") or 0)
        assert outcomes[0][1].startswith(winner)
        assert ran == (winner == "AllowApproval")
        end(*clients)


async def test_the_same_answer_sent_again_after_a_lost_reply_gets_the_same_receipt(
    fleet: Fleet, clerk: agents.Agent
) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        blocked = await session.run("ask again")
        assert isinstance(blocked, agents.Blocked)
        callback = blocked.callbacks[0]
        broker = place_of(fleet.url).broker
        resolved = resolved_tail(callback.id, "answered", {"type": "allow", "scope": "once"})
        nonce = str(uuid.uuid4())

        async def send() -> list[bytes]:
            return await broker.run(
                "answer",
                broker.keys.of("session", session.id),
                sid=session.id,
                callback=callback.id,
                nonce=nonce,
                resolved=resolved,
                call="",
                result="",
            )

        assert await send() == await send() == [b"answered"]
        state = await session.turn(blocked.turn_id).result(after=blocked)
        assert isinstance(state, agents.Completed)
        assert await broker.client.get(f"{fleet.prefix}effect:again") == b"1"


@pytest.mark.parametrize(
    ("how", "expected"),
    [("message", Counter(started=1, joined=19)), ("turn", Counter(started=1, Busy=19))],
)
async def test_20_sends_from_many_processes_give_one_turn(
    how: str, expected: Counter[str], fleet: Fleet, clerk: agents.Agent
) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        clients = [fleet.client("send", session.id, how, "5") for _ in range(4)]
        for client in clients:
            assert await asyncio.to_thread(line_of, client) == "ready"

        for client in clients:
            tell(client)
        sent = [await asyncio.to_thread(line_of, client) for client in clients for _ in range(5)]

        assert Counter(kind for kind, _ in sent) == expected
        assert len({turn for _, turn in sent}) == 1
        assert [turn.id for turn in await session.turns()] == [sent[0][1]]
        await session.cancel()
        texts = [entry.text async for entry in session.history() if isinstance(entry, agents.MessageEntry)]
        assert len([text for text in texts if text.startswith("tool 30")]) == (20 if how == "message" else 1)
        end(*clients)


async def test_a_key_names_one_turn_and_busy_does_not_use_it_up(fleet: Fleet, clerk: agents.Agent) -> None:
    with fleet.worker():
        session = await clerk.start_session()
        first = await session.start_turn("tool 30", idempotency_key="one")
        assert isinstance(first, agents.Turn)
        again = await session.start_turn("tool 30", idempotency_key="one")
        assert isinstance(again, agents.Turn)
        assert again == first
        assert again.started is True
        assert await session.start_turn("later", idempotency_key="two") == agents.Busy(first)
        with pytest.raises(agents.SessionIdempotencyConflictError) as conflict:
            await session.start_turn("something else", idempotency_key="one")
        assert conflict.value.idempotency_key == "one"

        await first.interrupt()
        second = await session.start_turn("later", idempotency_key="two")
        assert isinstance(second, agents.Turn)
        assert second != first
        await second.result()
        await session.cancel()
        assert await session.start_turn("later", idempotency_key="two") == second
        with pytest.raises(agents.SessionTerminatedError):
            await session.start_turn("later", idempotency_key="three")
        with pytest.raises(agents.SessionTerminatedError):
            await session.start_turn("other words", idempotency_key="two")
