"""Dead letters: what is kept of a turn that lost each of its workers, and how it gets another chance, once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import holders
import pytest

from broker import transitions
from broker.broker import Broker
from broker.contents import Completed, Message, Note, completed
from broker.dead_letters import DeadLetter, list_letters, lost_runs, messages_of, read_letter, read_turn_log, retry
from broker.embedded import EmbeddedServer
from broker.keys import new_id
from broker.protocol.errors import (
    SessionNotFoundError,
    SessionTerminatedError,
    TurnNotFoundError,
)
from broker.settings import Settings
from broker.stored_session import check_tree, read_tree
from broker.transitions import ActiveTurn, Sent


def said(text: str, role: str = "user", **more: Any) -> Completed:
    entry = {"type": "message", "id": new_id(), "role": role, "content": [{"type": "text", "text": text}], **more}
    return completed(entry)


def context(text: str) -> Completed:
    return said(text, "context", kind="input", source=None)


async def die(broker: Broker, session_id: str) -> None:
    """Let the session's turn, which is queued, begin once more than it may."""
    key = broker.keys.of("session", session_id)
    await holders.command(broker, "HSET", key, "attempts", broker.settings.max_attempts)
    (job,) = await holders.claim(broker)
    assert await holders.begin(broker, job, fence=f"{new_id()}:1") == "dead"


async def dead_letter(broker: Broker, text: str = "Pay 100.", **options: Any) -> DeadLetter:
    session_id = await holders.open_session(broker, **options)
    turn = await holders.start(broker, session_id, text)
    await die(broker, session_id)
    return await read_letter(broker, session_id, turn)


async def test_a_dead_letter_is_found_whatever_the_prefix_is() -> None:
    broker = Broker(Settings(prefix="my-session:"), EmbeddedServer())
    letter = await dead_letter(broker)
    await broker.close()
    assert letter.preview == "Pay 100."


async def letters(broker: Broker) -> list[tuple[str, str]]:
    return [(each.session_id, each.turn_id) async for each in list_letters(broker)]


async def input_of(broker: Broker, session_id: str, turn: str) -> list[tuple[str, str]]:
    """What the log holds of people's input to a turn: role and text."""
    found = messages_of(
        each for each in (await read_tree(broker, session_id))[0].records if each.body.get("turnId") == turn
    )
    return [(entry["role"], entry["content"][0]["text"]) for entry in found]


async def test_a_dead_letter_says_why_when_and_what_was_asked(broker: Broker) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    first = await dead_letter(broker, "Pay  100.\nAnd be quick.")
    second = await dead_letter(broker, agent="agent")

    assert [each async for each in list_letters(broker)] == [second, first]
    assert (first.agent_name, first.parent_id, first.attempts) == ("agent", None, broker.settings.max_attempts)
    assert first.preview == "Pay 100. And be quick."
    assert first.reason.startswith(
        f"The turn was started {broker.settings.max_attempts} times and each worker was lost."
    )
    assert before < first.died_at < datetime.now(UTC) + timedelta(seconds=1)


async def test_the_runs_that_wrote_are_named_with_what_they_wrote_last(broker: Broker) -> None:
    holder = await holders.running(broker, worker="run-a1")
    await holder.append(*holders.called("t1"))
    await holders.command(broker, "ZADD", f"{broker.keys.queue(0, 'agent')}:running", 1, holder.job.id)
    again = await holders.hold(broker, worker="run-b1")
    await again.append(*holders.tool_started("t1", new_id()))
    await holders.command(broker, "ZADD", f"{broker.keys.queue(0, 'agent')}:running", 1, again.job.id)
    await die(broker, holder.session_id)

    runs = lost_runs(await read_turn_log(broker, holder.session_id, holder.turn))

    assert [(run.mark, run.last_wrote) for run in runs] == [
        ("run-a1", "entryCompleted toolCall client.t"),
        ("run-b1", "entryAdded toolResult client.t"),
    ]
    assert all(run.began <= run.last for run in runs)


async def test_a_retry_is_a_new_turn_with_all_that_people_had_sent(broker: Broker) -> None:
    session_id = await holders.open_session(broker)
    large = "x" * 70_000
    tails: list[Completed | Note] = [said("Pay 100."), context("It is Monday."), Note(holders.notice("of the send"))]
    sent = await transitions.start(broker, session_id, Message(tails=tails, digest="-"), key="k", join=False)
    assert isinstance(sent, Sent)
    steer = Message(tails=[said(large), context("It is Tuesday.")], digest="-")
    assert await transitions.steer(broker, session_id, sent.turn, steer) is None
    await die(broker, session_id)
    asked = [("user", "Pay 100."), ("context", "It is Monday."), ("user", large), ("context", "It is Tuesday.")]

    new = await retry(broker, session_id, sent.turn)

    assert isinstance(new, Sent)
    assert new.started
    assert new.turn != sent.turn
    assert await input_of(broker, session_id, new.turn) == asked
    assert await input_of(broker, session_id, sent.turn) == asked
    assert await letters(broker) == []
    (job,) = await holders.claim(broker)
    assert (job.session_id, job.turn_id) == (session_id, new.turn)
    (stored,) = await read_tree(broker, session_id)
    notices = [each.body for each in stored.records if each.body.get("source") == "dead letters"]
    assert [(each["turnId"], each["details"]["turnId"]) for each in notices] == [(new.turn, sent.turn)]
    assert [found for _, findings in check_tree([stored]) for found in findings] == []


async def test_a_retry_is_safe_to_repeat_also_at_the_same_time_and_after_its_turn(broker: Broker) -> None:
    letter = await dead_letter(broker)
    ids = letter.session_id, letter.turn_id

    new, *same = await asyncio.gather(*(retry(broker, *ids) for _ in range(5)))

    assert isinstance(new, Sent)
    assert same == [new] * 4
    holder = await holders.hold(broker)
    assert await retry(broker, *ids) == new
    await holder.finish()
    assert await retry(broker, *ids) == new
    assert len((await read_tree(broker, letter.session_id))[0].turns) == 2


async def test_a_retried_turn_that_dies_again_is_a_dead_letter_of_its_own(broker: Broker) -> None:
    letter = await dead_letter(broker)
    new = await retry(broker, letter.session_id, letter.turn_id)
    assert isinstance(new, Sent)
    await die(broker, letter.session_id)

    assert await letters(broker) == [(letter.session_id, new.turn)]
    again = await retry(broker, letter.session_id, new.turn)
    assert isinstance(again, Sent)
    assert len({letter.turn_id, new.turn, again.turn}) == 3


async def test_a_retry_that_cannot_be_is_refused_and_the_letter_stays(broker: Broker) -> None:
    letter = await dead_letter(broker)
    ids = letter.session_id, letter.turn_id
    for unknown in ((letter.session_id, new_id()), ("0-3f9c2e71-8c1e-4b7a-9f5e-0a4c8f1d2b3c", letter.turn_id)):
        with pytest.raises(TurnNotFoundError, match="not in the dead letters"):
            await retry(broker, *unknown)
    with pytest.raises(SessionNotFoundError, match="no session id"):
        await retry(broker, "nowhere", letter.turn_id)

    active = await holders.start(broker, letter.session_id)
    assert await retry(broker, *ids) == ActiveTurn(active)
    holder = await holders.hold(broker)
    await holder.finish()
    with pytest.raises(TurnNotFoundError):
        await retry(broker, letter.session_id, active)  # it ended, and is no dead letter
    await transitions.cancel(broker, letter.session_id)
    with pytest.raises(SessionTerminatedError):
        await retry(broker, *ids)

    assert await letters(broker) == [ids]
