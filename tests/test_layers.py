"""What may import what, and how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

import module_size
import pytest

ROOT: Final = Path(__file__).parent.parent
LAYERS: Final = ("broker", "workers", "api_shim")
"""From the ground up: each imports only itself and what stands before it."""

PARTIES: Final = {
    "arq": {"workers/worker.py"},
    "fakeredis": {"broker/embedded.py"},
    "redis": {"broker", "workers/worker.py", "api_shim/cli"},
    "click": {"api_shim/cli"},
    "mcp": {"workers/source_connection.py", "workers/source_incoming.py"},
    "mcp_types": {
        "workers/source_connection.py",
        "workers/source_incoming.py",
        "workers/source_tool.py",
        "workers/run_sources.py",
    },
    "pickle": set[str](),
}
"""Who may import what others wrote: a change of theirs is then a change in one place."""


def _modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _imports(path: Path) -> set[str]:
    """The top packages that a module imports, wherever in it; relative imports stay in their own."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_down_only(layer: str) -> None:
    above = set(LAYERS[LAYERS.index(layer) + 1 :])

    upward = {str(path.relative_to(ROOT)): _imports(path) & above for path in _modules(layer)}

    assert {path: names for path, names in upward.items() if names} == {}


@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_imports_the_tests_or_what_stands_beside(layer: str) -> None:
    beside = {"tests", "benchmarks", "examples", "hypothesis", "pytest"}

    assert [path for path in _modules(layer) if _imports(path) & beside] == []


@pytest.mark.parametrize("party", PARTIES)
def test_what_others_wrote_is_imported_in_its_place(party: str) -> None:
    users = {
        path.relative_to(ROOT).as_posix() for layer in LAYERS for path in _modules(layer) if party in _imports(path)
    }

    assert {user for user in users if not any(user.startswith(place) for place in PARTIES[party])} == set()


OBSERVE: Final = """
import asyncio, sys
import api_shim as agents

async def main():
    session = agents.session("0-3f9c2e71-8c1e-4b7a-9f5e-0a4c8f1d2b3c")
    try:
        await session.info()
    except agents.SessionNotFoundError:
        pass
    try:
        async for event in session.iter_events():
            pass
    except agents.SessionNotFoundError:
        pass
    async for _ in agents.list_sessions():
        pass

asyncio.run(main())
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("workers", "arq", "click")))
"""


@pytest.mark.parametrize(
    "program",
    [
        "import sys, api_shim\nprint(sorted(n for n in sys.modules if n.partition('.')[0] in ('workers', 'arq', 'click')))",
        OBSERVE,
    ],
    ids=["import", "observe"],
)
def test_a_program_that_only_observes_loads_no_tools_or_models(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_worker_without_tool_sources_loads_no_client_of_theirs() -> None:
    program = "import sys, workers.worker\nprint(sorted({'mcp', 'httpx2', 'anyio'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("[]\n", "")


# Module size.


def test_no_module_is_too_long() -> None:
    assert list(module_size.offenders()) == []


def test_a_long_module_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, lines in (("broker/long.py", 401), ("broker/scripts/long.lua", 401), ("broker/fits.py", 400)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n" * lines)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/fits.py").write_text("\n" * 500)
    (tmp_path / "tests/long.py").write_text("\n" * 501)

    found = {path.as_posix() for path, _, _ in module_size.offenders(tmp_path)}
    assert found == {"broker/long.py", "broker/scripts/long.lua", "tests/long.py"}

    everything = list(module_size.offenders(tmp_path))
    monkeypatch.setattr(module_size, "offenders", lambda: iter(everything))
    assert module_size.main() == 1
    assert "tests/long.py: 501 lines; at most 500" in capsys.readouterr().out


def test_make_check_runs_it() -> None:
    assert "tests/module_size.py" in (ROOT / "Makefile").read_text(encoding="utf-8")
