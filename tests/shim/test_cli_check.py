"""`turnstream check`, as an operator runs it: whole sessions, spoilt ones, and ids that are none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import holders
import pytest
import redis
from commands import called, folder_of_agents, own_prefix, run, session_of, worker
from real_server import RealServer

from broker import transitions
from broker.broker import Broker
from broker.keys import new_session_id

Env = dict[str, str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a module of agents."""
    return folder_of_agents(tmp_path_factory.mktemp("check"))


@pytest.fixture(scope="module")
def told(home: Path, real_server: RealServer) -> Iterator[tuple[Env, str]]:
    """Yield the environment, and a session with two turns, one of which asked a person."""
    with own_prefix(real_server) as env:
        with worker(home, env, "cli_agents:payer"):
            said = run(home, env, "chat", "--name", "payer", typed="Pay.\ny\nAgain.\ny\n")
        yield env, session_of(said.stdout + said.stderr)


async def test_a_whole_session_is_one_line(home: Path, told: tuple[Env, str]) -> None:
    env, session = told

    done = run(home, env, "check", session, session)

    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{session}  ")
    assert line.endswith(" events, 2 turns: in order")
    as_json = await called(env, "check", session, "--json")
    assert json.loads(as_json.stdout)["findings"] == []


async def test_a_session_that_is_not_there_is_said_and_the_others_are_checked(told: tuple[Env, str]) -> None:
    env, session = told

    done = await called(env, "check", "0-x", session, "0-3f9c2e71-8c1e-4b7a-9f5e-0a4c8f1d2b3c")

    assert done.exit_code == 2
    assert ["in order" in line for line in done.stdout.splitlines()] == [True]
    said = done.stderr.splitlines()
    assert len(said) == 2
    assert "There is no session '0-x'" in said[0]
    assert "There is no session 0-3f9c2e71" in said[1]


async def test_a_spoilt_session_is_named_with_the_place_and_harmless_text(
    told: tuple[Env, str], real_server: RealServer
) -> None:
    env, session = told
    spoilt = new_session_id(1)
    base = f"{env['TURNSTREAM_PREFIX']}{{s0}}:"
    with redis.Redis.from_url(real_server.url) as client:
        for kind in ("session", "log"):
            client.copy(f"{base}{kind}:{session}", f"{base}{kind}:{spoilt}")
            client.expire(f"{base}{kind}:{spoilt}", 60)
        log = f"{base}log:{spoilt}"
        n, _, ms = client.xrevrange(log, count=1)[0][0].decode().partition("-")
        wrong = json.dumps({"type": "callbackResolved", "callbackId": "\x1b[2J\x9b31m\nc"})
        client.xadd(log, {"e": wrong}, id=f"{int(n) + 1}-{ms}")
        client.hset(f"{base}session:{spoilt}", "n", int(n) + 1)
        client.xdel(log, client.xrange(log, count=4)[3][0])  # its SessionUpdated

    done = await called(env, "check", session, spoilt)

    assert done.exit_code == 1
    assert (await called(env, "check", spoilt, "0-x")).exit_code == 1, "a finding counts more than what is not there"
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stdout)
    whole, head, lost, opened = done.stdout.splitlines()
    assert whole.endswith(" 2 turns: in order")
    assert head.startswith(f"{spoilt}  ")
    assert head.endswith(" events, 2 turns: 2 findings")
    assert lost.endswith("  lost_event  Event 4 is missing before this one.")
    assert opened.split()[:2] == [f"{int(n) + 1}-{ms}", "never_opened"]
    as_json = await called(env, "check", spoilt, "--json")
    assert as_json.exit_code == 1
    assert [found["code"] for found in json.loads(as_json.stdout)["findings"]] == ["lost_event", "never_opened"]


async def test_all_sessions_are_checked_and_archived_ones_too(env: Env, redis_broker: Broker) -> None:
    session, archived = [await holders.open_session(redis_broker, agent="echo") for _ in range(2)]
    await transitions.retitle(redis_broker, archived, archived=True)

    done = await called(env, "check", "--all")

    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [session, archived]


async def test_what_is_no_finding_exits_with_another_status(told: tuple[Env, str]) -> None:
    env, session = told
    for arguments in ((), (session, "--all")):
        done = await called(env, "check", *arguments)
        assert (done.exit_code, "Name a SESSION, or several, or give --all." in done.stderr) == (2, True)
    for url, says in (
        ("redis://127.0.0.1:1/0", "at 127.0.0.1:1 cannot be reached"),
        (f"{env['TURNSTREAM_REDIS_URL'].rpartition('/')[0]}/99", "out of range"),
        ("redis://h:x", "not usable"),
    ):
        done = await called(env, "check", session, "--url", url)
        assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert says in done.stderr
