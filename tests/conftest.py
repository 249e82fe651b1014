"""Fixtures that all tests share: both brokers, a prefix for each test, and the checks of what it leaves behind."""

from __future__ import annotations

import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog
from leaks import drop_keys, expect_no_tasks, lasting_keys, leaked_keys
from process_leaks import Outliving, expect_released, held
from real_server import RealServer, serving
from structlog.testing import capture_logs
from tool_servers import Case, address, serving_tools

from broker.broker import Broker
from broker.embedded import EmbeddedServer
from broker.server import find_server
from broker.settings import Settings

# A shell has what runs in its background ignore Ctrl-C, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine stands still now and then: how long one example takes says nothing.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")


def pytest_report_header() -> str:
    """Name both brokers that the suite runs on."""
    program = find_server()
    return f"brokers: embedded (fakeredis {version('fakeredis')}), {program.name} {program.version}"


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Run a real server for all tests; one that stops or restarts it runs its own (`real_server.serving`)."""
    with serving(tmp_path_factory.mktemp("server")) as server:
        yield server


_outliving = Outliving()


def pytest_configure(config: pytest.Config) -> None:
    """Register what must see every fixture: of a session's, pytest tells no conftest below the root."""
    config.pluginmanager.register(_outliving)


@pytest.fixture(autouse=True)
def _nothing_is_held(request: pytest.FixtureRequest) -> Iterator[None]:
    """Outermost: what comes after it is over when it looks, the event loop and every other fixture."""
    before = held()
    stored = _keys(request)
    yield
    if request.node.get_closest_marker("beside"):
        return
    expect_released(before | _outliving.lines)
    assert _keys(request) - stored == set(), "keys that nothing has dropped"


def _keys(request: pytest.FixtureRequest) -> set[str]:
    """The keys without a TTL on the server that all tests share, if this one uses it: by name, or as one of two brokers."""
    parameters = request.node.callspec.params.values() if hasattr(request.node, "callspec") else ()
    uses = "real_server" in request.fixturenames or any(each == "redis" for each in parameters if isinstance(each, str))
    return lasting_keys(request.getfixturevalue("real_server").url) if uses else set()


@pytest.fixture(autouse=True)
async def _no_task_is_left(_nothing_is_held: None) -> AsyncIterator[None]:
    yield
    await expect_no_tasks()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """What is logged, also below the level that an embedded worker of an earlier test has set."""
    before, was_set = structlog.get_config(), structlog.is_configured()
    structlog.reset_defaults()
    with capture_logs() as caught:
        yield caught
    if was_set:
        structlog.configure(**before)


@asynccontextmanager
async def _opened(settings: Settings, embedded: EmbeddedServer | None) -> AsyncIterator[Broker]:
    broker = Broker(settings, embedded)
    try:
        yield broker
        assert await leaked_keys(broker.client, settings.prefix) == []
    finally:
        if embedded is None:
            await drop_keys(broker.client, settings.prefix)
        await broker.close()


def _prefix() -> str:
    return f"t{uuid.uuid4().hex[:8]}:"


@pytest.fixture
async def embedded_broker() -> AsyncIterator[Broker]:
    """Open a broker in the process."""
    async with _opened(Settings(prefix=_prefix()), EmbeddedServer()) as broker:
        yield broker


@pytest.fixture
async def redis_broker(real_server: RealServer) -> AsyncIterator[Broker]:
    """Open a broker on the real server, under a prefix of its own."""
    async with _opened(Settings(redis_url=real_server.url, prefix=_prefix()), None) as broker:
        yield broker


@pytest.fixture
def env(redis_broker: Broker) -> dict[str, str]:
    """What names the real server and a prefix of its own to other processes."""
    settings = redis_broker.settings
    return {"TURNSTREAM_REDIS_URL": settings.redis_url or "", "TURNSTREAM_PREFIX": settings.prefix}


@pytest.fixture(params=["embedded", "redis"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    """Open each of the two brokers in turn."""
    if request.param == "embedded":
        settings, embedded = Settings(prefix=_prefix()), EmbeddedServer()
    else:
        settings, embedded = Settings(redis_url=request.getfixturevalue("real_server").url, prefix=_prefix()), None
    async with _opened(settings, embedded) as opened:
        yield opened


@pytest.fixture(scope="session")
def tool_server() -> Iterator[str]:
    """Run an MCP server over HTTP for all tests; the headers of a `case` say how it behaves to whom."""
    with serving_tools() as (port, _):
        yield address(port)


@pytest.fixture
def case(tmp_path: Path, tool_server: str) -> Case:
    """How a tool server is to behave to this test."""
    return Case(tmp_path / "case.json", tool_server)
