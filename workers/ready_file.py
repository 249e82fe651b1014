"""The file by which a worker says that it is ready: for supervisors that can look at a file or run a command.

It is there while the worker is ready, and says until when it is good, by the machine's monotonic clock: a process that stands
still is not taken for a ready one, whatever is done to the time of day. While the worker is not ready, the file is gone, and
`PATH.why` beside it holds the reason.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


class ReadyFile:
    """A worker's own ready file. What an earlier process left at its place is taken away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._why = _why_beside(path)
        self.refuse("The worker is starting.")

    def renew(self, seconds: float) -> None:
        """Say that the worker is ready, and will be for so long without another word."""
        _write(self._path, f"{time.monotonic() + seconds:.3f}\n")
        self._why.unlink(missing_ok=True)

    def refuse(self, reason: str) -> None:
        """Say that it is not, and why."""
        self._path.unlink(missing_ok=True)
        _write(self._why, f"{reason}\n")

    def remove(self) -> None:
        """Leave nothing behind, as far as that can be."""
        for path in (self._path, self._why):
            with contextlib.suppress(OSError):
                path.unlink()


def why_not_ready(path: Path) -> str | None:
    """Return None when the worker with this file is ready, else a sentence that says why it is not."""
    try:
        until = float(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        try:
            return _why_beside(path).read_text(encoding="utf-8").strip()
        except OSError:
            return f"There is no {path}: no worker runs with --ready-file {path}."
    except (OSError, ValueError) as unreadable:
        return f"{path} cannot be read as a worker's ready file ({type(unreadable).__name__}): name the file of --ready-file."
    late = time.monotonic() - until
    if late > 0:
        return f"The worker has not renewed {path} in time, for {late:.0f} s now: it stands still, or was killed."
    return None


def _why_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.why")


def _write(path: Path, text: str) -> None:
    """Whole or not at all: nobody reads half a line."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
