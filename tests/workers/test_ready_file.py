"""A ready file that cannot be written any more: its folder gone, no rights, a full disk."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from broker.broker import Broker
from workers.readiness import Readiness
from workers.ready_file import ReadyFile, why_not_ready


async def test_a_file_that_cannot_be_written_is_said_once_and_stops_neither_worker_nor_drain(
    embedded_broker: Broker, tmp_path: Path, logs: list[Any]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = ReadyFile(folder / "ready")
    readiness = Readiness(embedded_broker, "w1", time.monotonic, file)
    readiness.judge()
    assert why_not_ready(folder / "ready") is None

    shutil.rmtree(folder)
    for _ in range(3):
        readiness.judge()
    readiness.drain()

    assert readiness.reason is not None
    (said,) = [entry for entry in logs if entry["event"] == "ready_file_not_written"]
    assert str(folder) in said["error"]
    folder.write_text("now a file")
    file.remove()


async def test_a_file_that_can_be_written_again_is(embedded_broker: Broker, tmp_path: Path, logs: list[Any]) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    readiness = Readiness(embedded_broker, "w1", time.monotonic, ReadyFile(folder / "ready"))
    shutil.rmtree(folder)
    readiness.judge()
    folder.mkdir()

    readiness.judge()

    assert why_not_ready(folder / "ready") is None
    assert [entry["event"] for entry in logs].count("ready_file_not_written") == 1
