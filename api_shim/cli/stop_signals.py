"""The signals that tell a worker's process to stop: SIGTERM, and SIGINT at a terminal.

This module loads nothing: it listens before the rest of the program is there.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import FrameType

STOP: Final = (signal.SIGINT, signal.SIGTERM)

early: Final[list[int]] = []
"""The signals that came before a loop listened."""


def note_early() -> None:
    """Note the first signal from now on, until a loop listens; a second one ends the process, which has begun nothing."""
    for number in STOP:
        signal.signal(number, _note)


def _note(number: int, _frame: FrameType | None) -> None:
    early.append(number)
    if len(early) > 1:
        raise SystemExit(0)


def listen(loop: asyncio.AbstractEventLoop, signalled: Callable[[], None]) -> None:
    """Call `signalled` on the loop for each signal, also for one that came early."""
    for number in STOP:
        loop.add_signal_handler(number, signalled)
    if early:
        loop.call_soon(signalled)


def ignore(loop: asyncio.AbstractEventLoop) -> None:
    """Let further signals do nothing: the process leaves by itself."""
    for number in STOP:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
