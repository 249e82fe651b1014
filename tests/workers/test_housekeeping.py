"""What every worker does beside its turns: deadlines are kept, and turns that nobody holds are found."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import holders
import pytest
from eventually import eventually
from real_server import serving
from turns import Stage, Steps, add, call, staged, text_of, working

from broker import transitions
from broker.broker import Broker
from broker.deadlines import expire
from broker.keys import new_id
from broker.protocol.errors import BrokerUnavailableError
from broker.settings import Settings
from workers import housekeeping
from workers.agent import AgentDefinition
from workers.housekeeping import keep_house


@pytest.fixture
async def asking(broker: Broker) -> AsyncIterator[Stage]:
    """A session whose turn asks before its one call; a question stands for a fifth of a second."""
    broker.settings = broker.settings.model_copy(update={"callback_timeout": 0.2})
    async with staged(broker, Steps([call("add", "c", a=1, b=2)]), add, permission_mode="ask") as stage:
        yield stage


async def test_a_worker_keeps_deadlines_by_itself(asking: Stage) -> None:
    """Real time, and no more of it than a look."""
    await asking.send()

    state = await asking.ended()

    assert state["type"] == "completed"
    (entry,) = await asking.entries("toolResult")
    assert "nobody answered in time" in text_of(entry)


async def test_a_turn_that_nobody_holds_is_found(broker: Broker) -> None:
    """The broker lost the job, and kept the rest: the worker that comes next sweeps first."""
    session_id = await holders.open_session(broker)
    await holders.start(broker, session_id)
    (job_id,), _ = await holders.queued(broker)
    queue = broker.keys.queue(0, "agent")
    await holders.command(broker, "DEL", queue, f"{queue}:wake", f"arq:job:{job_id}")
    async with working(broker, AgentDefinition(model=Steps(["found"]), name="agent")) as worker:
        stage = Stage(broker, worker, session_id)

        assert (await stage.ended())["text"] == "found"


async def test_it_sleeps_until_the_next_deadline_and_no_longer_than_a_look(broker: Broker) -> None:
    assert await keep_house(broker) == housekeeping.LOOK_S
    broker.settings = broker.settings.model_copy(update={"idle_limit": 1.0})
    session_id = await holders.open_session(broker)

    assert 0.5 < await keep_house(broker) <= 1.0

    await holders.move_clock(broker, 1001)
    assert await keep_house(broker) == housekeeping.LOOK_S
    assert await holders.fields(broker, session_id, "status") == ["terminated"]


async def test_what_has_expired_is_dropped_though_nobody_reads_it(embedded_broker: Broker) -> None:
    """A server of its own does that; the embedded broker kept the logs of ended sessions for as long as its process lived."""
    assert embedded_broker.embedded is not None
    embedded_broker.settings = embedded_broker.settings.model_copy(update={"retention": 0.01})
    await transitions.cancel(embedded_broker, await holders.open_session(embedded_broker))
    kept = embedded_broker.embedded._server.dbs[0]._dict

    async def looked() -> list[bytes]:
        await holders.command(embedded_broker, "DEL", f"{embedded_broker.keys.base(0)}swept")
        await keep_house(embedded_broker)
        return [key for key in kept if b":log:" in key]

    await eventually(looked, "its log is gone", until=lambda logs: logs == [])


async def test_every_shard_is_looked_after(broker: Broker) -> None:
    broker.settings = broker.settings.model_copy(update={"shards": 3, "idle_limit": 60.0})
    sessions = [f"{shard}-{new_id()}" for shard in range(3)]
    for session_id in sessions:
        options = transitions.SessionOptions(agent="agent", queue="agent", digest="-")
        await transitions.open_session(broker, session_id, options)
    for shard in range(3):
        await holders.command(broker, "SET", f"{broker.keys.base(shard)}clock", 61_000)

    await keep_house(broker)

    assert [await holders.fields(broker, session_id, "status") for session_id in sessions] == [["terminated"]] * 3


async def test_many_workers_expire_a_callback_once(broker: Broker) -> None:
    broker.settings = broker.settings.model_copy(update={"callback_timeout": 60.0})
    holder = await holders.running(broker)
    await holder.append(*holders.called("c"), *holders.ask("c1"))
    await holder.park()
    await holders.move_clock(broker, 61_000)

    for _ in range(5):
        await keep_house(broker)

    found = holders.kinds(await holders.records(broker, holder.session_id))
    assert found.count("callbackResolved") == 1
    assert await holders.fields(broker, holder.session_id, "wake") == ["2"]


async def test_it_survives_a_broker_that_is_away(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Frozen when the deadline passes: it is kept when the broker answers again."""
    with serving(tmp_path_factory.mktemp("away")) as server:
        broker = Broker(Settings(redis_url=server.url, callback_timeout=1.0, socket_timeout=0.2))
        asks = Steps([call("add", "c", a=1, b=2)])
        async with staged(broker, asks, add, permission_mode="ask") as stage:
            await stage.send()
            await stage.callbacks()
            server.process.send_signal(signal.SIGSTOP)
            away = keep_house(broker)
            with pytest.raises(BrokerUnavailableError, match="did not answer"):
                await away
            server.process.send_signal(signal.SIGCONT)
            assert (await stage.ended())["type"] == "completed"
        await eventually(lambda: expire(broker, 0), "nothing is due", until=lambda seen: seen.wait != 0)
        await broker.close()
