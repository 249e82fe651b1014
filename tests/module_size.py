"""Module size, as part of `make check`: what no longer fits one head is split. Prints offenders and exits with 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
LIMITS: Final = {"broker": 400, "workers": 400, "api_shim": 400, "benchmarks": 400, "examples": 400, "tests": 500}
"""Lines of one file, by its folder at the top."""
SUFFIXES: Final = (".py", ".lua")


def offenders(root: Path = ROOT) -> Iterator[tuple[Path, int, int]]:
    """Yield each file that is too long, with its lines and its limit."""
    for folder, limit in LIMITS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                lines = len(path.read_text(encoding="utf-8").splitlines())
                if lines > limit:
                    yield path.relative_to(root), lines, limit


def main() -> int:
    """Print the offenders; return the exit code."""
    found = list(offenders())
    for path, lines, limit in found:
        sys.stdout.write(f"{path}: {lines} lines; at most {limit}: split it by concept\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
