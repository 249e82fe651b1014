"""The files of `deploy/`: a server starts with them, a broker that would lose sessions is refused, and the rest is parsed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import redis.asyncio as aioredis
import yaml
from deployed import DEPLOY, ROOT, Deployment, deployed, running
from real_server import RealServer, serving

from broker import transitions
from broker.broker import Broker
from broker.keys import new_session_id
from broker.protocol.errors import BrokerUnavailableError
from broker.server import free_port
from broker.settings import Settings
from broker.transitions import SessionOptions

UNITS: Final = ("turnstream-redis.service", "turnstream-worker@.service")
EVICTING: Final = (
    *("allkeys-lru", "allkeys-lfu", "allkeys-random"),
    *("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"),
)
NOT_TRIED: Final = re.compile(r"^# Not (built|run) here: ")
INSTRUCTIONS: Final = {
    *("FROM", "RUN", "CMD", "LABEL", "EXPOSE", "ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER", "WORKDIR", "ARG"),
    *("ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL"),
}


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def test_what_could_not_be_run_says_so_in_its_first_line() -> None:
    for name in (*UNITS, "Dockerfile", "compose.yaml"):
        assert NOT_TRIED.match(text_of(name)), name


# The server.


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Run a server with the files of `deploy/`."""
    with deployed(tmp_path_factory.mktemp("deployment")) as started:
        yield started


def directives() -> list[tuple[str, str]]:
    lines = [line.strip() for line in text_of("redis.conf").splitlines()]
    pairs = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(name, value.strip('"')) for name, _, value in pairs]


def in_bytes(value: str) -> str:
    units = {"kb": 1024, "mb": 1024**2, "gb": 1024**3}
    return re.sub(r"\b(\d+)([kmg]b)\b", lambda size: str(int(size[1]) * units[size[2]]), value)


def test_the_server_runs_with_each_value_of_redis_conf(deployment: Deployment) -> None:
    with deployment.operator() as operator:
        for name, value in directives():
            told: dict[str, str] = operator.config_get(name)
            if name not in ("port", "aclfile"):  # said otherwise on the command line of this test
                assert in_bytes(value) in told[name], name
            assert name in told


def test_each_line_of_redis_conf_says_why() -> None:
    """Lines that follow one another share a reason."""
    for block in re.findall(r"(?:^.+\n)+", text_of("redis.conf"), re.MULTILINE):
        assert block.startswith("#"), block


@pytest.mark.parametrize("user", ["worker", "shim"])
async def test_the_check_passes_on_it(deployment: Deployment, user: str) -> None:
    broker = Broker(Settings(redis_url=deployment.url(user)))
    await broker.check()
    await broker.close()


async def test_a_session_survives_a_server_that_was_killed(tmp_path: Path) -> None:
    """Servers replay their file as the user `default`: were its rights taken away, what scripts wrote would be dropped."""
    session_id, found = new_session_id(1), []
    with deployed(tmp_path) as first:
        broker = Broker(Settings(redis_url=first.url("shim")))
        await transitions.open_session(broker, session_id, SessionOptions(agent="a", queue="a", digest="-"))
        await broker.close()
        first.server.process.kill()
        first.server.process.wait()
        with running(tmp_path, first.passwords) as again:
            broker = Broker(Settings(redis_url=again.url("shim")))
            found = await transitions.tails(broker, [session_id])
            await broker.close()
    assert found == ["0-0"]


# What the check at start refuses.


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Run a server of their own for tests that make it unfit."""
    with serving(tmp_path_factory.mktemp("stock")) as server:
        yield server


@pytest.fixture
async def unfit(stock: RealServer) -> AsyncIterator[Broker]:
    """Open the broker on that server; afterwards it is fit again."""
    broker = Broker(Settings(redis_url=stock.url))
    yield broker
    await broker.client.config_set("maxmemory-policy", "noeviction")
    await broker.client.config_set("min-replicas-to-write", 0)
    await broker.commands.command("REPLICAOF", "NO", "ONE")
    await broker.check()
    await broker.close()


async def refusal(broker: Broker) -> str:
    with pytest.raises(BrokerUnavailableError) as refused:
        await broker.check()
    said = str(refused.value)
    assert re.fullmatch(r"[A-Z].*[^.]\.", said), said
    assert ". " not in said, f"more than one sentence: {said}"
    return said


@pytest.mark.parametrize("policy", EVICTING)
async def test_a_broker_that_evicts_is_refused(unfit: Broker, policy: str) -> None:
    await unfit.client.config_set("maxmemory-policy", policy)
    said = await refusal(unfit)
    assert policy in said
    assert "set maxmemory-policy to noeviction" in said


async def test_a_read_only_replica_is_refused(unfit: Broker) -> None:
    await unfit.commands.command("REPLICAOF", "127.0.0.1", free_port())
    assert "read-only replica: let TURNSTREAM_REDIS_URL name the primary" in await refusal(unfit)


async def test_a_broker_without_enough_replicas_to_write_is_refused(unfit: Broker) -> None:
    await unfit.client.config_set("min-replicas-to-write", 1)
    assert "refuses writes" in await refusal(unfit)


async def test_a_user_that_may_not_write_is_refused_as_a_worker(deployment: Deployment) -> None:
    broker = Broker(Settings(redis_url=deployment.url("observer")))
    assert "give this user write access" in await refusal(broker)
    await broker.check(writes=False)
    await broker.close()


async def test_a_wrong_password_is_told_from_a_broker_that_is_away(deployment: Deployment) -> None:
    broker = Broker(Settings(redis_url=f"redis://worker:wrong@127.0.0.1:{deployment.server.port}/0"))
    assert "refuses the user and password" in await refusal(broker)
    await broker.close()


@pytest.mark.parametrize("version", ["6.0.16", "5.0.3", "6.1.240"])
async def test_an_old_server_is_refused(unfit: Broker, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    ask = aioredis.Redis.info

    async def told(client: aioredis.Redis, section: str) -> dict[str, Any]:
        answer: dict[str, Any] = await ask(client, section)
        return {**answer, "redis_version": version} if "redis_version" in answer else answer

    with monkeypatch.context() as patch:
        patch.setattr(aioredis.Redis, "info", told)
        said = await refusal(unfit)
    assert version in said
    assert "needs 6.2 or newer: upgrade the server" in said


# systemd.


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names of directives keep their case
    parser.read(DEPLOY / name, encoding="utf-8")
    return parser


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_stopped_gently_restarted_always_and_hardened(name: str) -> None:
    service = unit(name)["Service"]
    assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "always"
    assert float(service["TimeoutStopSec"]) > Settings().grace
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service.get("DynamicUser") == "yes" or service["User"] not in ("", "root")
    assert unit(name)["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_knows_every_line_of_a_unit(tmp_path: Path, name: str) -> None:
    """Its verifier also looks for the program, which is not installed here: another one stands for it."""
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text_of(name), flags=re.MULTILINE)
    place = tmp_path / name
    place.write_text(text, encoding="utf-8")
    told = subprocess.run(
        ["systemd-analyze", "verify", str(place)], capture_output=True, text=True, timeout=60, check=False
    )
    assert [line for line in told.stderr.splitlines() if name.partition(".")[0] in line] == []
    assert told.returncode == 0, told.stderr


def test_the_worker_s_command_is_one_that_there_is() -> None:
    program, *arguments = unit(UNITS[1])["Service"]["ExecStart"].split()
    assert (Path(program).name, arguments[:2]) == ("turnstream", ["worker", "--json"])
    assert arguments[2:4] == ["--ready-file", f"%t/{unit(UNITS[1])['Service']['RuntimeDirectory']}/ready"]
    # Not the units' own path, but the same words: where they are unknown, this ends with 2.
    told = subprocess.run(
        [sys.executable, "-m", "api_shim.cli", *arguments[:4], "--help"], cwd=ROOT, check=False, timeout=60
    )
    assert told.returncode == 0


# Containers.


def logical_lines(name: str) -> list[tuple[str, str]]:
    """Return a Dockerfile's instructions and what they say, continued lines joined."""
    bare = "\n".join(line for line in text_of(name).splitlines() if not line.lstrip().startswith("#"))
    joined = bare.replace("\\\n", " ")
    pairs = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, _, rest in pairs]


def test_the_dockerfile_has_known_instructions_and_existing_sources() -> None:
    lines = logical_lines("Dockerfile")
    assert {word for word, _ in lines} <= INSTRUCTIONS
    assert lines[0] == ("FROM", "python:3.12-slim AS build")
    allowed = {
        line.removeprefix("!") for line in text_of("Dockerfile.dockerignore").splitlines() if line.startswith("!")
    }
    sources = [rest.split()[:-1] for word, rest in lines if word == "COPY" and not rest.startswith("--from")]
    copied = {source for group in sources for source in group}
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_the_image_runs_a_worker_as_nobody_special() -> None:
    lines = logical_lines("Dockerfile")
    final = lines[max(at for at, (word, _) in enumerate(lines) if word == "FROM") :]
    said = dict(final)
    assert said["FROM"] == "python:3.12-slim"
    assert int(said["USER"].partition(":")[0]) > 0
    assert json.loads(said["ENTRYPOINT"]) == ["turnstream", "worker", "--json"]
    assert said["STOPSIGNAL"] == "SIGTERM"


def seconds(duration: str) -> float:
    return float(re.fullmatch(r"(\d+)s", duration)[1])  # type: ignore[index] # a failure here is the test's


def test_compose_names_what_there_is() -> None:
    services = yaml.safe_load(text_of("compose.yaml"))["services"]
    broker, worker = services["redis"], services["worker"]
    mounts = [mount.split(":") for service in (broker, worker) for mount in service["volumes"]]
    made_here = {"./secrets/users.acl"}  # by the lines of README.md
    assert all(
        (DEPLOY / source).exists() for source, *_ in mounts if source.startswith(".") and source not in made_here
    )
    aclfile = dict(directives())["aclfile"]
    assert ["./redis.conf", broker["command"][1], "ro"] in mounts
    assert ["./secrets/users.acl", aclfile, "ro"] in mounts
    data = broker["command"][broker["command"].index("--dir") + 1]
    assert ["redis-data", data] in mounts
    assert (DEPLOY / worker["build"]["context"]).resolve() == ROOT
    assert (ROOT / worker["build"]["dockerfile"]).exists()
    module, _, _ = worker["command"][0].partition(":")
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
    assert worker["healthcheck"]["test"] == ["CMD", "turnstream", "ready", worker["command"][2]]
    assert worker["command"][1] == "--ready-file"
    assert Path(worker["command"][2]).parent in [Path(place) for place in worker["tmpfs"]], "the rest is read-only"
    assert seconds(worker["stop_grace_period"]) > float(worker["environment"]["TURNSTREAM_GRACE"])
    assert worker["restart"] == broker["restart"] == "unless-stopped"


def test_compose_asks_for_settings_that_there_are(deployment: Deployment) -> None:
    """The variables are those that README.md writes into `.env`, and the settings are the worker's."""
    asked = set(re.findall(r"\$\{(\w+)_PASSWORD:\?", text_of("compose.yaml")))
    assert asked == {"WORKER", "OBSERVER"}
    assert {name.lower() for name in asked} < deployment.passwords.keys()
    environment = yaml.safe_load(text_of("compose.yaml"))["services"]["worker"]["environment"]
    assert {name.removeprefix("TURNSTREAM_").lower() for name in environment} <= Settings.model_fields.keys()


def test_the_health_check_of_compose_lets_the_observer_in(deployment: Deployment) -> None:
    with redis.Redis.from_url(deployment.url("observer")) as observer:
        assert observer.ping()
