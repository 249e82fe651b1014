"""Fault points: named places of a worker's work at which its process can be made to die, for tests and for replaying a chaos run.

`TURNSTREAM_FAULT=<name>[:<nth>]` has the process say `fault <name>` on stderr and kill itself (SIGKILL: nothing is tidied up)
when it passes that place for the nth time. Around each verb of a worker there are two: `<verb>.before`, nothing was sent yet, and
`<verb>.after`, the broker has done it and the worker has done nothing with the reply. The others:

- `model.streaming`: the model has given some text, which may be on its way to the log;
- `model.replied`: the model's reply is there whole, and its end is not in the log;
- `tool.started`: the log says that a tool has started, and its body was not entered;
- `tool.ran`: a tool's body has ended, and its result is not in the log;
- `source.called`: a tool source's server has answered a call, and its result is not in the log;
- `hook.ran`: a hook's point has ended, and what it decided is not in the log.

All of it is off, and costs one look at an empty dictionary, unless that variable or a test names a point.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final

VERBS: Final = (
    "claim",
    "begin",
    "append",
    "spawn",
    "park",
    "finish",
    "release",
    "renew",
    "leave",
    "expire",
    "sweep",
)
"""The verbs of a worker."""

POINTS: Final[tuple[str, ...]] = (
    *(f"{verb}.{side}" for verb in VERBS for side in ("before", "after")),
    "model.streaming",
    "model.replied",
    "tool.started",
    "tool.ran",
    "source.called",
    "hook.ran",
)
"""Every point."""

Action = Callable[[], Awaitable[None]]

armed: Final[dict[str, Action]] = {}
"""What happens at which point; empty when all is off. Callers: `if fault_points.armed: await fault_points.reach("tool.ran")`."""


async def reach(point: str) -> None:
    """Let happen what is armed for a point that was reached."""
    if (action := armed.get(point)) is not None:
        await action()


def arm(point: str, action: Action) -> None:
    """Have `action` awaited each time a point is passed. Raises `ValueError` naming the known points."""
    if point not in POINTS:
        raise ValueError(f"There is no fault point {point!r}. Known points: {', '.join(POINTS)}.")
    armed[point] = action


def disarm() -> None:
    """Turn all points off."""
    armed.clear()


def _death(point: str, nth: int) -> Action:
    left = nth

    async def die() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            sys.stderr.write(f"fault {point}\n")
            sys.stderr.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def arm_from(told: str) -> None:
    """Arm what the variable TURNSTREAM_FAULT tells, if anything. Raises `ValueError` that says what it may be."""
    if not told:
        return
    point, colon, nth = told.partition(":")
    if colon and not (nth.isascii() and nth.isdigit() and int(nth) > 0):
        raise ValueError(f"After the colon stands which passing it is, a number from 1 on, not {nth!r}.")
    arm(point, _death(point, int(nth or 1)))


try:
    arm_from(os.environ.get("TURNSTREAM_FAULT", ""))
except ValueError as bad:
    raise SystemExit(f"TURNSTREAM_FAULT: {bad}") from None
