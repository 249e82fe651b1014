"""What this process holds: descriptors (connections among them), threads, child processes. A test gives back what it took."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

WHY_NOT: Final = None if Path("/proc/self/fd").is_dir() else "only Linux tells a process's descriptors and children"
"""Why descriptors and children are not told here; threads always are."""

WITHIN_S = 2.0
"""How long a test may take to give back what it took: closing goes on for a moment after it."""


def held() -> frozenset[str]:
    """Return one line for each thing that this process holds now; the same thing has the same line."""
    lines = [f"thread {thread.native_id} ({thread.name})" for thread in threading.enumerate()]
    if WHY_NOT is None:
        lines += _descriptors()
        lines += [f"child {pid}" for pid in _children()]
    return frozenset(lines)


def expect_released(before: frozenset[str]) -> None:
    """Fail, by name of what it is, when this process holds what it did not hold before, and goes on holding it."""
    until = time.monotonic() + WITHIN_S
    while left := held() - before:
        if time.monotonic() > until:
            told = "\n".join(f"  {_told(line)}" for line in sorted(left))
            raise AssertionError(f"the test took this and did not give it back:\n{told}")
        time.sleep(0.005)


class Outliving:
    """A pytest plugin: what fixtures took that outlive the test for which they are set up."""

    def __init__(self) -> None:
        self.lines: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Note what the fixtures of a module, or of the session, take."""
        if fixturedef.scope == "function":
            return (yield)
        before = held()
        try:
            return (yield)
        finally:
            self.lines |= held() - before


def _descriptors() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - each test pays for it twice
        try:
            yield f"fd {number} {os.readlink(f'/proc/self/fd/{number}')}"  # noqa: PTH115
        except FileNotFoundError:  # that of the listing itself
            continue


def _children() -> list[str]:
    found: list[str] = []
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            found += Path(f"/proc/self/task/{task}/children").read_text().split()
        except FileNotFoundError:  # the thread has ended, or the kernel does not tell
            continue
    return found


def _told(line: str) -> str:
    """A line with what can be found out about the thing: who is at the other end, what program it is."""
    kind, name, *_ = line.split(" ", 2)
    if kind == "child":
        return f"{line}: {_command(name) or 'has ended, and nobody waited for it'}"
    if kind == "fd" and (inode := re.search(r"socket:\[(\d+)\]", line)) is not None:
        return f"{line}: {_peer(inode[1])}"
    return line


def _command(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()


def _peer(inode: str) -> str:
    for family in ("tcp", "tcp6"):
        for row in Path(f"/proc/self/net/{family}").read_text().splitlines()[1:]:
            words = row.split()
            if words[9] == inode:
                local, remote = (int(words[at].rpartition(":")[2], 16) for at in (1, 2))
                return f"port {local} to port {remote}" if remote else f"listens on port {local}"
    return "no TCP socket"
