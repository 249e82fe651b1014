"""What a worker keeps between turns, and what it says of a turn that failed in the agent's own code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import holders
import pytest
from turns import Stage, Steps, add, call, staged, working

from broker.broker import Broker
from broker.protocol.errors import BrokerUnavailableError
from workers import held
from workers.agent import AgentDefinition
from workers.fold import History
from workers.held import HeldTurns
from workers.hooks import Hook
from workers.models import ModelDelta, ModelError, ModelRequest, ModelStop, ModelText
from workers.writer import Writer


@pytest.fixture
def turns(embedded_broker: Broker) -> HeldTurns:
    return HeldTurns(embedded_broker, "w", {}, {}, {}, asyncio.Event())


def fold(size: int) -> History:
    """A history of one message of `size` letters."""
    history = History()
    entry = {"type": "message", "id": "e", "role": "user", "content": [{"type": "text", "text": "x" * size}]}
    history.apply("1-1", {"type": "entryCompleted", "turnId": "t", "entry": entry})
    return history


def test_the_folds_used_last_are_kept(turns: HeldTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "FOLDS_KEPT", 2)
    for session_id in ("a", "b", "c"):
        turns.keep(session_id, fold(1))

    assert list(turns.folds) == ["b", "c"]


def test_large_histories_make_room_for_each_other_and_the_latest_stays(
    turns: HeldTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "WEIGHT_KEPT", 1_030_000)
    for session_id, size in (("a", 400_000), ("b", 400_000), ("c", 200_000)):
        turns.keep(session_id, fold(size))
    assert list(turns.folds) == ["a", "b", "c"]

    turns.keep("d", fold(300_000))
    assert list(turns.folds) == ["b", "c", "d"]

    turns.keep("e", fold(9_900_000))
    assert list(turns.folds) == ["e"]


async def test_a_name_that_is_wrong_is_said_in_the_turns_record(broker: Broker) -> None:
    async with staged(broker, "scripted:nope") as stage:
        await stage.send()
        error = (await stage.ended())["error"]
    assert error["code"] == "internal_error"
    assert error["message"].startswith("model 'scripted:nope': no such script")


async def test_what_a_model_may_not_give_fails_its_turn_by_name(broker: Broker) -> None:
    class Plain:
        async def stream(self, _request: ModelRequest) -> AsyncIterator[str]:
            yield "hello"

    async with staged(broker, Plain()) as stage:
        await stage.send()
        error = (await stage.ended())["error"]
    assert (error["code"], error["message"]) == (
        "model_failed",
        "the model's stream() gave str; it gives ModelText(…) and the like",
    )


AGENT_CODE = {
    "a cancelled thing": asyncio.CancelledError(),
    "another broker that is away": BrokerUnavailableError("somebody else's broker is away"),
    "sys.exit": SystemExit(1),
}
"""What a model may raise that means something else when it is not the agent's code that raises it."""


@pytest.mark.parametrize("raised", AGENT_CODE)
async def test_whatever_a_model_raises_fails_its_turn_once(broker: Broker, raised: str) -> None:
    """Not handed back for nothing, and begun again, for ever."""
    asked = 0

    class Raising:
        async def stream(self, _request: ModelRequest) -> AsyncIterator[ModelText]:
            nonlocal asked
            asked += 1
            yield ModelText("a")
            raise AGENT_CODE[raised]

    async with staged(broker, Raising()) as stage:
        await stage.send()
        error = (await stage.ended())["error"]
        assert stage.worker.turns.handed_back == []
    assert (error["code"], asked) == ("internal_error", 1)


async def test_writes_that_are_lost_while_a_run_is_prepared_fail_no_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is begun again, from what the broker still has."""
    there, looks = Writer._is_there, list[str]()

    async def lost_once(writer: Writer, event: str) -> bool:
        looks.append(event)
        return len(looks) > 1 and await there(writer, event)

    monkeypatch.setattr(Writer, "_is_there", lost_once)
    monkeypatch.setattr(held, "_PAGE", 1)  # the begin's reply does not hold the whole log
    async with staged(broker, Steps()) as stage:
        turn = await stage.send()
        assert (await stage.ended())["type"] == "completed"
        assert stage.worker.turns.handed_back == [turn]


# What the agent's code makes of being told to stop.


class Answering:
    """Waits to be cancelled, once, and answers that with an exception of its own, or (None) with a call as if nothing were."""

    def __init__(self, answer: BaseException | None) -> None:
        self.reached = asyncio.Event()
        self.answer = answer
        self.asked = 0

    async def wait(self) -> None:
        """Wait, the first time."""
        self.asked += 1
        if self.asked > 1:
            return
        self.reached.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if self.answer is not None:
                raise self.answer from None

    async def stream(self, _request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Say a word, and wait."""
        yield ModelText("a")
        first = not self.asked
        await self.wait()
        if first:
            yield call("add", "c", a=1, b=2)
        yield ModelStop()


class Waits(Hook):
    """A hook whose code is that."""

    def __init__(self, code: Answering) -> None:
        self.code = code

    async def pre_llm_call(self, _ctx: Any) -> None:
        await self.code.wait()


@pytest.mark.parametrize(
    ("place", "answer"),
    [
        ("model", OSError("its socket was closed already")),
        ("model", ModelError("cut", code="x")),
        ("model", ModelError("cut", code="x", retryable=True)),
        ("model", SystemExit(1)),
        ("model", None),
        ("hook", OSError("its socket was closed already")),
        ("hook", None),
    ],
)
async def test_a_drain_hands_back_a_turn_whatever_its_code_makes_of_that(
    broker: Broker, logs: list[Any], place: str, answer: BaseException | None
) -> None:
    """It is the cancellation, and no failure of the turn; nothing more is begun in it here."""
    code = Answering(answer)
    hooks = [Waits(code)] if place == "hook" else []
    definition = AgentDefinition(model=Steps() if hooks else code, name="agent", tools=[add], hooks=hooks)
    async with working(broker, definition) as worker:
        stage = Stage(broker, worker, await holders.open_session(broker))
        turn = await stage.send()
        await code.reached.wait()
        await worker.drain(0)

        assert worker.turns.handed_back == [turn]
        assert await holders.fields(broker, stage.session_id, "job", "attempts", "fence") == ["queued", "0", ""]
    assert (code.asked, await stage.entries("toolResult"), await stage.notices()) == (1, [], [])
    assert [entry["event"] for entry in logs if entry.get("log_level") in ("warning", "error")] == []
    async with working(broker, definition):
        assert (await stage.ended())["type"] == "completed"
