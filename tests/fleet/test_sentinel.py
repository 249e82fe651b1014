"""A failover by Sentinel under load: everybody finds the new primary by themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from eventually import eventually
from load import expect_alive, ground, running
from real_server import serving

from broker.server import find_server, free_port


@contextmanager
def watching(folder: Path, primary: int) -> Iterator[int]:
    """Run a sentinel that watches the primary at a port, and alone decides; yield its own port."""
    port, conf = free_port(), folder / "sentinel.conf"
    conf.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nsentinel monitor main 127.0.0.1 {primary} 1\n"
        "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n",
        encoding="utf-8",
    )
    with (folder / "sentinel.log").open("ab") as out:
        process = subprocess.Popen([find_server().path, str(conf), "--sentinel"], stdout=out, stderr=out)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


async def test_sentinel_promotes_the_replica_and_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "s"):
        (tmp_path / name).mkdir()
    with (
        serving(tmp_path / "a") as old,
        serving(tmp_path / "b", "--replicaof", "127.0.0.1", str(old.port)) as new,
        watching(tmp_path / "s", old.port) as port,
        redis.Redis(port=old.port) as primary,
        redis.Redis(port=port) as sentinel,
        redis.Redis(port=new.port) as replica,
    ):

        def knows_the_replica() -> bool:
            try:
                return bool(sentinel.execute_command("SENTINEL REPLICAS", "main"))
            except redis.RedisError:
                return False

        await eventually(knows_the_replica, "the sentinel has found the replica", within=15)
        url = f"redis+sentinel://127.0.0.1:{port}/0?master=main"
        async with ground(url, monkeypatch) as (fleet, load), running(fleet) as worker:
            await load.begin()
            primary.incr("probe")
            assert primary.wait(1, 5000) == 1

            old.process.kill()
            await eventually(lambda: replica.role()[0], "promoted", until=lambda role: role == b"master", within=15)

            await load.expect_to_go_on()
            await load.expect_everything()
            expect_alive(worker)
