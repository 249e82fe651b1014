"""The samples of the README and of docs/agents.md are run as a newcomer runs them: as programs, embedded and against a worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/agents.md"))
SAMPLES = re.findall(r"### (\d+)\. [^\n]+\n.*?```python\n(.*?)```\n+```text\n(.*?)```", PAGES, re.DOTALL)


def run(program: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_every_numbered_section_has_a_sample() -> None:
    assert [number for number, _, _ in SAMPLES] == re.findall(r"^### (\d+)\.", PAGES, re.MULTILINE)
    assert len(SAMPLES) == 11


@pytest.mark.parametrize(("number", "code", "printed"), SAMPLES)
def test_a_sample_prints_what_the_readme_says(number: str, code: str, printed: str, tmp_path: Path) -> None:
    program = tmp_path / f"sample_{number}.py"
    program.write_text(code, encoding="utf-8")

    assert printed == run(program, {})


@pytest.mark.parametrize(("number", "code", "printed"), SAMPLES)
def test_a_sample_prints_the_same_against_a_worker(
    number: str, code: str, printed: str, tmp_path: Path, env: dict[str, str]
) -> None:
    program = tmp_path / f"sample_{number}.py"
    program.write_text(code, encoding="utf-8")
    name = re.findall(r"^(\w+) = agents\.Agent\(", code, re.MULTILINE)[0]
    worker = subprocess.Popen(
        [sys.executable, "-m", "api_shim.cli", "worker", f"sample_{number}:{name}", "--grace", "0"],
        cwd=tmp_path,
        env={**os.environ, **env},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        first = worker.stderr.readline()
        assert "worker_started" in first

        assert printed == run(program, env)
    finally:
        worker.terminate()
        worker.communicate(timeout=20)
    assert worker.returncode == 0


@pytest.mark.parametrize("then", ["", "    raise SystemExit(0)\n", "    await session.start_turn('x')\n"])
def test_a_program_that_ends_at_once_ends_cleanly(then: str, tmp_path: Path) -> None:
    """Its embedded worker has only just started, or has just been given a turn; nothing is printed but what it prints."""
    program = tmp_path / "short.py"
    program.write_text(
        "import asyncio\nimport api_shim as agents\n"
        "echo = agents.Agent(name='e', model='scripted:echo')\n"
        "async def main() -> None:\n    session = await echo.start_session()\n    print('ok', flush=True)\n"
        f"{then}asyncio.run(main())\n",
        encoding="utf-8",
    )

    assert run(program, {"PYTHONASYNCIODEBUG": ""}) == "ok\n"
