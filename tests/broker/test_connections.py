"""A broker is reached by every form of URL that users have, and by nothing that the client library decides for us."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import trustme
from eventually import eventually
from real_server import RealServer, serving

from broker.broker import Broker
from broker.protocol.errors import BrokerUnavailableError
from broker.server import ServerProgram, find_server, free_port
from broker.settings import Settings


async def answers(url: str) -> bool:
    """Whether a broker at `url` passes the check at start and runs a script."""
    broker = Broker(Settings(redis_url=url, prefix="c:"))
    try:
        await broker.check()
        return await broker.run("tails", "c:{s0}:session:x", ["0-00000000-0000-0000-0000-000000000000"]) == [b"-"]
    finally:
        await broker.close()


async def test_a_unix_socket(tmp_path: Path) -> None:
    with serving(tmp_path, "--unixsocket", str(tmp_path / "redis.sock")):
        assert await answers(f"unix://{tmp_path / 'redis.sock'}?db=2")


async def test_a_password_is_percent_decoded(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        # Set once it runs: the fixture's own ping has no password.
        with redis.Redis(port=server.port) as client:
            client.config_set("requirepass", "p@ss/word")

        assert await answers(f"redis://:p%40ss%2Fword@127.0.0.1:{server.port}/0")


def has_tls(program: ServerProgram) -> bool:
    """Whether the server was built with TLS: asked for a directive without its value, one that was not does not know it."""
    told = subprocess.run([program.path, "--tls-port"], capture_output=True, text=True, check=False)
    return "Bad directive" not in told.stdout + told.stderr


async def test_tls(tmp_path: Path) -> None:
    program = find_server()
    if not has_tls(program):
        pytest.skip(f"{program.name} {program.version} at {program.path} was built without TLS")
    port, authority = free_port(), trustme.CA()
    issued = authority.issue_cert("localhost")
    key, certificate, trusted = (tmp_path / name for name in ("key.pem", "cert.pem", "ca.pem"))
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    authority.cert_pem.write_to_path(trusted)
    tls = ["--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    with serving(tmp_path, *tls, "--tls-ca-cert-file", str(trusted), "--tls-auth-clients", "no"):
        assert await answers(f"rediss://localhost:{port}/0?ssl_ca_certs={trusted}&ssl_check_hostname=true")


@contextmanager
def sentinel_of(server: RealServer, folder: Path) -> Iterator[int]:
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor main 127.0.0.1 {server.port} 1\n")
    with (folder / "sentinel.log").open("ab") as out:
        process = subprocess.Popen([server.program.path, str(config), "--sentinel"], stdout=out, stderr=out)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


async def test_sentinels_name_the_primary(tmp_path: Path) -> None:
    with serving(tmp_path) as server, sentinel_of(server, tmp_path) as port:

        async def answered() -> bool:
            try:
                return await answers(f"redis+sentinel://127.0.0.1:{port}/0?master=main")
            except BrokerUnavailableError:
                return False

        await eventually(answered, "a broker behind a sentinel answers", within=10)


async def test_two_databases_of_one_server_have_channels_of_their_own(real_server: RealServer) -> None:
    base = real_server.url.rsplit("/", 1)[0]
    first, second = (Broker(Settings(redis_url=f"{base}/{number}")) for number in (0, 1))
    session = "0-00000000-0000-0000-0000-000000000000"
    try:
        assert first.keys.live(session) != second.keys.live(session)
    finally:
        await first.close()
        await second.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (None, "set TURNSTREAM_REDIS_URL"),
        ("http://127.0.0.1:6379", "not usable"),
        ("redis+sentinel://127.0.0.1:26379/0", "add ?master=NAME"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_way_out(url: str | None, said: str) -> None:
    with pytest.raises(BrokerUnavailableError, match=said.replace("?", r"\?")):
        Broker(Settings(redis_url=url))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cr/et@127.0.0.1:6379/0",
        "redis://:s3c#ret@127.0.0.1:6379/0",
        "redis://:s3c[ret@127.0.0.1:6379/0",
        "redis://me:s3cret@127.0.0.1:port/0",
        "redis+sentinel://me:s3cret@127.0.0.1:port/0?master=m",
        "redis+sentinel://me:s3cret@127.0.0.1:26379/zero?master=m",
        "redis+sentinel://:s3cr/et@127.0.0.1:26379/0?master=m",
    ],
)
def test_a_url_that_cannot_be_used_is_said_without_its_password(url: str) -> None:
    """Nor does its traceback hold it: what cut the URL up says where in its own text."""
    with pytest.raises(BrokerUnavailableError, match="percent-encoded: / as %2F") as refused:
        Broker(Settings(redis_url=url))

    assert "s3c" not in "".join(traceback.format_exception(refused.value))


async def test_a_broker_that_is_not_there_is_named_in_one_sentence() -> None:
    broker = Broker(Settings(redis_url=f"redis://127.0.0.1:{free_port()}/0", command_budget=0.2))
    with pytest.raises(BrokerUnavailableError, match="start it, or correct TURNSTREAM_REDIS_URL"):
        await broker.check()
    with pytest.raises(BrokerUnavailableError, match="did not answer within"):
        await broker.run("tails", "ts:{s0}:session:x", ["x"])
    await broker.close()
