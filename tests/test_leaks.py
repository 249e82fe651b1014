"""The checks of what tests leave behind: each of them fails a test that leaks, and says what."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from process_leaks import WHY_NOT

linux_only = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")

LEAKING = """
import asyncio, subprocess, sys, threading
import process_leaks, pytest

process_leaks.WITHIN_S = 0.05
kept = []

@pytest.fixture(scope="module")
def shared():
    kept.append(open(__file__))

def test_clean(shared):
    with open(__file__): pass

def test_file():
    kept.append(open(__file__))

async def test_connection(redis_broker):
    kept.append(redis_broker.connection(timeout=None))
    await kept[-1].connect()

async def test_task():
    kept.append(asyncio.create_task(asyncio.sleep(60)))

def test_thread():
    kept.append(threading.Event())
    threading.Thread(target=kept[-1].wait, name="lingers", daemon=True).start()

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

async def test_key(redis_broker):
    await redis_broker.client.set(redis_broker.keys.base(0) + "text:nobody", "1")

async def test_key_of_the_embedded_broker(embedded_broker):
    await embedded_broker.client.set(embedded_broker.keys.base(0) + "novelty", "1")

async def test_key_beside_every_prefix(real_server, redis_broker):
    await redis_broker.client.set("elsewhere", "1")

def test_clean_afterwards(): pass
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run a file of leaking tests under the checks of this suite; what went wrong, by the test's name."""
    folder = tmp_path_factory.mktemp("leaking")
    (folder / "test_leaking.py").write_text(LEAKING, encoding="utf-8")
    here = Path(__file__).parent
    options = (
        f"-p conftest -p no:cacheprovider -o addopts= -c {here.parent / 'pyproject.toml'} --basetemp {folder / 'tmp'}"
    )
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options.split(),
            "--junitxml",
            folder / "told.xml",
            "--rootdir",
            folder,
            folder,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "told.xml").is_file(), ran.stdout + ran.stderr
    cases = ET.parse(folder / "told.xml").iter("testcase")  # noqa: S314 - ours
    return {case.attrib["name"]: "".join(part.attrib["message"] + (part.text or "") for part in case) for case in cases}


@pytest.mark.parametrize("name", ["test_clean", "test_clean_afterwards"])
def test_a_test_that_gives_back_what_it_took_passes(told: dict[str, str], name: str) -> None:
    assert told[name] == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("test_file", r"fd \d+ .*/test_leaking\.py", marks=linux_only),
        pytest.param("test_connection", r"fd \d+ socket:\[\d+\]: port \d+ to port \d+", marks=linux_only),
        pytest.param("test_child", r"child \d+: .*python.* -c input\(\)", marks=linux_only),
        ("test_thread", r"thread \d+ \(lingers\)"),
        ("test_task", r"<Task pending name='Task-\d+' coro=<sleep\(\)"),
        ("test_key", r"\{s0\}:text:nobody"),
        ("test_key_of_the_embedded_broker", r"\{s0\}:novelty"),
        ("test_key_beside_every_prefix", r"elsewhere"),
    ],
)
def test_a_test_that_leaks_fails_and_the_leak_is_named(told: dict[str, str], name: str, said: str) -> None:
    assert re.search(said, told[name])
