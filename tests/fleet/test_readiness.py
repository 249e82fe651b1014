"""A worker says in a file whether it is ready, and why not; `turnstream ready` reads it, as a supervisor's probe would."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from eventually import eventually
from fleet import WorkerProcess
from load import RETURN_S, clerk_of, expect_alive, ground, running
from real_server import serving

import api_shim as agents
from workers.ready_file import why_not_ready


def logged(worker: WorkerProcess, event: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in worker.log.lines if f'"event": "{event}"' in line]


def probed(file: Path) -> tuple[int, str]:
    """Return what a probe exits with and says."""
    command = [sys.executable, "-m", "api_shim.cli", "ready", str(file)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return told.returncode, told.stdout + told.stderr


async def test_a_worker_is_ready_exactly_while_it_can_be_given_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ready"
    options = ("--grace", "5", "--ready-file", str(file))

    async def ready(within: float = RETURN_S) -> None:
        await eventually(lambda: why_not_ready(file), "it is ready", until=lambda why: why is None, within=within)

    async def not_ready(because: str, within: float = RETURN_S) -> None:
        await eventually(
            lambda: why_not_ready(file), "it is not ready", until=lambda why: because in str(why), within=within
        )

    file.write_text("left by somebody who was killed")
    with serving(tmp_path) as server, redis.Redis(port=server.port) as admin:
        async with ground(server.url, monkeypatch) as (fleet, _), running(fleet, *options) as worker:
            await ready()
            assert await asyncio.to_thread(probed, file) == (0, "ready\n")

            # It is blind: it cannot renew its leases.
            server.process.send_signal(signal.SIGSTOP)
            await not_ready("does not reach its broker")
            assert not file.exists(), "what looks at the file alone sees it too"
            code, said = await asyncio.to_thread(probed, file)
            assert (code, said.count("\n")) == (1, 1)
            assert "has not renewed its leases" in said
            server.process.send_signal(signal.SIGCONT)
            await ready()
            (back,) = logged(worker, "broker_back")
            assert len(logged(worker, "broker_away")) == 1, "an outage is said once, not at each try"
            assert 0 < float(str(back["seconds"])) < 30

            # Its broker is not fit any more (F21), as after a failover to a server that was set up otherwise.
            for policy in ("allkeys-lru", "volatile-ttl"):
                admin.config_set("maxmemory-policy", policy)
                await not_ready(
                    f"(maxmemory-policy {policy}), which would delete sessions: set maxmemory-policy to noeviction."
                )
            admin.config_set("maxmemory-policy", "noeviction")
            await ready()

            # It stands still.
            worker.process.send_signal(signal.SIGSTOP)
            await not_ready("it stands still, or was killed")
            worker.process.send_signal(signal.SIGCONT)
            await ready()

            # It drains, for as long as its last turn takes.
            expect_alive(worker)
            session = await clerk_of(server.url).start_session()
            turn = await session.send_message("tool 0.5")
            async for event in session.iter_events():
                if isinstance(event, agents.EntryAdded) and isinstance(event.entry, agents.ToolResultEntry):
                    break
            worker.process.terminate()
            await not_ready("draining")
            await asyncio.to_thread(worker.process.wait, 10)
            assert "no worker runs with --ready-file" in str(why_not_ready(file))
            assert isinstance(await turn.result(), agents.Completed), "it ended within the grace"


def test_what_is_no_ready_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")

    assert "cannot be read" in str(why_not_ready(tmp_path / "text"))
    assert "cannot be read" in str(why_not_ready(tmp_path))
    assert "no worker runs" in str(why_not_ready(tmp_path / "none"))
