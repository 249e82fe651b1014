"""Connections to real MCP servers, over HTTP and stdio: opened, shared, called, lost, closed, with nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from tool_servers import Case, address, alive, serving_tools

from workers.source_connection import Connection
from workers.source_pool import SourcePool
from workers.sources import MCPServer, SourceError
from workers.tools import ToolError


@pytest.fixture
async def pool() -> AsyncIterator[SourcePool]:
    made = SourcePool()
    yield made
    await made.close()


async def failure(pool: SourcePool, server: MCPServer) -> SourceError:
    with pytest.raises(SourceError) as failed:
        await pool.take(server.endpoint)
    return failed.value


def sockets_and_pipes() -> int:
    """How many of them this process has open."""
    kinds = []
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            kinds.append(str(fd.readlink()))
    return sum(kind.startswith(("socket:", "pipe:", "anon_inode:[pidfd]")) for kind in kinds)


# Calls.


@pytest.mark.parametrize("way", ["http", "http, an older server", "stdio"])
async def test_a_server_tells_its_tools_and_runs_them(pool: SourcePool, case: Case, way: str) -> None:
    case.say(era="legacy" if "older" in way else "modern")
    server = case.over_stdio() if way == "stdio" else case.over_http()

    connection = await pool.take(server.endpoint)
    assert {"add", "hang"} <= {tool.name for tool in connection.listing}
    result = await connection.call("add", {"a": 1, "b": 2})
    assert result.structured_content == {"sum": 3}
    assert all([(await connection.call("add", {"a": n, "b": 0})).structured_content == {"sum": n} for n in range(3)])


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_calls_run_side_by_side(pool: SourcePool, case: Case, era: str) -> None:
    case.say(era=era)
    connection = await pool.take(case.over_http().endpoint)

    hanging = asyncio.create_task(connection.call("hang", {}))
    assert (await connection.call("whoami", {})).content
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


@pytest.mark.parametrize("way", ["http", "http, an older server", "stdio"])
async def test_a_call_that_is_cancelled_is_cancelled_at_its_server(pool: SourcePool, case: Case, way: str) -> None:
    case.say(era="legacy" if "older" in way else "modern")
    server = case.over_stdio() if way == "stdio" else case.over_http()
    connection = await pool.take(server.endpoint)

    calling = asyncio.create_task(connection.call("hang", {}))
    await eventually(lambda: case.log, "the call is there", until=lambda log: "call hang" in log)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await eventually(lambda: case.log, "it was told", until=lambda log: "cancelled" in log)
    assert (await connection.call("whoami", {})).content


@pytest.mark.parametrize(
    ("tool", "said"),
    [("refuse", "not today"), ("misfit", "a result that does not fit the tool's own output schema")],
)
async def test_a_call_that_fails_by_itself_leaves_the_connection_alone(
    pool: SourcePool, case: Case, tool: str, said: str
) -> None:
    connection = await pool.take(case.over_http().endpoint)

    with pytest.raises(ToolError, match=said):
        await connection.call(tool, {})
    assert (await connection.call("whoami", {})).content


async def test_a_client_that_fails_in_a_call_fails_the_source_and_gives_no_reason(
    pool: SourcePool, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise LookupError("secret")

    connection = await pool.take(case.over_http().endpoint)
    monkeypatch.setattr(connection._client, "call_tool", broken)
    with pytest.raises(SourceError, match=r"^the client failed with LookupError$") as failed:
        await connection.call("whoami", {})
    assert failed.value.reason is None


async def test_an_http_error_of_a_call_is_the_call_s(pool: SourcePool, case: Case) -> None:
    connection = await pool.take(case.over_http().endpoint)

    case.say(refuse={"tools/call": 502})
    with pytest.raises(ToolError, match="HTTP 502"):
        await connection.call("whoami", {})


# What makes a source unusable.


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ({"status": 401}, "credential_rejected"),
        ({"status": 403}, "credential_rejected"),
        ({"refuse": {"tools/list": 403}}, "credential_rejected"),
        ({"status": 500}, "request_failed"),
        ({"status": 404}, "request_failed"),
        ({"status": 307}, "request_failed"),
        ({"refuse": {"tools/list": 503}}, "request_failed"),
        ({"hang": "server/discover"}, "timeout"),
        ({"hang": "tools/list"}, "timeout"),
        ({"list": {"tools": [{"name": "a"}]}}, "invalid_catalog"),
        ({"list": {"tools": [{"name": "a", "inputSchema": "none"}]}}, "invalid_catalog"),
        ({"list": {"tools": "none"}}, "invalid_catalog"),
        ({"list": {"tools": [], "nextCursor": "again"}}, "invalid_catalog"),
    ],
    ids=str,
)
async def test_why_a_server_cannot_be_used(
    pool: SourcePool, case: Case, monkeypatch: pytest.MonkeyPatch, behaviour: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr("workers.source_connection._PAGES", 3)
    case.say(**behaviour)

    failed = await failure(pool, case.over_http(timeout=1.0 if "hang" in behaviour else 10.0))
    assert failed.reason == reason
    assert "secret-of-the-server" not in str(failed)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (MCPServer("a", url="http://127.0.0.1:1/mcp"), "unreachable"),
        (MCPServer("a", url="http://nowhere.invalid/mcp"), "unreachable"),
        (MCPServer("a", command="/no/such/program"), "unreachable"),
        (MCPServer("a", command="false"), "unreachable"),
        (MCPServer("a", command="sh", args=["-c", "cat >/dev/null"], timeout=0.2), "timeout"),
    ],
    ids=["refused", "no host", "no program", "ends at once", "hangs"],
)
async def test_why_nothing_can_be_connected(pool: SourcePool, server: MCPServer, reason: str) -> None:
    assert (await failure(pool, server)).reason == reason


async def test_a_client_that_fails_otherwise_gives_no_reason(pool: SourcePool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise LookupError("secret")

    monkeypatch.setattr(Connection, "_open", broken)
    failed = await failure(pool, MCPServer("a", command="true"))
    assert failed.reason is None
    assert str(failed) == "the client failed with LookupError"


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_a_server_that_dies_in_a_call_fails_every_call_under_way(
    pool: SourcePool, tmp_path: Path, way: str
) -> None:
    with serving_tools() as (port, _):
        case = Case(tmp_path / "case.json", address(port))
        server = case.over_stdio() if way == "stdio" else case.over_http()
        connection = await pool.take(server.endpoint)

        hanging = asyncio.create_task(connection.call("hang", {}))
        await eventually(lambda: case.log, "the call is there", until=lambda log: "call hang" in log)
        failed = await asyncio.gather(connection.call("die", {}), hanging, return_exceptions=True)

        assert [getattr(each, "reason", each) for each in failed] == ["unreachable", "unreachable"]
        assert not any(getattr(each, "unsent", True) for each in failed)


async def test_a_call_that_reaches_nobody_may_be_made_again_on_the_same_connection(
    pool: SourcePool, tmp_path: Path
) -> None:
    with serving_tools() as (port, process):
        case = Case(tmp_path / "case.json", address(port))
        connection = await pool.take(case.over_http().endpoint)
        process.kill()
        process.wait()
        with pytest.raises(SourceError) as failed:
            await connection.call("whoami", {})
        assert (failed.value.reason, failed.value.unsent) == ("unreachable", True)
        with serving_tools(port):
            assert (await connection.call("whoami", {})).content


@pytest.mark.parametrize("behaviour", [{"status": 401}, {"refuse": {"tools/call": 403}}], ids=str)
async def test_credentials_that_are_refused_in_a_call(pool: SourcePool, case: Case, behaviour: dict[str, Any]) -> None:
    connection = await pool.take(case.over_http().endpoint)

    case.say(**behaviour)
    with pytest.raises(SourceError) as failed:
        await connection.call("whoami", {})
    assert failed.value.reason == "credential_rejected"


# Tools that change.


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_changed_tools_are_listed_again_and_unchanged_ones_are_not(
    pool: SourcePool, case: Case, era: str
) -> None:
    case.say(era=era)
    connection = await pool.take(case.over_http().endpoint)
    await connection.refresh()
    assert case.log.count("POST tools/list") == 1
    await eventually(
        lambda: case.log, "it listens", until=lambda log: era == "legacy" or "POST subscriptions/listen" in log
    )

    case.say(era=era, add=["more"])
    await connection.call("grow", {})
    await eventually(lambda: connection.stale, "it heard")
    await asyncio.gather(connection.refresh(), connection.refresh())

    assert "more" in {tool.name for tool in connection.listing}
    assert case.log.count("POST tools/list") == 2


# Who has it, and its end.


async def test_users_share_a_connection_and_other_credentials_have_their_own(pool: SourcePool, case: Case) -> None:
    mine, same = (
        case.over_http(headers={"Authorization": "Bearer a"}),
        case.over_http(headers={"Authorization": "Bearer a"}),
    )
    other = case.over_http(headers={"Authorization": "Bearer b"})

    first, second = await asyncio.gather(pool.take(mine.endpoint), pool.take(same.endpoint))
    third = await pool.take(other.endpoint)

    assert first is second
    assert third is not first
    assert (await third.call("whoami", {})).content[0].model_dump()["text"] == "Bearer b"


async def test_one_that_nobody_has_is_closed_after_a_while_and_not_before(case: Case) -> None:
    pool = SourcePool(idle=0.1)
    server = case.over_http()
    connection = await pool.take(server.endpoint)
    pool.give_back(server.endpoint, connection)
    assert await pool.take(server.endpoint) is connection
    await asyncio.sleep(0.2)
    assert not connection.ended

    pool.give_back(server.endpoint, connection)
    await eventually(connection.task.done, "it is closed")
    another = await pool.take(server.endpoint)
    assert another is not connection
    await pool.close()


async def test_a_program_that_ended_is_started_anew(pool: SourcePool, case: Case) -> None:
    server = case.over_stdio()
    first = await pool.take(server.endpoint)
    with pytest.raises(SourceError):
        await first.call("die", {})
    pool.give_back(server.endpoint, first)

    second = await pool.take(server.endpoint)
    assert (await second.call("whoami", {})).content
    assert len(set(case.pids())) == 2


async def test_the_end_leaves_no_process_no_socket_and_no_task(case: Case) -> None:
    before = sockets_and_pipes()
    pool = SourcePool()
    opened = [await pool.take(server.endpoint) for server in (case.over_stdio(), case.over_http())]
    case.say(era="legacy")
    opened.append(await pool.take(case.over_http(timeout=9.0).endpoint))
    hanging = MCPServer("a", command="sh", args=["-c", "cat >/dev/null"])
    opening = asyncio.create_task(pool.take(hanging.endpoint))
    await asyncio.sleep(0)
    (pid,) = case.pids()
    assert alive(pid)

    await pool.close()

    assert all(connection.task.done() for connection in opened)
    assert not alive(pid)
    assert case.pids("end") == [pid]  # it was let go, not killed
    assert "DELETE DELETE" in case.log
    with pytest.raises(SourceError):
        await opening
    assert await eventually(sockets_and_pipes, "all closed", until=lambda now: now <= before) <= before
    with pytest.raises(SourceError, match="stopping"):
        await pool.take(case.over_http().endpoint)


async def test_an_opening_that_nobody_waits_for_any_more_is_another_s_gain(pool: SourcePool, case: Case) -> None:
    server = case.over_http()
    first = asyncio.create_task(pool.take(server.endpoint))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    assert (await (await pool.take(server.endpoint)).call("whoami", {})).content


# What stays here.


async def test_the_client_library_logs_nothing_of_ours(
    pool: SourcePool, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = {"Authorization": "Bearer top-secret"}
    connection = await pool.take(case.over_http(headers=secret).endpoint)
    await connection.call("add", {"a": 1, "b": 2})
    case.say(list={"tools": [{"name": "top-secret"}]})
    await failure(pool, case.over_http(headers=secret, timeout=9.0))
    await pool.close()

    assert [
        record.name for record in caplog.records if record.name.partition(".")[0] in ("mcp", "client", "httpx2")
    ] == []
    assert "top-secret" not in caplog.text
