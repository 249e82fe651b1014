"""Every process and the broker end, gently or not, and start again: what was accepted goes on, and is done once."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

import pytest
import redis
from eventually import eventually
from fleet import WorkerProcess
from load import RETURN_S, Observed, clerk_of, expect_alive, ground
from real_server import RealServer, serving

import api_shim as agents
from api_shim.local import place_of
from broker.server import free_port
from broker.stored_session import check_tree, read_tree
from workers.ready_file import why_not_ready

T = TypeVar("T")

AT_ONCE: Final = 100
LEASE_S: Final = 2.0
SYNCED: Final = ("--appendonly", "yes", "--appendfsync", "always")
EACH_SECOND: Final = ("--appendonly", "yes", "--appendfsync", "everysec")


def end(server: RealServer, *workers: WorkerProcess, by: signal.Signals = signal.SIGKILL) -> None:
    """End processes, all at once."""
    processes = [worker.process for worker in workers] + [server.process]
    for process in processes:
        process.send_signal(by)
    for process in processes:
        process.wait(timeout=20)


async def many(count: int, each: Callable[[int], Awaitable[T]]) -> list[T]:
    """Do something for each of many, some at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(at: int) -> T:
        async with room:
            return await each(at)

    return list(await asyncio.gather(*(one(at) for at in range(count))))


async def expect_sound(url: str, *session_ids: str) -> None:
    """Their logs keep every promise, and nothing of theirs is active."""
    broker = place_of(url).broker
    trees = await many(len(session_ids), lambda at: read_tree(broker, session_ids[at]))
    for tree in trees:
        for stored, findings in check_tree(tree):
            assert (stored.active, findings) == (None, [])


async def test_a_thousand_parked_turns_outlive_everything_and_each_goes_on_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them wait for an approval, half for a client. While they do, no process holds anything of them."""
    count, seed, port = 1000, random.randrange(10**6), free_port()  # noqa: S311 - an order, not a secret
    print(f"seed {seed}")
    effects = tmp_path / "effects"
    serves, environment = "parked_agents:patient", {"EFFECTS": str(effects)}
    sent: list[tuple[str, str]] = []

    with serving(tmp_path, *EACH_SECOND, port=port) as server, ExitStack() as workers:
        async with ground(server.url, monkeypatch, **environment) as (fleet, _):
            patient = agents.Agent.load_from(agent_name="patient", url=server.url)
            broker = place_of(server.url).broker

            async def send(at: int) -> None:
                session = await patient.start_session()
                turn = await session.send_message(f"{'approve' if at % 2 else 'confirm'} {at}")
                sent.append((session.id, turn.id))

            async def jobs() -> Counter[bytes]:
                keys = (broker.keys.of("session", session_id) for session_id, _ in sent)
                return Counter(await broker.read(*(("HGET", key, "job") for key in keys)))

            both = [workers.enter_context(fleet.worker(serves=serves)) for _ in range(2)]
            await many(count, send)
            await eventually(
                jobs, "all are parked", until=lambda told: told == {b"parked": count}, within=60, every=0.3
            )
        end(server, *both, by=signal.SIGTERM)
    assert not effects.exists()

    with serving(tmp_path, *EACH_SECOND, port=port) as server, ExitStack() as workers:
        async with ground(server.url, monkeypatch, **environment) as (fleet, _):
            for _ in range(2):
                workers.enter_context(fleet.worker(serves=serves))
            with redis.Redis(port=port) as admin:
                assert admin.exists("trouble:{s0}:queue:patient", "trouble:{s0}:queue:patient:running") == 0
                assert admin.zcard("trouble:{s0}:active") == count
                assert len(admin.client_list()) < 20, "connections, of two workers with nothing to do"
            order = random.Random(seed).sample(sent, count)  # noqa: S311 - as above

            async def answer(at: int) -> agents.TurnState[object]:
                session_id, turn_id = order[at]
                turn = agents.session(session_id).turn(turn_id)
                state = await turn.get()
                assert isinstance(state, agents.Blocked)
                (callback,) = state.callbacks
                given = agents.AllowApproval() if isinstance(callback, agents.OpenApproval) else "yes"
                assert isinstance(await turn.answer(callback.id, given), agents.Answered)
                return await turn.result(after=state)

            states = await many(count, answer)
            assert {type(state) for state in states} == {agents.Completed}
            assert sorted(effects.read_text(encoding="utf-8").split(), key=int) == [str(at) for at in range(count)]
            await expect_sound(server.url, *(session_id for session_id, _ in sent))


async def test_everything_is_killed_at_once_and_the_queue_moves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No ghosts: what the dead held is taken up, nobody counts them as there, and what waited is done (F12)."""
    port = free_port()
    # The first four take all slots. A tool that has started is not run again, so these do not take half a minute.
    messages = ["tool 30", "thread 30", "think 1", "stream 800", "ask someone", *["tool 0"] * 20]
    with serving(tmp_path, *SYNCED, port=port) as server, ExitStack() as workers:
        async with ground(server.url, monkeypatch) as (fleet, _):
            both = [workers.enter_context(fleet.worker("--slots", "2")) for _ in range(2)]
            clerk = clerk_of(server.url)
            sessions = [await clerk.start_session() for _ in messages]
            turns = [await session.send_message(text) for session, text in zip(sessions, messages, strict=True)]
            with redis.Redis(port=port) as admin:
                await eventually(
                    lambda: admin.zcard("trouble:{s0}:queue:clerk:running"),
                    "all slots are taken",
                    until=lambda n: n == 4,
                )
                end(server, *both)

    with serving(tmp_path, *SYNCED, port=port) as server, ExitStack() as workers:
        async with ground(server.url, monkeypatch) as (fleet, _):
            workers.enter_context(fleet.worker())
            session = await clerk_of(server.url).start_session()
            assert isinstance(await session.run("hello", timeout=RETURN_S), agents.Completed)
            ids = [(turn._session.id, turn.id) for turn in turns]
            async with asyncio.timeout(LEASE_S + RETURN_S + 10):
                states = await asyncio.gather(*(agents.session(sid).turn(turn).result() for sid, turn in ids))
            for message, state in zip(messages, states, strict=True):
                kind = agents.Blocked if message.startswith("ask") else agents.Completed
                assert isinstance(state, kind), message
            with redis.Redis(port=port) as admin:
                assert admin.zcard("trouble:{s0}:workers:clerk") == 1
                assert admin.zcard("trouble:{s0}:active") == 1, "the one that is parked"
            await expect_sound(
                server.url, *(sid for (sid, _), text in zip(ids, messages, strict=True) if "ask" not in text)
            )


class Clients:
    """Clients that send and wait, one message after the other, whatever the broker does. `done` counts what has ended."""

    def __init__(self, clerk: agents.Agent) -> None:
        self._clerk = clerk
        self._stopping = False
        self.done = 0
        self.sent: dict[str, list[agents.Turn]] = {}
        self.observed: list[Observed] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, count: int) -> None:
        """Open a session for each client, with an observer, and let them begin."""
        for _ in range(count):
            session = await self._clerk.start_session()
            self.observed.append(Observed(session))
            self._tasks.append(asyncio.create_task(self._send(session)))

    async def _send(self, session: agents.Session) -> None:
        turns = self.sent[session.id] = []
        while not self._stopping:
            # Sent again with its key when it may not have arrived: the promise to hold is that it is done once.
            turn = await self._insist(lambda: session.send_message("hello", idempotency_key=str(len(turns))))
            turns.append(turn)
            state = await self._insist(turn.result)
            assert isinstance(state, agents.Completed)
            self.done += 1

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except (agents.OutcomeUnknownError, agents.BrokerUnavailableError):
                continue

    async def expect_progress(self) -> None:
        """Each client gets something done, soon."""
        before = self.done
        enough = before + 2 * len(self._tasks)
        await eventually(lambda: self.done, "turns end again", until=lambda done: done >= enough, within=RETURN_S)

    async def stop(self) -> None:
        """Let each end what it does."""
        self._stopping = True
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize(
    ("restarts", "longest"), [(4, 1.5), pytest.param(20, 10.0, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
async def test_a_broker_that_restarts_again_and_again_under_load(
    restarts: int, longest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody survives, nothing accepted is lost, and work goes on within five seconds of each return (F14)."""
    seed, port = random.randrange(10**6), free_port()  # noqa: S311 - times, not secrets
    print(f"seed {seed}")
    chance = random.Random(seed)  # noqa: S311 - as above
    url = f"redis://127.0.0.1:{port}/0"
    async with ground(url, monkeypatch) as (fleet, _):
        with ExitStack() as stack, ExitStack() as workers:
            server = stack.enter_context(serving(tmp_path, *SYNCED, port=port))
            ready = tmp_path / "ready"
            both = [workers.enter_context(fleet.worker(*told)) for told in ((), ("--ready-file", str(ready)))]
            clients = Clients(clerk_of(url))
            await clients.begin(5)
            await clients.expect_progress()
            for _ in range(restarts):
                end(server, by=chance.choice([signal.SIGKILL, signal.SIGTERM]))
                await asyncio.sleep(chance.uniform(0, longest))
                server = stack.enter_context(serving(tmp_path, *SYNCED, port=port))
                await clients.expect_progress()
            end(server, by=signal.SIGTERM)
            await eventually(
                lambda: why_not_ready(ready), "not ready", until=lambda why: "reach" in str(why), within=RETURN_S
            )
            server = stack.enter_context(serving(tmp_path, *SYNCED, port=port))
            await eventually(lambda: why_not_ready(ready), "ready", until=lambda why: why is None, within=RETURN_S)
            await clients.expect_progress()
            await clients.stop()
            for worker in both:
                expect_alive(worker)
            for observed in clients.observed:
                await observed.expect_whole(place_of(url).broker, clients.sent[observed.session.id])
                assert observed.lost is None
