"""The short chaos run: every kind of fault, by a fixed seed. `make chaos` is the long one (`run.py`).

It runs in a process of its own, as the long one does: `pytest tests/chaos` runs it alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from schedule import SLOTS, Size, draw

RUN = Path(__file__).parent / "run.py"


def read_report(folder: Path) -> dict[str, Any] | None:
    """Return the report of a run of one part; None if it did not come to one."""
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("part-*/report.json")]
    return reports[0] if reports else None


async def chaos(folder: Path, *options: str, plant: str = "") -> tuple[dict[str, Any], str]:
    """Run one part; return its report, and what it said."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, str(RUN), "--parts", "1", "--into", str(folder), "--may-miss-old", *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"CHAOS_PLANT": plant},
    )
    try:
        told, _ = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    report = read_report(folder)
    assert report is not None, told.decode()
    assert running.returncode == bool(report["findings"])
    return report, told.decode()


async def test_nothing_is_lost_or_done_twice_under_all_kinds_of_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, told = await chaos(
        tmp_path, "--seed", "2", "--turns", "130", "--seconds", "15", "--size", "pace=0.5", "kills=16"
    )

    with capsys.disabled():
        print("".join(f"\n{line}" for line in told.splitlines() if "HEAD alone" in line), end="")
    assert report["findings"] == [], told
    counts, faults = report["counts"], report["faults"]
    assert counts["turns"] >= 100
    assert counts["parked"] >= counts["turns"] / 3
    assert {"kill", "stop", "drain", "freeze", "cut", "swallow", "hold"} <= faults.keys()
    assert {"restart", "crash"} & faults.keys()
    assert faults["kill"] == 16
    assert counts["effects"] > counts["turns"]


@pytest.mark.parametrize(
    ("plant", "found"), [("event", "lost_event"), ("fence", "fenced_run"), ("twice", "(run) ran ")]
)
@pytest.mark.soak
async def test_a_planted_fault_is_found(tmp_path: Path, plant: str, found: str) -> None:
    size = ("--turns", "200", "--seconds", "30", "--old", "0", "--size", "stops=60")
    report, _ = await chaos(tmp_path, "--seed", "3", *size, plant=plant)

    assert any(found in finding for finding in report["findings"]), report["findings"][:10]


def test_a_schedule_is_a_function_of_its_seed() -> None:
    size = Size(turns=100, seconds=30.0)
    assert draw(7, size).told() == draw(7, size).told()
    assert draw(7, size).told() != draw(8, size).told()
    for slot in range(len(SLOTS)):
        births = [draw(7, size).births(slot) for _ in range(2)]
        assert [next(births[0]) for _ in range(20)] == [next(births[1]) for _ in range(20)]


def test_a_long_run_is_as_large_as_is_promised() -> None:
    parts = [draw(seed, Size()) for seed in range(1, 11)]
    kinds = [fault.kind for part in parts for fault in part.faults]
    turns = [turn for part in parts for session in part.sessions for turn in session.turns]
    assert kinds.count("kill") >= 1000
    assert kinds.count("restart") + kinds.count("crash") >= 50
    assert len(turns) >= 5000
    assert sum(turn.parks for turn in turns) >= len(turns) / 3
