"""Checkpoints: what hooks decided and kept that no other entry shows, as entries of the log.

    {"type": "checkpoint", "id": …, "message": "hook:<name>:<point>", "details": {…}}

details     skip      why the turn was skipped, from then on it only ends
            reject    why a reply was withdrawn; likewise
            retry     what the model was told of a reply that it is to write again, and `text`: the reply's
            state     the hook's State, where it changed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker.keys import new_id
from broker.protocol.values import JsonValue
from workers.effects import Record
from workers.hooks import Point


def checkpoint(hook: str, point: Point, details: Record) -> Record:
    """Return the stored form of a checkpoint."""
    return {"type": "checkpoint", "id": new_id(), "message": f"hook:{hook}:{point}", "details": details}


@dataclass
class HookLog:
    """What the checkpoints of a session say: what hooks keep; and of the active turn, whether it was opened, or closed."""

    kept: dict[str, JsonValue] = field(default_factory=dict)
    opened: bool = False
    closed: bool = False

    def begin_turn(self) -> None:
        """Another turn begins: what is kept stays."""
        self.opened = self.closed = False

    def note(self, entry: dict[str, Any]) -> None:
        """Fold a checkpoint of a turn. One of an imported history is the user's, and must not come here."""
        kind, _, place = str(entry.get("message")).partition(":")
        hook, _, point = place.rpartition(":")
        details = entry.get("details")
        if kind != "hook" or not isinstance(details, dict):
            return
        self.opened = self.opened or point == "pre_agent_turn"
        self.closed = self.closed or "skip" in details or "reject" in details
        if "state" in details:
            self.kept[hook] = details["state"]
