"""`python -m benchmarks [dispatch|throughput|delivery …]`: ours beside the references, on one server, in one run."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from broker.server import LocalServer, find_server

PROGRAMS = ("dispatch", "throughput", "delivery")


def main() -> None:
    """Run the programs named, or all."""
    wanted = sys.argv[1:] or list(PROGRAMS)
    if unknown := [name for name in wanted if name not in PROGRAMS]:
        raise SystemExit(f"no benchmark {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    server = find_server()
    print(
        f"{server.name} {server.version}, Python {platform.python_version()}, arq {version('arq')}, "
        f"redis-py {version('redis')}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}. Read the ratios."
    )
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder, LocalServer(Path(folder), "--save", "") as running:
            asyncio.run(import_module(f"benchmarks.{name}").run(running.url))


if __name__ == "__main__":
    main()
