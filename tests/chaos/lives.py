"""How worker processes ended: none of itself, and none with an error that it did not expect."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from crew import Life

_FAILED: Final = ("run_failed", "loop_failed", "turn_failed", "broker_lost_writes")


class Lives:
    """What the ends and the logs of a part's processes tell."""

    def __init__(self, lives: Iterable[Life]) -> None:
        self.findings: list[str] = []
        self.counts: Counter[str] = Counter()
        self.parked: set[str] = set()
        """Turns that a worker parked, and lived to say so."""
        self.drains: list[float] = []
        """Seconds that workers of HEAD took over their grace when they were told to drain."""
        for life in lives:
            self._look(life, list(life.lines()))

    def _look(self, life: Life, lines: Sequence[dict[str, Any]]) -> None:
        self.counts["processes"] += 1
        end = _end_of(life, lines)
        if end is not None and end.startswith("!"):
            last = " | ".join(line["text"] for line in lines[-3:] if "text" in line)
            self.findings.append(f"worker {life.number} ({life.version}) {end[1:]}: {last}")
        elif end is not None:
            self.counts[end] += 1
        for line in lines:
            self.counts[f"runs by {life.version}"] += line.get("event") == "turn_begun"
            if line.get("outcome") == "parked":
                self.parked.add(line["turn"])
        if life.version != "head":
            return
        for line in lines:
            if line.get("event") in _FAILED or line.get("level") == "error":
                self.findings.append(f"worker {life.number}: {line}")
        if life.drained is not None and life.ended is not None and life.status == 0:
            self.drains.append(round(max(0.0, life.ended - life.drained - life.birth.grace), 3))


def _end_of(life: Life, lines: Sequence[dict[str, Any]]) -> str | None:
    """Name how a process ended; with a `!` before it what must not be."""
    texts = [line["text"] for line in lines if "text" in line]
    events = {line.get("event") for line in lines}
    if any(text.startswith("fault ") for text in texts):
        return "deaths at fault points"
    if life.killed or life.status is None:
        return None
    if life.status == 0:
        return None if life.drained is not None else "!left of itself"
    if life.status == -signal.SIGTERM and life.drained is not None:
        if "worker_stopped" in events:
            return "ended by a second signal as they left"
        if "worker_started" not in events:
            return "drained before they listened"
    # Of the foundation, one that started while the broker was away said so and exited. Workers of HEAD wait for it.
    if "worker_started" not in events and life.version == "old":
        return "starts while the broker was away"
    return f"!ended with status {life.status}"
