"""Each way in which arq gives up a job without telling anybody: here it ends the turn, or cannot happen.

Read from `arq.worker.Worker.run_job`: the job's body is gone ("expired"), it cannot be deserialised, its function is unknown, its
tries are used up, it was aborted. To these come jobs whose agent, subagent or session is not there any more.
"""

from __future__ import annotations

import json
from typing import Any

import arq.constants
import holders
import pytest
from eventually import eventually
from leaks import drop_keys
from turns import Stage, Steps, working

from broker import queue
from broker.broker import Broker
from broker.keys import new_id
from workers.agent import AgentDefinition


def agent(name: str = "agent") -> AgentDefinition:
    return AgentDefinition(model=Steps(["hello"]), name=name)


async def queued_job(broker: Broker) -> tuple[Stage, str]:
    """A session with a turn in the queue, and the job's id. No token rings for it, so it is claimed with its body."""
    stage = Stage(broker, None, await holders.open_session(broker))  # type: ignore[arg-type] # no worker yet
    await stage.send()
    await holders.command(broker, "DEL", f"{broker.keys.queue(0, 'agent')}:wake")
    (job_id,), _ = await holders.queued(broker)
    return stage, job_id


@pytest.fixture
def short(redis_broker: Broker) -> Broker:
    """A broker whose leases are short, for what goes when its lease lapses."""
    redis_broker.settings = redis_broker.settings.model_copy(update={"lease": 0.4})
    return redis_broker


def body_of(stage: Stage, **changed: Any) -> str:
    return json.dumps({"t": None, "f": "run_turn", "a": [stage.session_id, stage.turn, 1], "k": {}, "et": 0, **changed})


def bodies(stage: Stage) -> dict[str, str | None]:
    """Bodies that this deployment did not write; None: there is none any more."""
    return {
        "gone": None,
        "empty": "",
        "a pickle": "\x80\x04\x95 a pickle",
        "no object": "[1, 2]",
        "no function": json.dumps({"a": [stage.session_id, stage.turn, 1]}),
        "another function": body_of(stage, f="another"),
        "another turn": body_of(stage, a=[stage.session_id, new_id(), 1]),
        "no arguments": body_of(stage, a=None),
    }


@pytest.mark.parametrize(
    "bad",
    ["gone", "empty", "a pickle", "no object", "no function", "another function", "another turn", "no arguments"],
)
async def test_a_job_whose_body_is_not_ours_ends_its_turn(broker: Broker, bad: str) -> None:
    """arq: "job expired", a SerializationError, "function not found"."""
    stage, job_id = await queued_job(broker)
    body = bodies(stage)[bad]
    await holders.command(
        broker, *(("DEL", f"arq:job:{job_id}") if body is None else ("SET", f"arq:job:{job_id}", body))
    )

    async with working(broker, agent()) as worker:
        state = await stage.ended()
        assert (state["type"], state["error"]["code"]) == ("failed", "bad_job")
        await eventually(lambda: worker.tasks, "no task is left", until=lambda tasks: not tasks)
        assert await holders.queued(broker) == ([], [])
        await stage.send("and again")  # the session goes on
        assert (await stage.ended())["text"] == "hello"


async def test_the_tries_of_arq_do_not_count(broker: Broker) -> None:
    """arq: "max retries exceeded". Attempts are the turn's own, counted by begin."""
    stage, job_id = await queued_job(broker)
    await holders.command(broker, "SET", arq.constants.retry_key_prefix + job_id, 10**7)

    async with working(broker, agent()):
        assert (await stage.ended())["text"] == "hello"
    await holders.command(broker, "DEL", arq.constants.retry_key_prefix + job_id)


async def test_a_job_cannot_be_aborted_past_its_turn(broker: Broker) -> None:
    """arq: "aborted before start". A turn is stopped by interrupt and cancel, which write its end."""
    stage, job_id = await queued_job(broker)
    await holders.command(broker, "ZADD", arq.constants.abort_jobs_ss, 1, job_id)

    async with working(broker, agent()):
        assert (await stage.ended())["text"] == "hello"
    await holders.command(broker, "DEL", arq.constants.abort_jobs_ss)


async def test_a_turn_in_a_queue_that_is_not_its_agent_s_fails(broker: Broker) -> None:
    """Its token lay in another agent's list: a worker that knows the one and not the other took it."""
    stage, job_id = await queued_job(broker)
    await holders.command(broker, "HSET", broker.keys.of("session", stage.session_id), "queue", "elsewhere")
    await holders.command(broker, "ZREM", broker.keys.queue(0, "agent"), job_id)
    await holders.command(broker, "ZADD", broker.keys.queue(0, "elsewhere"), 1, job_id)

    async def rung() -> str:
        await queue.hand_on(broker, f"{broker.keys.queue(0, 'agent')}:wake", job_id)
        return await stage.state()

    async with working(broker, agent()):
        await eventually(rung, "a token is taken: a claim of nothing drops them all", until=lambda job: job == "")
        error = (await stage.ended())["error"]
    assert (error["code"], error["message"]) == ("unknown_agent", "agent elsewhere is not served where its queue is")


async def test_what_cannot_be_read_of_a_log_ends_the_turn(broker: Broker) -> None:
    """Not five attempts, each of which meets the same."""
    stage, _ = await queued_job(broker)
    await holders.command(broker, "HSET", broker.keys.of("session", stage.session_id), "inputs", "{no json")

    async with working(broker, agent()):
        error = (await stage.ended())["error"]
    assert error["code"] == "internal_error"
    assert "runs again" not in str(await stage.records())


@pytest.mark.parametrize("rung", [False, True])
async def test_a_job_whose_session_is_gone_is_dropped(short: Broker, rung: bool) -> None:
    stage, job_id = await queued_job(short)
    if rung:
        await holders.command(short, "LPUSH", f"{short.keys.queue(0, 'agent')}:wake", job_id)
    await holders.command(short, "DEL", short.keys.of("session", stage.session_id))

    async with working(short, agent()):
        await eventually(lambda: holders.queued(short), "it is dropped", until=lambda jobs: jobs == ([], []))
        assert await holders.keys_of(short, "job") == []
    await drop_keys(short.client, short.settings.prefix)  # what is left of the session


@pytest.mark.parametrize("rung", [False, True])
async def test_a_job_that_is_not_ours_is_dropped(short: Broker, rung: bool) -> None:
    key = short.keys.queue(0, "agent")
    await holders.command(short, "ZADD", key, 1, "somebody's job")
    await holders.command(short, "SET", "arq:job:somebody's job", "x", "EX", 60)
    if rung:
        await holders.command(short, "LPUSH", f"{key}:wake", "somebody's job")

    async with working(short, agent()):
        await eventually(lambda: holders.queued(short), "it is dropped", until=lambda jobs: jobs == ([], []))
        assert await holders.command(short, "EXISTS", "arq:job:somebody's job") == 0
