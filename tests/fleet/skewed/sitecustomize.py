"""Imported by a worker process of the tests before anything else: its clock is off by SKEW seconds, from BACK s on by -SKEW."""

from __future__ import annotations

import os
import time

_real, _started = time.time, time.monotonic()


def _off() -> float:
    """The time of day as this machine would have it."""
    skew, back = float(os.environ["SKEW"]), float(os.environ.get("BACK", "inf"))
    return _real() + (skew if time.monotonic() - _started < back else -skew)


time.time = _off
