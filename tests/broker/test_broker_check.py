"""The check at start: a broker that would lose data is refused, with one sentence that says what to change."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio as aioredis
from eventually import eventually
from holders import command
from real_server import SLOWLY, RealServer, fill, serving, starting

from broker.broker import Broker, is_away
from broker.protocol.errors import BrokerUnavailableError
from broker.server import free_port
from broker.settings import Settings


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with serving(tmp_path_factory.mktemp("checked")) as running:
        yield running


@pytest.fixture
async def checked(server: RealServer) -> AsyncIterator[Broker]:
    """A broker on a server of its own; its settings are put back."""
    broker = Broker(Settings(redis_url=server.url, prefix="check:"))
    yield broker
    for name, value in (("maxmemory-policy", "noeviction"), ("min-replicas-to-write", "0"), ("maxmemory", "0")):
        await broker.client.config_set(name, value)
    await command(broker, "REPLICAOF", "NO", "ONE")
    await broker.client.flushdb()
    await broker.close()


async def refusal(broker: Broker) -> str:
    with pytest.raises(BrokerUnavailableError) as refused:
        await broker.check()
    said = str(refused.value)
    assert said.endswith(".")
    assert "\n" not in said
    return said


async def test_a_sound_broker_passes(broker: Broker) -> None:
    await broker.check()


async def test_what_the_check_writes_goes_by_itself(checked: Broker) -> None:
    await checked.check()

    (key,) = await checked.client.keys("check:*")
    assert 0 < await checked.client.pttl(key) <= 1000


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "volatile-random"])
async def test_a_broker_that_evicts_is_refused(checked: Broker, policy: str) -> None:
    await checked.client.config_set("maxmemory-policy", policy)

    said = await refusal(checked)

    assert policy in said
    assert "set maxmemory-policy to noeviction" in said


def says_it_is(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Let the server be of a version."""
    real = aioredis.Redis.info

    async def info(client: aioredis.Redis, section: str) -> Any:
        return {**await real(client, section), **({"redis_version": version} if section == "server" else {})}

    monkeypatch.setattr(aioredis.Redis, "info", info)


async def test_an_old_server_is_refused(checked: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    says_it_is(monkeypatch, "6.0.16")

    said = await refusal(checked)

    assert "Redis 6.0.16" in said
    assert "6.2 or newer" in said


@pytest.mark.parametrize("version", ["6.2.0", "7.4.1", "10.0.0"])
async def test_newer_servers_pass(checked: Broker, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says_it_is(monkeypatch, version)

    await checked.check()


async def test_a_replica_is_refused(checked: Broker) -> None:
    await command(checked, "REPLICAOF", "127.0.0.1", free_port())

    assert "read-only replica: let TURNSTREAM_REDIS_URL name the primary" in await refusal(checked)


async def test_a_server_that_takes_no_writes_is_refused(checked: Broker) -> None:
    await checked.client.config_set("min-replicas-to-write", 3)

    said = await refusal(checked)

    assert "refuses writes" in said
    assert "replicas" in said.lower()


async def test_a_full_server_passes(checked: Broker) -> None:
    """What runs there goes on; new work is refused with an error of its own."""
    await checked.client.config_set("maxmemory", 1)

    await checked.check()


async def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port=port), redis.Redis(port=port) as admin:
        fill(admin, 100)
        admin.save()
    broker = Broker(Settings(redis_url=f"redis://127.0.0.1:{port}/0"))
    with starting(tmp_path, *SLOWLY, port=port):
        await eventually(lambda: refusal_of(broker, patience=0), "it loads", until=lambda said: "still loading" in said)

        await broker.check()
    await broker.close()


async def refusal_of(broker: Broker, **options: Any) -> str:
    try:
        await broker.check(**options)
    except BrokerUnavailableError as refused:
        return str(refused)
    return ""


async def test_a_server_that_is_not_there_is_named() -> None:
    port = free_port()
    broker = Broker(Settings(redis_url=f"redis://who:secret@127.0.0.1:{port}/0"))

    said = await refusal(broker)

    await broker.close()
    assert f"The broker at 127.0.0.1:{port} cannot be reached" in said
    assert "correct TURNSTREAM_REDIS_URL, or --url" in said
    assert "secret" not in said


async def test_a_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    broker = Broker(Settings(redis_url=f"unix://{tmp_path}/none.sock"))

    assert f"The broker at {tmp_path}/none.sock cannot be reached" in await refusal(broker)
    await broker.close()


async def test_a_database_that_the_server_does_not_have_is_refused(server: RealServer) -> None:
    broker = Broker(Settings(redis_url=f"redis://default:secret@127.0.0.1:{server.port}/99"))

    said = await refusal(broker)

    await broker.close()
    assert re.search(r"refuses \(.*out of range\): correct TURNSTREAM_REDIS_URL, or --url\.", said), said
    assert "secret" not in said


async def test_a_server_that_is_busy_with_a_script_is_away_for_now(checked: Broker, server: RealServer) -> None:
    await checked.client.config_set("lua-time-limit", 1)
    with redis.Redis(port=server.port) as admin, redis.Redis(port=server.port) as busy:
        working = asyncio.create_task(asyncio.to_thread(spin, busy))
        asked = Broker(checked.settings)
        await eventually(lambda: refusal_of(asked), "it is busy", until=lambda said: "refuses" in said)

        with pytest.raises(BrokerUnavailableError, match="wait until it takes commands") as refused:
            await asked.check()

        assert is_away(refused.value)
        admin.script_kill()
        await working
        await asked.close()


def spin(client: redis.Redis) -> None:
    """Run a script that does not end by itself."""
    with contextlib.suppress(redis.ResponseError):
        client.eval("while true do end", 0)


@pytest.mark.parametrize(
    ("allowed", "said"),
    [
        ("+@all -info", None),
        ("+@all -config", None),
        ("+@all -set", "give this user write access"),
    ],
)
async def test_users_with_few_rights(checked: Broker, server: RealServer, allowed: str, said: str | None) -> None:
    await command(checked, "ACL", "SETUSER", "few", "reset", "on", ">pw", "~*", "&*", *allowed.split())
    url = server.url.replace("127.0.0.1", "few:pw@127.0.0.1")
    broker = Broker(Settings(redis_url=url, prefix="check:"))

    if said is None:
        await broker.check()
    else:
        assert said in await refusal(broker)
    await broker.close()
    await command(checked, "ACL", "DELUSER", "few")


async def test_a_wrong_password_is_said_so(server: RealServer) -> None:
    broker = Broker(Settings(redis_url=server.url.replace("127.0.0.1", "nobody:secret@127.0.0.1")))

    said = await refusal(broker)

    await broker.close()
    assert "secret" not in said
    assert "refuses the user and password" in said


async def test_a_password_that_is_missing_is_said_so(checked: Broker, server: RealServer) -> None:
    await checked.client.config_set("requirepass", "pw")
    broker = Broker(Settings(redis_url=server.url))

    said = await refusal(broker)

    await checked.client.config_set("requirepass", "")
    await broker.close()
    assert "refuses the user and password" in said
