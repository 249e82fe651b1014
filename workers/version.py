"""The version of this installation, as a worker registers it."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def installed_version() -> str:
    """Return the installed version, `unknown` for a checkout that is not installed. Read from disk once."""
    try:
        return metadata.version("turnstream")
    except metadata.PackageNotFoundError:
        return "unknown"
