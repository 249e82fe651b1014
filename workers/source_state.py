"""How a session stands with its tool sources, folded from the log: the part of `workers.fold.History` that is theirs.

What it reads: notices about a source; the private `source` of context messages, `"down"` or `"up"`; sign-ins, asked and answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class SourceStates:
    """`down`: sources that the model was told are away. The rest is of the active turn only.

    `noticed`: those whose failure is in the log, which are not tried again in this turn. `asked` and `connected`: those that a
    person was asked to sign in to, and who did. `sign_in`: the question that is open.
    """

    down: set[str] = field(default_factory=set)
    noticed: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    connected: set[str] = field(default_factory=set)
    sign_in: str | None = None

    def begin(self) -> None:
        """Another turn has begun."""
        self.noticed, self.asked, self.connected, self.sign_in = set(), set(), set(), None

    def notice(self, record: dict[str, Any]) -> None:
        """Fold a notice."""
        details = record.get("details")
        if isinstance(details, dict) and details.get("status") == "unavailable" and "source_id" in details:
            self.noticed.add(str(details["source_id"]))

    def told(self, entry: dict[str, Any], private: dict[str, Any]) -> None:
        """Fold a context message."""
        match private.get("source"):
            case "down":
                self.down.add(str(entry.get("source")))
            case "up":
                self.down.discard(str(entry.get("source")))

    def opened(self, callback: dict[str, Any]) -> None:
        """Fold a question."""
        if callback.get("type") == "signIn":
            self.sign_in = callback["id"]
            self.asked |= {request["sourceId"] for request in callback["requests"]}

    def resolved(self, callback_id: str, private: dict[str, Any]) -> None:
        """Fold an answer, or the end of a question without one."""
        if callback_id == self.sign_in:
            self.sign_in = None
            self.connected |= set((private.get("answer") or {}).get("connected") or ())
