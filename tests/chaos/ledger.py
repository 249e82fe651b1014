"""The ledger of effects: each tool that runs writes a line first. What is in it has happened, whatever became of the process."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Effect:
    """A tool's body was entered: which kind of tool, for which call, in which process."""

    kind: str
    key: str
    pid: int


def enter(kind: str, key: str) -> None:
    """Write a line. One write to a file opened for appending: it is there whole, or not at all."""
    ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.write(ledger, f"{kind} {key} {os.getpid()}\n".encode())
    finally:
        os.close(ledger)


def read(ledger: Path) -> dict[str, list[Effect]]:
    """Return the effects by call."""
    found: dict[str, list[Effect]] = defaultdict(list)
    if ledger.exists():
        for line in ledger.read_text(encoding="ascii").splitlines():
            kind, key, pid = line.split(" ")
            found[key].append(Effect(kind, key, int(pid)))
    return found
