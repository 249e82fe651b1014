"""A broker that loses writes under a run, as a failover does: what it still has is an earlier moment of the same story."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from eventually import eventually
from turns import Gate, Stage, Steps, call, read, staged

from broker import fault_points
from broker.broker import Broker
from workers.hooks import Hook, HookCall, HookContext
from workers.tools import ToolResult, tool
from workers.writer import Writer

Kept = dict[bytes, tuple[bytes, int]]


async def take(broker: Broker) -> Kept:
    """Everything that the broker has of this deployment now."""
    keys = [key async for key in broker.client.scan_iter(match=f"*{broker.settings.prefix}*", count=1000)]
    kept: Kept = {}
    for key in keys:
        body, ttl = cast("bytes", await broker.client.dump(key)), await broker.client.pttl(key)
        kept[key] = body, max(ttl, 0)
    return kept


async def go_back(broker: Broker, kept: Kept) -> None:
    """Lose every write since `kept` was taken, at once."""
    keys = [key async for key in broker.client.scan_iter(match=f"*{broker.settings.prefix}*", count=1000)]
    async with broker.client.pipeline(transaction=True) as pipe:
        pipe.delete(*keys)
        for key, (body, ttl) in kept.items():
            pipe.restore(key, ttl, body)
        await pipe.execute()


@pytest.fixture
def after_append(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], Awaitable[None]]], None]:
    """Do something when the run's append number so many has been made, before it hears of it."""

    def arm(at: int, action: Callable[[], Awaitable[None]]) -> None:
        passed = 0

        async def passing() -> None:
            nonlocal passed
            passed += 1
            if passed == at:
                await action()

        monkeypatch.setitem(fault_points.armed, "append.after", passing)

    return arm


class Moment:
    """A moment that can be gone back to."""

    def __init__(self, broker: Broker) -> None:
        self.kept: Kept = {}
        self._broker = broker

    async def take(self) -> None:
        """Let it be now."""
        self.kept = await take(self._broker)

    async def go_back(self) -> None:
        """Go back to it."""
        assert self.kept
        await go_back(self._broker, self.kept)


def gaps(logs: list[Any]) -> list[str]:
    return [entry["turn"] for entry in logs if entry["event"] == "broker_lost_writes"]


async def expect_whole_and_said(stage: Stage, logs: list[Any]) -> None:
    """The turn completes in one attempt, and both the log of the worker and its summary say what was met."""
    assert (await stage.ended())["type"] == "completed"
    assert gaps(logs) == [stage.turn]
    assert stage.worker.turns.handed_back == []
    assert "runs again" not in str(await stage.records())
    await stage.worker.drain(0)
    (summary,) = [entry for entry in logs if entry["event"] == "worker_stopped"]
    assert summary["broker_lost_writes"] == 1


async def test_a_model_call_is_made_again(redis_broker: Broker, logs: list[Any], after_append: Any) -> None:
    first, second, moment = Gate(), Gate(), Moment(redis_broker)
    after_append(1, moment.take)
    model = Steps(tries={0: [["one ", first, "two ", second, "three"], ["afresh"]]})
    async with staged(redis_broker, model) as stage:
        await stage.send()
        await first.reached.wait()
        await eventually(lambda: moment.kept, "the first piece is in the log")
        first.open.set()

        async def written() -> list[str]:
            keys = [key async for key in redis_broker.client.scan_iter(match=f"*text:{stage.session_id}*")]
            return [(await redis_broker.client.get(key)).decode() for key in keys]

        await eventually(written, "the second one too", until=lambda texts: texts == ["one two "])
        await moment.go_back()
        second.open.set()
        await expect_whole_and_said(stage, logs)
        assert [said[0]["text"] for said in [entry["content"] for entry in await stage.entries("message")]] == [
            "afresh"
        ]


async def test_a_tool_whose_start_was_lost_runs_once_and_its_result_is_stored_once(
    redis_broker: Broker, logs: list[Any], after_append: Any
) -> None:
    gate, moment, runs = Gate(), Moment(redis_broker), 0

    @tool
    async def work() -> str:
        """Work."""
        nonlocal runs
        runs += 1
        await gate.wait()
        return "worked"

    after_append(1, moment.take)
    async with staged(redis_broker, Steps([call("work", "a")]), work) as stage:
        await stage.send()
        await gate.reached.wait()
        await moment.go_back()
        gate.open.set()
        await expect_whole_and_said(stage, logs)
        assert (runs, await stage.results()) == (1, {"a": "worked"})


async def test_a_tool_that_goes_on_is_written_down_again_as_started(
    redis_broker: Broker, logs: list[Any], after_append: Any
) -> None:
    """Else a worker that comes after this one would take it for one that never ran."""
    first, second, moment = Gate(), Gate(), Moment(redis_broker)

    @tool
    async def work(which: int) -> str:
        """Work."""
        await (first, second)[which].wait()
        return f"worked {which}"

    after_append(1, moment.take)
    async with staged(redis_broker, Steps([call("work", "a", which=0), call("work", "b", which=1)]), work) as stage:
        await stage.send()
        await first.reached.wait()
        await second.reached.wait()
        await moment.go_back()
        first.open.set()

        async def started() -> list[str]:
            found = [record["entry"] for record in await stage.records() if record["type"] == "entryAdded"]
            return [entry["toolCallId"] for entry in found if entry.get("type") == "toolResult"]

        await eventually(started, "both are written down", until=lambda calls: sorted(calls) == ["a", "b"])
        await eventually(stage.results, "the first one's result is there", until=lambda seen: "a" in seen)
        second.open.set()
        await expect_whole_and_said(stage, logs)
        assert await stage.results() == {"a": "worked 0", "b": "worked 1"}


async def test_a_tool_whose_call_was_lost_is_stopped_and_the_model_asked_again(
    redis_broker: Broker, logs: list[Any]
) -> None:
    gate, other, moment, stopped = Gate(), Gate(), Moment(redis_broker), asyncio.Event()

    @tool
    async def work() -> str:
        """Work."""
        try:
            await gate.wait()
        finally:
            stopped.set()
        return "worked"

    @tool
    async def beside() -> str:
        """Work beside it."""
        await other.wait()
        return "beside"

    writing, again = Gate(), Gate()
    calls = [call("work", "a"), call("beside", "b")]
    model = Steps(tries={0: [["Well.", writing, *calls], [again, "no calls"]]})
    async with staged(redis_broker, model, work, beside) as stage:
        await stage.send()
        await writing.reached.wait()
        await eventually(stage.records, "its message is open", until=lambda found: len(found) > 4)
        await moment.take()
        writing.open.set()
        await gate.reached.wait()
        await other.reached.wait()
        await moment.go_back()
        other.open.set()
        await again.reached.wait()
        await asyncio.wait_for(stopped.wait(), 5)
        again.open.set()
        await expect_whole_and_said(stage, logs)
        assert await stage.results() == {}


async def test_a_result_that_was_lost_is_not_known_any_more(redis_broker: Broker, logs: list[Any]) -> None:
    """Its tool had started and does not run: as after a crash, it is not run again."""
    gate, moment, paid = Gate(), Moment(redis_broker), []

    @tool
    async def pay() -> str:
        """Pay."""
        paid.append(1)
        await moment.take()
        return "paid"

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    async with staged(redis_broker, Steps([call("pay", "a"), call("work", "b")]), pay, work) as stage:
        await stage.send()
        await gate.reached.wait()
        await eventually(stage.results, "the first result is there", until=lambda seen: "a" in seen)
        await moment.go_back()
        gate.open.set()
        await expect_whole_and_said(stage, logs)
        results = await stage.results()
    assert paid == [1]
    assert results["b"] == "worked"
    assert "what it did is not known" in results["a"]


async def test_an_end_that_was_lost_is_written_again(redis_broker: Broker, logs: list[Any]) -> None:
    """The append before it is lost, unnoticed until the turn is to end."""
    gate, moment = Gate(), Moment(redis_broker)
    model = Steps(tries={0: [["one", gate], ["two"]]})
    async with staged(redis_broker, model) as stage:
        await stage.send()
        await gate.reached.wait()
        await moment.take()
        gate.open.set()
        run: Any = stage.worker.turns.runs[stage.session_id]
        real = run._finish

        async def lose(*arguments: Any) -> Any:
            run._finish = real
            await moment.go_back()
            return await real(*arguments)

        run._finish = lose
        state = await stage.ended()
        assert state["text"] == "two"
        await expect_whole_and_said(stage, logs)


async def test_a_stopped_tool_that_goes_on_writes_nothing_to_a_call_that_is_gone(
    redis_broker: Broker, logs: list[Any]
) -> None:
    gate, other, writing, moment = Gate(), Gate(), Gate(), Moment(redis_broker)

    @tool
    async def work() -> str:
        """Work, whoever says stop."""
        with contextlib.suppress(asyncio.CancelledError):
            await gate.wait()
        return "worked"

    @tool
    async def beside() -> str:
        """Work beside it."""
        await other.wait()
        return "beside"

    model = Steps(tries={0: [["Well.", writing, call("work", "a"), call("beside", "b")], ["no calls"]]})
    async with staged(redis_broker, model, work, beside) as stage:
        await stage.send()
        await writing.reached.wait()
        await eventually(stage.records, "its message is open", until=lambda found: len(found) > 4)
        await moment.take()
        writing.open.set()
        await gate.reached.wait()
        await other.reached.wait()
        await moment.go_back()
        other.open.set()
        await expect_whole_and_said(stage, logs)
        assert await stage.results() == {}


async def test_news_behind_a_hole_does_not_hide_it(redis_broker: Broker, logs: list[Any]) -> None:
    """A message that was folded is lost; others took its place. The model reads those, and not what is lost."""
    gate, moment = Gate(), Moment(redis_broker)

    @tool
    async def work() -> str:
        """Work."""
        await gate.wait()
        return "worked"

    model = Steps([call("work", "a")])
    async with staged(redis_broker, model, work) as stage:
        await stage.send("hi")
        await gate.reached.wait()
        await moment.take()
        await stage.send("lost")
        run = stage.worker.turns.runs[stage.session_id]
        stored = len(await stage.records())
        await eventually(lambda: run.history.n, "it is folded", until=lambda n: n == stored)
        await moment.go_back()
        await stage.send("accepted")
        await stage.send("accepted too")
        await eventually(lambda: gaps(logs), "the loss is found")
        gate.open.set()
        await expect_whole_and_said(stage, logs)

    said = [text for kind, text in read(model.requests[-1]) if kind == "UserMessage"]
    assert "lost" not in said
    assert [text for text in said if text.startswith("accepted")] == ["accepted", "accepted too"]


async def test_a_tool_that_ends_while_the_log_is_read_anew_keeps_its_result(
    redis_broker: Broker, logs: list[Any], monkeypatch: pytest.MonkeyPatch, after_append: Any
) -> None:
    first, second, reading, moment, runs = Gate(), Gate(), Gate(), Moment(redis_broker), Counter[int]()

    @tool
    async def work(which: int) -> str:
        """Work."""
        runs[which] += 1
        await (first, second)[which].wait()
        return f"worked {which}"

    ran, real = asyncio.Event(), Writer.catch_up

    async def has_run() -> None:
        ran.set()

    async def slow(writer: Writer) -> None:
        if writer.history.n == 0:
            await reading.wait()
        await real(writer)

    async with staged(redis_broker, Steps([call("work", "a", which=0), call("work", "b", which=1)]), work) as stage:
        after_append(1, moment.take)
        monkeypatch.setitem(fault_points.armed, "tool.ran", has_run)
        await stage.send()
        await first.reached.wait()
        await second.reached.wait()
        monkeypatch.setattr(Writer, "catch_up", slow)
        await moment.go_back()
        first.open.set()
        await reading.reached.wait()
        ran.clear()
        second.open.set()
        await ran.wait()
        for _ in range(10):  # what it does next, it does while the history is empty
            await asyncio.sleep(0)
        reading.open.set()
        await expect_whole_and_said(stage, logs)
        assert await stage.results() == {"a": "worked 0", "b": "worked 1"}
        assert runs == {0: 1, 1: 1}


# What a tool answers when it is told to stop.


class Told:
    """A tool that answers its cancel with a result, and beside it one that ends first."""

    def __init__(self, broker: Broker) -> None:
        self.first = Gate()
        self.started = asyncio.Event()
        self._moment = Moment(broker)

        @tool
        async def quick() -> str:
            """Be quick."""
            await self.first.wait()
            return "quick"

        @tool
        async def kind() -> str:
            """Say how far it came."""
            self.started.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "half way"

        self.tools = quick, kind
        self.model = Steps([call("quick", "a"), call("kind", "b")])

    async def lose(self, stage: Stage) -> None:
        """Start both, and lose what came since, which the run has folded."""
        await stage.send()
        await self.first.reached.wait()
        await self.started.wait()
        await self._moment.take()
        await stage.send("lost")
        run, stored = stage.worker.turns.runs[stage.session_id], len(await stage.records())
        await eventually(lambda: run.history.n, "it is folded", until=lambda n: n == stored)
        await self._moment.go_back()


async def test_a_tool_that_answers_its_cancel_holds_up_no_run_that_was_cut_while_it_read_anew(
    redis_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, reading, real = Told(redis_broker), Gate(), Writer.catch_up

    async def slow(writer: Writer) -> None:
        if writer.history.n == 0:
            await reading.wait()
        await real(writer)

    async with staged(redis_broker, told.model, *told.tools) as stage:
        await told.lose(stage)
        monkeypatch.setattr(Writer, "catch_up", slow)
        told.first.open.set()
        await reading.reached.wait()
        await stage.interrupt()
        await eventually(lambda: stage.worker.tasks, "its slot is free", until=lambda tasks: not tasks)
        assert (await stage.ended())["type"] == "interrupted"


class Refusing(Hook):
    """Fails over one tool's result; waits first, if it is told to."""

    def __init__(self, gate: Gate | None = None) -> None:
        self._gate = gate

    async def post_tool_call(self, _ctx: HookContext[None], call: HookCall, _result: ToolResult) -> None:
        """Fail."""
        if call.name == "client.quick":
            if self._gate is not None:
                await self._gate.wait()
            raise ValueError


async def test_a_tool_that_is_stopped_for_a_failed_hook_and_is_the_first_to_meet_a_gap_holds_up_no_turn(
    redis_broker: Broker, logs: list[Any]
) -> None:
    """The loss is made good, and the turn goes on."""
    told = Told(redis_broker)
    async with staged(redis_broker, told.model, *told.tools, hooks=[Refusing()]) as stage:
        await told.lose(stage)
        told.first.open.set()
        assert (await stage.ended())["type"] == "completed"
        assert gaps(logs) == [stage.turn]


async def test_a_hook_that_fails_while_the_log_is_read_anew_fails_the_turn_by_its_name(
    redis_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, hooking, reading, real = Told(redis_broker), Gate(), Gate(), Writer.catch_up

    async def slow(writer: Writer) -> None:
        if writer.history.n == 0:
            await reading.wait()
        await real(writer)

    async with staged(redis_broker, told.model, *told.tools, hooks=[Refusing(hooking)]) as stage:
        await told.lose(stage)
        told.first.open.set()
        await hooking.reached.wait()
        monkeypatch.setattr(Writer, "catch_up", slow)
        await stage.send("news, behind a hole")
        await reading.reached.wait()
        hooking.open.set()
        run = stage.worker.turns.runs[stage.session_id]
        await eventually(lambda: [task for task in run._running.values() if task.done()], "the hook has failed")
        reading.open.set()
        state = await stage.ended()
        assert (state["type"], state["error"]["code"]) == ("failed", "hook_failed")
