"""The worker: what it claims and holds, what it hands back, and what its log may say."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import holders
import pytest
from eventually import eventually
from real_server import serving
from turns import Gate, Stage, Steps, add, call, staged, working

from broker import channels, queue, runs, transitions
from broker.broker import Broker
from broker.protocol.callbacks import DenyApproval
from broker.settings import Settings
from workers import worker as worker_module
from workers.agent import AgentDefinition
from workers.models import ModelError, ModelRequest, ModelText, UserMessage
from workers.tools import ToolError, tool
from workers.worker import TurnWorker


def agent(model: Any = None, *tools: Any, **options: Any) -> AgentDefinition:
    return AgentDefinition(model=model or Steps(), name=options.pop("name", "agent"), tools=tools, **options)


def held_jobs(worker: TurnWorker) -> list[str]:
    """The jobs whose leases a worker holds."""
    return [job_id for jobs in worker.turns.leases.by_queue().values() for job_id in jobs]


async def queued_turn(broker: Broker, name: str = "agent") -> Stage:
    """A session with a turn in the queue, and nobody to run it."""
    stage = Stage(broker, None, await holders.open_session(broker, agent=name))  # type: ignore[arg-type] # no worker yet
    await stage.send()
    return stage


@pytest.fixture
def short(redis_broker: Broker) -> Broker:
    """A broker whose leases are short, for what must lapse."""
    redis_broker.settings = redis_broker.settings.model_copy(update={"lease": 0.4})
    return redis_broker


# What it serves.


async def test_it_is_registered_before_it_is_ready(broker: Broker) -> None:
    async with working(broker, agent()) as worker:
        served = await holders.command(broker, "ZRANGE", f"{broker.keys.base(0)}workers:agent", 0, -1)
        assert served == [worker.id.encode()]

    assert await holders.keys_of(broker, "worker", "workers") == []


async def test_it_serves_an_agent_from_when_it_is_told(broker: Broker) -> None:
    async with working(broker, agent()) as worker:
        stage = await queued_turn(broker, "later")
        await worker.serve(agent(Steps(["hello"]), name="later"))
        assert (await stage.ended())["text"] == "hello"
        again = await queued_turn(broker, "later")
        await again.ended()
        assert worker.turns.finished == 2


async def test_it_leaves_other_agents_turns_alone(broker: Broker) -> None:
    other = await queued_turn(broker, "other")
    async with working(broker, agent()):
        await (await queued_turn(broker)).ended()
        assert await other.state() == "queued"


async def test_what_waited_before_it_came_is_run(broker: Broker) -> None:
    stages = [await queued_turn(broker) for _ in range(5)]
    async with working(broker, agent()):
        for stage in stages:
            await stage.ended()


# Slots.


@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_it_runs_no_more_than_its_slots(broker: Broker, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens ring while a claim is under way that may give as many jobs as there are slots."""
    running, most, real = 0, 0, queue.claim

    async def slow(*args: Any, **options: Any) -> queue.Claimed:
        claimed = await real(*args, **options)
        await asyncio.sleep(0.01)
        return claimed

    monkeypatch.setattr(queue, "claim", slow)

    @tool
    async def count() -> None:
        """Count those that run beside."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async with working(broker, agent(Steps([call("count", "a")]), count), slots=slots) as worker:
        stages = [await queued_turn(broker) for _ in range(8)]
        for stage in stages:
            await stage.ended()
        assert worker.turns.finished == len(stages)

    assert most <= slots


async def test_a_parked_turn_holds_no_slot_and_nothing_else(broker: Broker) -> None:
    definition = agent(Steps([call("add", "a", a=1, b=2)]), add, permission_mode="ask")
    async with working(broker, definition, slots=1) as worker:
        stages = [await queued_turn(broker) for _ in range(3)]
        for stage in stages:
            await stage.until("parked")
        await eventually(lambda: worker.tasks, "no task is left", until=lambda tasks: not tasks)
        assert (worker.job_counter, len(worker.turns.leases), worker.turns.runs) == (0, 0, {})
        assert await holders.queued(broker) == ([], [])
        for stage in reversed(stages):
            await stage.answer((await stage.callbacks())[0])
            await stage.ended()


async def test_a_full_worker_hands_the_token_on(redis_broker: Broker) -> None:
    """Another one with a slot takes the turn at once, not at its next look."""
    gate = Gate()
    async with working(redis_broker, agent(Steps([gate, "done"])), slots=1) as full:
        first = await queued_turn(redis_broker)
        await gate.reached.wait()
        async with working(redis_broker, agent(Steps(["quick"]))):
            for _ in range(4):
                stage = await queued_turn(redis_broker)
                await eventually(stage.state, "the other took it", until=lambda job: job == "", within=1.5)
        gate.open.set()
        await first.ended()
        assert full.turns.finished == 1


async def test_a_job_that_was_claimed_and_rung_for_is_run_once_and_held(broker: Broker) -> None:
    """The claim gave it while its token was on the way to the same worker."""
    gate = Gate()
    worker = TurnWorker(broker, [agent(Steps([gate, "done"]))])
    stage = await queued_turn(broker)
    key = broker.keys.queue(0, "agent")
    claimed = await queue.claim(broker, key, worker=worker.id, slots=1, lease=15, budget=5)
    ((job_id, body),) = claimed.jobs

    await worker._start(key, job_id, None)
    await worker._start(key, job_id, body)
    await gate.reached.wait()
    await asyncio.sleep(0.02)

    assert held_jobs(worker) == list(worker.tasks) == [job_id]
    assert worker.job_counter == 1
    gate.open.set()
    await stage.ended()
    await eventually(lambda: worker.tasks, "no task is left", until=lambda tasks: not tasks)
    assert (len(worker.turns.leases), worker.job_counter) == (0, 0)
    assert "notice" not in holders.kinds(await stage.records())[5:]


async def test_a_token_of_a_job_that_runs_here_already_changes_nothing(broker: Broker) -> None:
    gate = Gate()
    async with staged(broker, Steps([gate, "done"])) as stage:
        await stage.send()
        await gate.reached.wait()
        (job_id,) = stage.worker.tasks
        task = stage.worker.tasks[job_id]
        wake = f"{broker.keys.queue(0, 'agent')}:wake"
        await holders.command(broker, "LPUSH", wake, job_id)

        async def left() -> int:
            return int(await holders.command(broker, "EXISTS", wake))

        await eventually(left, "the token was taken", until=lambda exists: exists == 0)
        await asyncio.sleep(0.02)
        assert stage.worker.tasks == {job_id: task}
        assert held_jobs(stage.worker) == [job_id]
        gate.open.set()
        await stage.ended()


# Interrupts.


async def test_an_interrupt_stops_the_tool(broker: Broker) -> None:
    gate, stopped = Gate(), asyncio.Event()

    @tool
    async def slow() -> None:
        """Wait."""
        try:
            await gate.wait()
        finally:
            stopped.set()

    async with staged(broker, Steps([call("slow", "a")]), slow) as stage:
        turn = await stage.send()
        await gate.reached.wait()
        assert await transitions.interrupt(broker, stage.session_id, turn) is None
        await asyncio.wait_for(stopped.wait(), 5)
        await eventually(lambda: stage.worker.tasks, "no task is left", until=lambda tasks: not tasks)
        assert stage.worker.turns.handed_back == []
        assert (await stage.ended())["type"] == "interrupted"
        await stage.send("again")
        assert (await stage.ended())["type"] == "completed"


async def test_a_late_stop_does_not_touch_the_next_turn(broker: Broker) -> None:
    gate = Gate()
    async with staged(broker, Steps([gate, "done"])) as stage:
        turn = await stage.send()
        await gate.reached.wait()

        stage.worker._stop(stage.session_id, "another turn of this session")
        await asyncio.sleep(0.02)
        assert (len(stage.worker.tasks), stage.worker.turns.handed_back) == (1, [])
        stage.worker._stop(stage.session_id, turn)
        await eventually(
            lambda: stage.worker.turns.handed_back, "it was handed back", until=lambda back: back == [turn]
        )
        gate.open.set()
        await stage.ended()


# Its end.


async def test_a_drain_lets_turns_end_within_the_grace(broker: Broker) -> None:
    gate = Gate()
    async with staged(broker, Steps([gate, "done"])) as stage:
        await stage.send()
        await gate.reached.wait()
        draining = asyncio.create_task(stage.worker.drain(5))
        late = await queued_turn(broker)
        await asyncio.sleep(0.05)
        gate.open.set()
        await draining

        assert (await stage.ended())["text"] == "done"
        assert await late.state() == "queued"
        assert (stage.worker.turns.finished, stage.worker.turns.handed_back) == (1, [])


@pytest.mark.parametrize("grace", [0, 0.05])
async def test_a_drain_hands_the_rest_back_at_once_and_costs_no_attempt(broker: Broker, grace: float) -> None:
    gate = Gate()
    async with staged(broker, Steps([gate, "done"])) as stage:
        turn = await stage.send()
        await gate.reached.wait()
        await stage.worker.drain(grace)

        assert stage.worker.turns.handed_back == [turn]
        assert await holders.fields(broker, stage.session_id, "job", "attempts", "fence") == ["queued", "0", ""]
    async with working(broker, agent(Steps(["hello"]))):
        await stage.ended()
    assert "runs again" not in str(await stage.records())


async def test_a_drain_hands_back_what_is_just_being_begun(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, real = Gate(), runs.begin

    async def slow(*args: Any, **options: Any) -> Any:
        reply = await real(*args, **options)
        await begun.wait()
        return reply

    monkeypatch.setattr(runs, "begin", slow)
    async with staged(broker, Steps()) as stage:
        turn = await stage.send()
        await begun.reached.wait()
        await stage.worker.drain(0)
        assert stage.worker.turns.handed_back == [turn]
        assert await holders.fields(broker, stage.session_id, "job", "attempts") == ["queued", "0"]


async def test_what_does_not_stop_is_handed_back_from_under_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    """A tool that takes its cancellation for nothing keeps neither its turn nor the worker; what it brings is refused."""
    monkeypatch.setattr(worker_module, "_STOP_S", 0.05)
    monkeypatch.setattr(worker_module, "_CLEAN_S", 0.05)
    reached, free = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Go on."""
        reached.set()
        while not free.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await free.wait()
        return "done all the same"

    async with staged(broker, Steps([call("stubborn", "a")]), stubborn) as stage:
        turn = await stage.send()
        await reached.wait()
        await stage.worker.drain(0)

        assert stage.worker.turns.handed_back == [turn]
        assert await holders.fields(broker, stage.session_id, "job", "attempts") == ["queued", "0"]
        free.set()
        await eventually(lambda: stage.worker.tasks, "it ends", until=lambda tasks: not tasks)
    async with working(broker, agent(Steps(["hello"]), stubborn)):
        await stage.ended()
    assert "what it did is not known" in (await stage.results())["a"]
    assert [entry["event"] for entry in logs if entry.get("log_level") == "warning"] == ["turns_do_not_stop"]


async def test_serving_more_loses_no_token(redis_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bell was given one as it was replaced; without it the turn would wait for the next look, three seconds."""
    gate, real = Gate(), channels.pop_token

    async def slow(*arguments: Any) -> AsyncIterator[tuple[str, str] | None]:
        async with contextlib.aclosing(real(*arguments)) as tokens:
            async for token in tokens:
                if token is not None:
                    await gate.wait()
                yield token

    monkeypatch.setattr(worker_module, "pop_token", slow)
    async with working(redis_broker, agent(Steps(["hello"]))) as worker:
        await asyncio.sleep(0.1)  # its first claim is behind it
        stage = await queued_turn(redis_broker)
        await gate.reached.wait()
        await worker.serve(agent(Steps(["later"]), name="later"))
        gate.open.set()
        await eventually(stage.state, "it runs at once", until=lambda job: job == "", within=1.5)
        later = await queued_turn(redis_broker, "later")
        await eventually(later.state, "the new one's does too", until=lambda job: job == "", within=1.5)


async def test_a_worker_that_stops_hands_a_token_on_and_begins_nothing(redis_broker: Broker) -> None:
    """Its loop has not noticed yet that it stops (it looks again within a fifth of a lease), and the bell rings."""
    async with working(redis_broker, agent(Steps(["never"]))) as worker:
        await asyncio.sleep(0.1)  # its first claim is behind it, and it waits
        worker.stopping.set()
        stage = await queued_turn(redis_broker)
        wake = f"{redis_broker.keys.queue(0, 'agent')}:wake"
        await eventually(lambda: redis_broker.client.llen(wake), "the token is handed on")

        await asyncio.sleep(0.1)
        assert (await stage.state(), worker.tasks, worker.turns.finished) == ("queued", {}, 0)


# Workers and brokers that are lost.


async def test_a_lost_worker_s_turn_goes_on_elsewhere(short: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    async with staged(short, Steps([gate, "never"])) as stage:
        await stage.send()
        await gate.reached.wait()
        await stage.worker.renewal.stop()
        monkeypatch.setattr(stage.worker.turns, "hand_back", lambda *_: asyncio.sleep(0, True))
        stage.worker.stopping.set()
        for task in stage.worker.tasks.values():
            task.cancel()
        async with working(short, agent(Steps(["hello"]))):
            assert (await stage.ended())["text"] == "hello"

    (notice,) = [r for r in await stage.records() if r["type"] == "notice" and r["source"] == "worker"]
    assert notice["details"] == {"reason": "worker_lost", "attempt": 2}


async def test_a_lost_broker_costs_no_attempt(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is frozen for longer than a lease: the turn is handed back when it answers again."""
    with serving(tmp_path_factory.mktemp("frozen")) as server:
        settings = Settings(redis_url=server.url, lease=0.4, socket_timeout=0.2)
        broker, gate = Broker(settings), Gate()
        async with staged(broker, Steps(["one", gate, "two"], tries={0: [["one", gate, "two"], ["whole"]]})) as stage:
            await stage.send()
            await gate.reached.wait()
            server.process.send_signal(signal.SIGSTOP)
            gate.open.set()
            await asyncio.sleep(1.2)
            server.process.send_signal(signal.SIGCONT)
            state = await stage.ended()
        assert state["type"] == "completed"
        assert "runs again" not in str(await stage.records())
        await broker.close()


async def test_a_loop_that_fails_goes_on(short: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewal must not end because of one fault: every lease of the worker would lapse."""
    real, failures = queue.renew, [ValueError("x"), RuntimeError("y")]

    async def renew(*args: Any, **options: Any) -> dict[str, str]:
        if failures and stage.worker.tasks:
            raise failures.pop()
        return await real(*args, **options)

    gate = Gate()
    async with staged(short, Steps([gate, "done"])) as stage:
        monkeypatch.setattr(queue, "renew", renew)
        await stage.send()
        await gate.reached.wait()
        await asyncio.sleep(1.0)
        gate.open.set()
        await stage.ended()

    assert failures == []
    assert "runs again" not in str(await stage.records())


async def test_a_fold_is_not_kept_over_a_log_that_lost_writes(broker: Broker) -> None:
    """A restored broker: same positions, other times and other words."""
    model = Steps(["one"], ["two"])
    async with staged(broker, model) as stage:
        await stage.send("the old words")
        await stage.ended()
        await eventually(lambda: stage.worker.turns.folds, "the fold is kept")
        log = broker.keys.of("log", stage.session_id)
        stored = await broker.client.xrange(log)
        await broker.client.delete(log)
        for stream_id, body in stored:
            n, _, ms = stream_id.decode().partition("-")
            await broker.client.xadd(
                log, {b"e": body[b"e"].replace(b"the old words", b"the new words")}, f"{n}-{int(ms) + 7}"
            )
        ms = int((await holders.last_id(broker, stage.session_id)).partition("-")[2])
        await holders.command(broker, "HSET", broker.keys.of("session", stage.session_id), "ms", ms + 7)

        await stage.send("more")
        await stage.until("")

    said = [m.content[0].text for m in model.requests[-1].messages if isinstance(m, UserMessage)]  # type: ignore[union-attr] # texts
    assert said == ["the new words", "more"]


# What its log may say.


async def test_logs_hold_ids_and_never_contents(broker: Broker, logs: list[Any]) -> None:
    secret = "the password is hunter2"  # noqa: S105 - what must not be logged

    @tool
    async def tell(what: str) -> str:
        """Tell it."""
        if "fail" in what:
            raise ToolError(secret)
        return secret

    class Broken:
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelText]:
            if request.messages:
                raise ValueError(secret)
            yield ModelText("never")

    model = Steps([secret, call("tell", "a", what=secret), call("tell", "b", what=f"fail {secret}")], [secret])
    async with staged(broker, model, tell, permission_mode="ask") as stage:
        await stage.send(secret)
        first, second = await stage.callbacks(2)
        await stage.answer(first)
        await stage.answer(second, DenyApproval(secret))
        await stage.ended()
    async with staged(broker, Broken()) as broken:
        await broken.send(secret)
        assert (await broken.ended())["error"]["code"] == "internal_error"
    async with staged(broker, Steps(tries={0: [[ModelError(secret)]]})) as failing:
        await failing.send(secret)
        await failing.ended()

    assert "hunter2" not in repr(logs)
    events = {entry["event"] for entry in logs}
    assert {"worker_started", "turn_begun", "turn_left", "turn_failed", "worker_stopped"} <= events
    (failed,) = [entry for entry in logs if entry["event"] == "turn_failed"]
    assert (failed["error"], failed["session"], failed["turn"]) == ("ValueError", broken.session_id, broken.turn)
    assert "exc_info" not in failed
    assert "test_worker.py" in failed["at"][-1]
    begun = next(entry for entry in logs if entry["event"] == "turn_begun")
    assert (begun["session"], begun["turn"], begun["attempt"]) == (stage.session_id, stage.turn, 1)


async def test_a_record_protocol_that_is_too_new_is_left_to_others(broker: Broker, logs: list[Any]) -> None:
    stage = await queued_turn(broker)
    await holders.command(
        broker, "HSET", broker.keys.of("session", stage.session_id), "protocol", transitions.PROTOCOL + 1
    )
    async with working(broker, agent()):
        await eventually(lambda: [e for e in logs if e.get("reason") == "newer"], "it was refused")
        assert await holders.fields(broker, stage.session_id, "attempts", "job") == ["0", "queued"]
