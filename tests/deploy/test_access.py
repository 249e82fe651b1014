"""The access list of `deploy/users.acl`: each user can do its work, an observer changes nothing, no command is granted unused."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from deployed import DEPLOY, ROOT, Deployment, deployed

import api_shim as agents
from api_shim.listing import list_sessions
from api_shim.local import place_of
from broker import dead_letters, queue, runs, transitions
from broker.broker import Broker
from broker.channels import pop_token, subscribe
from broker.contents import Message
from broker.deadlines import expire
from broker.keys import new_id, new_session_id
from broker.live import Hub
from broker.log import read_events
from broker.protocol.errors import SdkError, TurnNotFoundError
from broker.protocol.events import TextDelta, TurnEnded
from broker.protocol.wire import resolved_tail, tail
from broker.runs import Begun, Write
from broker.scripting import Argument, load_script
from broker.server import find_server, free_port
from broker.settings import Settings
from broker.stored_session import check_tree, read_tree
from broker.transitions import NoRecord, Sent, SessionOptions
from workers.worker import TurnWorker

CLIENT_VERBS: Final = (
    *("stage", "open_session", "start", "steer", "answer", "interrupt", "cancel", "retitle"),
    *("record", "tails", "retry"),
)
WORKER_VERBS: Final = (
    "claim",
    "begin",
    "append",
    "park",
    "spawn",
    "finish",
    "release",
    "renew",
    "leave",
    "sweep",
    "expire",
)
CLIENT_MODULES: Final = (
    *(
        "api_shim/**/*.py",
        "broker/log.py",
        "broker/blobs.py",
        "broker/feed.py",
        "broker/live.py",
        "broker/stored_session.py",
    ),
)
AT_START: Final = {"info", "set", "select"}  # the check, and a URL's database number
REFUSED: Final = "o permissions|The user executing the script can't|ACL failure in script"  # as versions word it

Opened = Callable[[str], AbstractAsyncContextManager[Broker]]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Run a server with the files of `deploy/`."""
    with deployed(tmp_path_factory.mktemp("deployment")) as running:
        yield running


@pytest.fixture
def opened(deployment: Deployment) -> Opened:
    """Return what opens the broker as a user."""

    @asynccontextmanager
    async def open_as(user: str) -> AsyncIterator[Broker]:
        broker = Broker(Settings(redis_url=deployment.url(user), command_budget=1.0))
        try:
            yield broker
        finally:
            await broker.close()

    return open_as


@pytest.fixture
def nothing_refused(deployment: Deployment) -> Iterator[None]:
    """Fail when the server refused anything meanwhile, also what a client library swallowed."""
    with deployment.operator() as operator:
        operator.acl_log_reset()
        yield
        refused: list[dict[str, Any]] = operator.execute_command("ACL", "LOG")
    # Announced by newer clients to servers from 7.2 on; README.md says why it is not granted.
    assert [entry for entry in refused if "setinfo" not in str(entry)] == []


def granted(user: str) -> set[str]:
    """Return the commands that the list grants a user one by one."""
    line = re.search(rf"^user {user} .*$", (DEPLOY / "users.acl").read_text(encoding="utf-8"), re.MULTILINE)
    assert line is not None
    return set(re.findall(r" \+(\S+)", line[0]))


def in_scripts(verbs: tuple[str, ...]) -> set[str]:
    """Return the commands in the scripts of some verbs."""
    sources = [load_script(verb, 0).source for verb in verbs]
    return {name.lower() for source in sources for name in re.findall(r"redis\.call\('([A-Z]+)'", source)}


def in_modules(known: Container[str], *patterns: str) -> set[str]:
    """Return the commands that stand as literals in some modules."""
    texts = [path.read_text(encoding="utf-8") for pattern in patterns for path in ROOT.glob(pattern)]
    named = {word for text in texts for word in re.findall(r'"([A-Z]{3,}(?: LOAD)?)"', text)}
    return {word.lower().replace(" ", "|") for word in named if word.split()[0].lower() in known}


def message() -> Message:
    entry = {"type": "message", "id": new_id(), "role": "user", "content": [{"type": "text", "text": "hello"}]}
    return Message(tails=[tail({"type": "entryCompleted", "entry": entry})], digest=new_id())


async def start(broker: Broker) -> tuple[str, str]:
    """Open a session of the agent `clerk` and start a turn; return both ids."""
    session_id = new_session_id(1)
    await transitions.open_session(broker, session_id, SessionOptions(agent="clerk", queue="clerk", digest="-"))
    sent = await transitions.start(broker, session_id, message(), key=new_id(), join=False)
    assert isinstance(sent, Sent)
    return session_id, sent.turn


async def take_up(broker: Broker, session_id: str) -> tuple[queue.Job, str, str]:
    """Claim what is due and begin a session's job; return it, its fence and the log's last id."""
    line = broker.keys.queue(0, "clerk")
    claimed = await queue.claim(broker, line, worker="w", slots=9, lease=15, budget=1)
    ((job_id, body),) = [(job_id, body) for job_id, body in claimed.jobs if session_id in job_id]
    job, fence = queue.read_job(job_id, body), new_id()
    begun = await runs.begin(
        broker,
        job.session_id,
        job=job_id,
        turn=job.turn_id,
        wake=job.wake,
        fence=fence,
        worker="w",
        after="0-0",
        page=9,
    )
    assert isinstance(begun, Begun)
    return job, fence, begun.last


ENDED: Final = tail({"type": "turnEnded", "state": {"type": "completed", "text": "", "toolCalls": []}})
NOTICE: Final = tail({"type": "notice", "message": "x", "level": "info", "source": "test", "details": None})
OPENS: Final = tail({"type": "callbackOpened", "callback": {"type": "later", "id": "q", "title": "?", "openedAt": "-"}})


def test_a_list_that_is_not_filled_in_starts_no_server(tmp_path: Path) -> None:
    place = ["--port", str(free_port()), "--dir", str(tmp_path), "--aclfile", str(DEPLOY / "users.acl")]
    command = [find_server().path, *place]
    told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert told.returncode != 0
    assert "password hash must be exactly 64 characters" in told.stdout


def test_nobody_comes_in_without_a_name(deployment: Deployment) -> None:
    for name, password in ((None, None), ("default", ""), ("default", "x"), ("worker", ""), ("worker", "x")):
        with (
            redis.Redis(port=deployment.server.port, username=name, password=password) as stranger,
            pytest.raises(redis.AuthenticationError),
        ):
            stranger.ping()


@pytest.mark.parametrize("user", ["worker", "shim", "observer"])
def test_no_user_of_a_program_administers(deployment: Deployment, user: str) -> None:
    with redis.Redis.from_url(deployment.url(user)) as client:
        for command in ("CONFIG GET dir", "FLUSHALL", "KEYS *", "ACL LIST", "SHUTDOWN", "EVAL return 0"):
            with pytest.raises(redis.ResponseError, match=REFUSED):
                client.execute_command(*command.split(), *(["0"] if "EVAL" in command else []))
        for key in ("other", "arq:job:{s0}other:x", "ts:check"):
            with pytest.raises(redis.ResponseError, match=REFUSED):
                client.get(key)


def test_the_list_grants_what_scripts_and_code_send_and_no_more(deployment: Deployment) -> None:
    with deployment.operator() as operator:
        known: dict[str, Any] = operator.command()
    writing = {name for name in granted("observer") if "write" in known[name.partition("|")[0]]["flags"]}
    client = in_scripts(CLIENT_VERBS) | in_modules(known, *CLIENT_MODULES, "broker/pipeline.py") | AT_START
    worker = client | in_scripts(WORKER_VERBS) | in_modules(known, "workers/*.py", "broker/channels.py")
    assert granted("shim") == client
    assert granted("worker") == worker
    assert granted("observer") < client
    assert writing == set()


def every_effect(callback: str) -> list[Argument]:
    """Return one write with each kind of effect; the last opens a callback."""
    entry = new_id()
    message: list[Argument] = ["e", NOTICE, "w", entry, "message", '"type":"x', '"}', "a", "d", entry, "b", NOTICE]
    reasoning: list[Argument] = ["w", entry, "reasoning", "", "", "", "t", entry, "b"]
    rest: list[Argument] = ["o", "f", "b", "c", "f", "l", '"text"', "b", "blob", "bytes", "q", callback, OPENS]
    return [*message, "c", entry, *reasoning, "c", entry, *rest]


@pytest.mark.usefixtures("nothing_refused")
async def test_worker_and_shim_take_a_turn_through_its_life(opened: Opened) -> None:
    async with opened("shim") as shim, opened("worker") as worker:
        await shim.check()
        await worker.check()
        line = worker.keys.queue(0, "clerk")
        await queue.renew(worker, line, [], worker="w", agent="clerk", slots=1, version="0", budget=1)
        session_id, turn = await start(shim)
        async with aclosing(pop_token(worker, [f"{line}:wake"], 1.0)) as tokens:
            assert await anext(tokens) is not None
        job, fence, last = await take_up(worker, session_id)
        await queue.renew(worker, line, [job.id], worker="w", agent="clerk", slots=1, version="0", budget=1)
        callback = new_id()
        _, last = await runs.append(worker, Write(session_id, fence, 1, last), every_effect(callback), budget=1)
        assert await runs.park(worker, Write(session_id, fence, 2, last), budget=1)
        resolved = resolved_tail(callback, "answered", {"type": "allow"})
        assert await transitions.answer(shim, session_id, callback, resolved) == transitions.Answered()
        _, fence, _ = await take_up(worker, session_id)
        assert await transitions.steer(shim, session_id, turn, message()) is None
        assert await runs.release(worker, session_id, fence, budget=1)
        _, fence, _ = await take_up(worker, session_id)
        assert await runs.finish(worker, Write(session_id, fence, 1, ""), ENDED, budget=1)
        assert not isinstance(await transitions.record(shim, session_id, turn), NoRecord)
        assert await queue.sweep(worker, 0) == 0
        await expire(worker, 0)
        await queue.leave(worker, line, worker="w", agent="clerk", budget=1)
        await transitions.retitle(shim, session_id, title=b'"new"')
        await worker.commands.command("ZADD", f"{shim.keys.base(0)}dead", 1, f"{session_id} {turn}")
        assert isinstance(await dead_letters.retry(shim, session_id, turn), Sent)
        other, turn = await start(shim)
        assert await transitions.interrupt(shim, other, turn) is None
        await transitions.cancel(shim, other)
        await transitions.cancel(shim, session_id)


@agents.tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def approve_and_await_the_end(session: agents.Session, turn: agents.Turn) -> None:
    state = await turn.result(timeout=10)
    assert isinstance(state, agents.Blocked)
    assert isinstance(await turn.answer(state.callbacks[0].id, agents.AllowApproval()), agents.Answered)
    assert isinstance(await turn.result(timeout=10), agents.Completed)
    await session.rename("paid")


def without_deltas(events: list[Any]) -> list[Any]:
    return [event for event in events if not isinstance(event, TextDelta)]


@pytest.mark.usefixtures("nothing_refused")
async def test_a_session_runs_between_a_real_worker_an_application_and_an_observer(
    deployment: Deployment, opened: Opened
) -> None:
    model = agents.ScriptedModel(
        [
            agents.ScriptedReply(calls=[agents.ScriptedCall("client.pay", {"amount": 100})]),
            agents.ScriptedReply(chunks=["all ", "done"], delay=0.01),
        ]
    )
    payer = agents.Agent(name="payer", tools=[pay], permission_mode="ask", model=model)
    url = deployment.url("shim")
    async with opened("worker") as broker, opened("observer") as reader:
        worker = TurnWorker(broker, [payer.definition])
        working = asyncio.create_task(worker.main())
        await worker.ready.wait()
        session = await agents.Agent.load_from(agent_name="payer", url=url).start_session()
        hub = Hub(reader)
        seen: list[Any] = []

        async def watch() -> None:
            async with aclosing(hub.follow(session.id, None)) as events:
                seen.extend([event async for event in events])

        watching = asyncio.create_task(watch())
        turn = await session.start_turn("Pay 100.")
        assert isinstance(turn, agents.Turn)
        await approve_and_await_the_end(session, turn)
        assert [info.title async for info in list_sessions(host=url)][:1] == ["paid"]
        await session.cancel()
        await asyncio.wait_for(watching, 10)

        stored = [event async for event in read_events(reader, session.id)]
        assert without_deltas(seen) == without_deltas(stored)
        assert any(isinstance(event, TurnEnded) for event in seen)
        await hub.close()
        await worker.drain(0)
        await asyncio.gather(working)
    await place_of(url).close()


@pytest.mark.usefixtures("nothing_refused")
async def test_an_observer_reads_and_subscribes(opened: Opened, deployment: Deployment) -> None:
    async with opened("shim") as shim, opened("observer") as observer:
        session_id, turn = await start(shim)
        with deployment.operator() as operator:
            operator.script_flush()  # as after a restart: the scripts are the observer's to load
        state = await transitions.record(observer, session_id, turn)
        assert isinstance(state, transitions.OpenRecord)
        assert await transitions.tails(observer, [session_id]) == [state.last]
        assert [findings for _, findings in check_tree(await read_tree(observer, session_id))] == [[]]
        assert [letter async for letter in dead_letters.list_letters(observer)] == []
        with pytest.raises(TurnNotFoundError):
            await dead_letters.read_letter(observer, session_id, turn)
        assert [event async for event in read_events(observer, session_id)] != []
        async with aclosing(subscribe(observer, [observer.keys.live(session_id)])) as messages:
            assert await anext(messages) is None
            await transitions.cancel(shim, session_id)
            told = await anext(messages)
        assert told is not None
        assert b"turnEnded" in told[1]
        assert isinstance(await transitions.record(observer, session_id, turn), transitions.EndedRecord)


async def test_an_observer_changes_nothing(opened: Opened) -> None:
    async with opened("shim") as shim, opened("observer") as observer, opened("worker") as worker:
        session_id, turn = await start(shim)
        job, fence, last = await take_up(worker, session_id)
        callback, write = new_id(), Write(session_id, fence, 1, last)
        write = Write(session_id, fence, 2, (await runs.append(worker, write, ["q", callback, OPENS], budget=1))[1])
        before = await all_of(shim, session_id)
        line = shim.keys.queue(0, "clerk")
        attempts: list[Awaitable[Any]] = [
            transitions.open_session(observer, new_session_id(1), SessionOptions(agent="a", queue="a", digest="-")),
            transitions.start(observer, session_id, message(), key=None, join=True),
            transitions.steer(observer, session_id, turn, message()),
            transitions.answer(observer, session_id, callback, resolved_tail(callback, "answered", {"type": "allow"})),
            transitions.interrupt(observer, session_id, turn),
            transitions.cancel(observer, session_id),
            transitions.retitle(observer, session_id, title=b'"mine"'),
            runs.append(observer, write, ["e", NOTICE], budget=1),
            runs.park(observer, write, budget=1),
            runs.finish(observer, write, ENDED, budget=1),
            runs.release(observer, session_id, fence, budget=1),
            queue.claim(observer, line, worker="o", slots=1, lease=15, budget=1),
            queue.renew(observer, line, [job.id], worker="o", agent="clerk", slots=1, version="0", budget=1),
            observer.commands.command("SET", f"{observer.keys.base(0)}x", "1"),
            observer.commands.command("XADD", observer.keys.of("log", session_id), "*", "e", "{}"),
            observer.commands.command("PUBLISH", observer.keys.live(session_id), "x"),
            observer.commands.command("SUBSCRIBE", observer.keys.control(0, "w")),
            observer.commands.command("HGETALL", observer.keys.of("receipts", session_id)),
            observer.commands.command("GET", f"arq:job:{job.id}"),
        ]
        for outcome in await asyncio.gather(*attempts, return_exceptions=True):
            assert isinstance(outcome, (redis.ResponseError, SdkError)), outcome
            assert re.search(f"{REFUSED}|access list does not allow it", str(outcome))
        assert await all_of(shim, session_id) == before
        await transitions.cancel(shim, session_id)


async def all_of(broker: Broker, session_id: str) -> tuple[Any, list[Any]]:
    """Return a session's own fields, and its events."""
    fields = await broker.reads.command("HGETALL", broker.keys.of("session", session_id))
    return fields, [event async for event in read_events(broker, session_id)]


async def test_an_application_cannot_claim_a_turn(opened: Opened) -> None:
    async with opened("shim") as shim:
        session_id, _ = await start(shim)
        with pytest.raises(SdkError, match="access list does not allow it"):
            await queue.claim(shim, shim.keys.queue(0, "clerk"), worker="s", slots=1, lease=15, budget=1)
        assert await shim.reads.command("HGET", shim.keys.of("session", session_id), "job") == b"queued"
        await transitions.cancel(shim, session_id)


async def test_an_observer_s_program_lists_and_follows_and_is_told_why_it_may_not_send(
    deployment: Deployment, opened: Opened
) -> None:
    url = deployment.url("observer")
    async with opened("shim") as shim:
        session_id, turn = await start(shim)
        session = agents.Agent.load_from(agent_name="clerk", url=url).session(session_id)
        assert session_id in [info.id async for info in list_sessions(host=url)]
        assert isinstance(await session.turn(turn).result(timeout=0), agents.Running)
        for refused in (session.send_message("hello"), session.rename("mine"), session.cancel()):
            with pytest.raises(SdkError, match="access list does not allow it"):
                await refused
        await transitions.cancel(shim, session_id)
        assert any([isinstance(event, TurnEnded) async for event in session.iter_events()])
    await place_of(url).close()
