"""Every example is run as a newcomer runs it, embedded and against a worker process, and prints what its docstring says.

One worker process serves all their agents; one of its own serves the example whose worker needs a setting.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
import redis.asyncio as aioredis
from leaks import drop_keys
from real_server import RealServer

from broker.server import free_port

ROOT: Final = Path(__file__).parent.parent.parent
EXAMPLES: Final = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
WORKER_SETTINGS: Final = {"time_limits": {"TURNSTREAM_CALLBACK_TIMEOUT": "2"}}
SIDE_BY_SIDE: Final = {"support_desk"}
"""Examples whose parties print when it is their turn: the order of their lines is nobody's promise."""

Runs = dict[tuple[str, str], "Future[tuple[str, str, int]]"]


def docstring(name: str) -> str:
    return ast.get_docstring(ast.parse(EXAMPLES[name].read_text(encoding="utf-8"))) or ""


def story(name: str) -> str:
    """What an example's docstring says that it prints."""
    told = re.search(r"^It prints[^\n]*:\n\n((?:    [^\n]+\n?|\n)+)", docstring(name), re.MULTILINE)
    assert told is not None, f"examples/{name}.py: its docstring says 'It prints:', and then what"
    return re.sub(r"^    ", "", told[1], flags=re.MULTILINE).strip()


def agents_of(name: str) -> list[str]:
    """What `turnstream worker` is told to serve an example's agents."""
    code = EXAMPLES[name].read_text(encoding="utf-8")
    own = [(name, agent) for agent in re.findall(r"^(\w+) = agents\.Agent\(", code, re.MULTILINE)]
    return [
        f"examples.{module}:{agent}"
        for module, agent in own or re.findall(r"^ +from (\w+) import (\w+)", code, re.MULTILINE)
    ]


def ports() -> dict[str, str]:
    """Where the examples' own little servers listen."""
    return {"LIBRARY_PORT": str(free_port()), "MODEL_PORT": str(free_port())}


def run(name: str, env: dict[str, str]) -> tuple[str, str, int]:
    """Run an example; gives what it printed on both streams, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES[name])],
        env={**os.environ, "PYTHONHASHSEED": "0", **env},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    return done.stdout, done.stderr, done.returncode


class Workers:
    """Worker processes for examples."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._running: list[subprocess.Popen[str]] = []

    def start(self, served: list[str], settings: dict[str, str]) -> None:
        """Start one, and wait until it serves."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "api_shim.cli", "worker", *served, "--grace", "0"],
            cwd=ROOT,
            env={**os.environ, **self._env, **settings},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(worker)
        assert worker.stderr is not None
        first = worker.stderr.readline()
        assert "worker_started" in first, first + worker.stderr.read()

    def stop(self) -> None:
        """Drain them; they end well, and have logged no failure."""
        for worker in self._running:
            worker.terminate()
        for worker in self._running:
            _, log = worker.communicate(timeout=30)
            assert worker.returncode == 0
            assert "Traceback" not in log
            assert "[error" not in log


PREFIX: Final = "examples:"


async def _drop(url: str) -> None:
    async with aioredis.Redis.from_url(url) as client:
        await drop_keys(client, PREFIX)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, real_server: RealServer) -> Iterator[Runs]:
    """All runs that this session's tests ask for, under way side by side."""
    asked = [
        item.callspec.params
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    wanted = sorted({(str(each["where"]), str(each["name"])) for each in asked if each.keys() >= {"where", "name"}})
    on_redis = {"TURNSTREAM_REDIS_URL": real_server.url, "TURNSTREAM_PREFIX": PREFIX, **ports()}
    env = {"embedded": {"TURNSTREAM_REDIS_URL": "", **ports()}, "workers": on_redis}
    workers = Workers(on_redis)
    names = {name for where, name in wanted if where == "workers"}
    with ThreadPoolExecutor(max_workers=3) as pool:
        done: Runs = {(w, name): pool.submit(run, name, env[w]) for w, name in wanted if w == "embedded"}
        try:
            if served := [agent for name in sorted(names - WORKER_SETTINGS.keys()) for agent in agents_of(name)]:
                workers.start(served, {})
            for name in names & WORKER_SETTINGS.keys():
                workers.start(agents_of(name), WORKER_SETTINGS[name])
            done |= {(w, name): pool.submit(run, name, env[w]) for w, name in wanted if w == "workers"}
            yield done
        finally:
            pool.shutdown(cancel_futures=True)
            workers.stop()
            asyncio.run(_drop(real_server.url))


@pytest.mark.beside
@pytest.mark.parametrize("where", ["embedded", "workers"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_its_story(runs: Runs, where: str, name: str) -> None:
    printed, errors, code = runs[where, name].result(timeout=140)
    # A worker warns of a source that cannot be used; embedded, it is the example's own process.
    complaints = [line for line in errors.splitlines() if "source_unavailable" not in line]

    assert (complaints, code) == ([], 0)
    if name in SIDE_BY_SIDE:
        assert sorted(printed.splitlines()) == sorted(story(name).splitlines())
    else:
        assert printed.split() == story(name).split()  # a long line may be folded in the docstring


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_says_how_it_is_run_and_fits_a_screen_or_two(name: str) -> None:
    lines = EXAMPLES[name].read_text(encoding="utf-8").splitlines()

    assert f"    python examples/{name}.py" in docstring(name)
    assert 25 <= len(lines) <= 120
    assert agents_of(name), "an example has an agent that a worker can serve"
    assert "    asyncio.run(main())" in lines or "    main()" in lines


def test_the_folder_s_readme_names_every_example_once() -> None:
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")

    assert sorted(re.findall(r"^\| \[`(\w+)\.py`\]\(\1\.py\) \| \S", readme, re.MULTILINE)) == list(EXAMPLES)
