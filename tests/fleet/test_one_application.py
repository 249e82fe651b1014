"""The same application file runs embedded, and against workers by setting one variable."""

from __future__ import annotations

import subprocess
import sys

from fleet import HERE, Fleet


def printed_by(env: dict[str, str]) -> str:
    """Run the application; return what it prints."""
    command = [sys.executable, "-W", "error", str(HERE / "one_application.py")]
    ran = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_embedded_and_on_two_worker_processes_it_prints_the_same(fleet: Fleet) -> None:
    alone = {name: value for name, value in fleet.env.items() if not name.startswith("TURNSTREAM_")}
    embedded = printed_by(alone)
    with (
        fleet.worker("--slots", "1", serves="one_application:shop") as first,
        fleet.worker("--slots", "1", serves="one_application:shop") as second,
    ):
        on_workers = printed_by({**alone, "TURNSTREAM_REDIS_URL": fleet.url, "TURNSTREAM_PREFIX": fleet.prefix})
        begun = [sum("turn_begun" in line for line in worker.log.lines) for worker in (first, second)]

    assert embedded == on_workers
    assert "result: client.buy -> bought red boots for 30" in embedded
    assert sum(begun) > 2
