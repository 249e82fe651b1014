"""The code of the foundation, unpacked from the repository's history: its workers run beside those of HEAD."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

COMMIT: Final = "1185453"
REPOSITORY: Final = Path(__file__).parent.parent.parent


class NoHistoryError(Exception):
    """The commit is not there."""


def unpack(folder: Path) -> Path:
    """Unpack its tree into a folder. Raises `NoHistoryError` with one sentence when this checkout does not have it."""
    try:
        packed = subprocess.run(
            ["git", "archive", COMMIT, "broker", "workers", "api_shim"],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        raise NoHistoryError(
            f"Commit {COMMIT} (the foundation) is not in this checkout, so its workers cannot run beside those of HEAD: "
            f"fetch the whole history (git fetch --unshallow), or run with OLD=0."
        ) from None
    with tarfile.open(fileobj=io.BytesIO(packed)) as tree:
        tree.extractall(folder, filter="data")
    return folder
