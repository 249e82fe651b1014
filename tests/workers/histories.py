"""Histories for tests: records as a log holds them, folded."""

from __future__ import annotations

from typing import Any, Final

from workers.fold import History

TURN: Final = "00000000-0000-4000-8000-000000000001"
Record = dict[str, Any]


def text(value: str) -> list[Record]:
    """Return content of one text block."""
    return [{"type": "text", "text": value}]


class Told:
    """A log as it grows, and the history folded from it."""

    def __init__(self, turn: str | None = TURN) -> None:
        self.turn = turn
        self.records: list[Record] = []
        self.history = History()

    def record(self, **record: Any) -> Told:
        """Add one record, of the turn that is told of now."""
        if self.turn is not None:
            record["turnId"] = self.turn
        self.records.append(record)
        self.history.apply(f"{len(self.records)}-1000", record)
        return self

    def added(self, entry: Record) -> Told:
        """An entry is opened."""
        return self.record(type="entryAdded", entry=entry)

    def completed(self, entry: Record, **private: Any) -> Told:
        """An open entry is completed."""
        return self.record(type="entryCompleted", entry=entry, **({"private": private} if private else {}))

    def entry(self, entry: Record, **private: Any) -> Told:
        """An entry is added complete."""
        return self.record(type="entryAdded", beside=True).completed(entry, **private)

    def user(self, said: str, role: str = "user") -> Told:
        """A person's message, or a context or system message."""
        return self.entry({"type": "message", "id": f"u{len(self.records)}", "role": role, "content": text(said)})

    def reply(self, said: str, *calls: str, read: int | None = None, **decided: Record) -> Told:
        """A model's reply: its text and its calls, each `run` unless `decided` says otherwise."""
        private: Record = {"reply": {"read": len(self.records) if read is None else read, "usage": {"total_tokens": 1}}}
        if said:
            entry_id = f"m{len(self.records)}"
            self.added({"type": "message", "id": entry_id, "role": "assistant", "content": text(said)})
            message = {"type": "message", "id": entry_id, "role": "assistant", "content": text(said)}
            self.completed(message, **private)
            private = {}
        for call in calls:
            made = {"type": "toolCall", "id": f"e{call}", "toolCallId": call, "name": "client.t", "arguments": {}}
            self.entry(made, **private, call={"decision": "run", **decided.get(call, {})})
            private = {}
        return self

    def checkpoint(self, point: str, hook: str = "h", private: Record | None = None, **details: Any) -> Told:
        """A hook's checkpoint."""
        entry = {"type": "checkpoint", "id": f"k{len(self.records)}", "message": f"hook:{hook}:{point}"}
        return self.entry({**entry, "details": details}, **(private or {}))

    def draft(self, said: str, feedback: str, read: int | None = None) -> Told:
        """A reply that a hook has the model write again."""
        drafted = {"read": len(self.records) if read is None else read, "usage": {"total_tokens": 1}}
        return self.checkpoint("post_llm_call", private={"draft": drafted}, retry=feedback, text=said)

    def started(self, call: str) -> Told:
        """A tool starts."""
        return self.added({"type": "toolResult", "id": f"r{call}", "toolCallId": call, "name": "client.t"})

    def result(self, call: str, said: str = "done") -> Told:
        """A call's result, of a tool that had started or not."""
        entry = {"type": "toolResult", "id": f"r{call}", "toolCallId": call, "name": "client.t", "content": text(said)}
        known = self.history.calls.get(call)
        return self.completed(entry) if known is not None and known.started else self.entry(entry)

    def asked(self, call: str, callback: str, kind: str = "approval") -> Told:
        """A question about a call is opened."""
        opened: Record = {"type": kind, "id": callback, "request": {"toolCallId": call}}
        if kind == "clientTool":
            opened = {"type": kind, "id": callback, "call": {"toolCallId": call}}
        return self.record(type="callbackOpened", callback=opened)

    def answered(self, callback: str, answer: Record | None = None, outcome: str = "answered") -> Told:
        """A question is answered, closed or expired."""
        private: Record = {"outcome": outcome}
        if answer is not None:
            private["answer"] = answer
        return self.record(type="callbackResolved", callbackId=callback, private=private)

    def next_turn(self, turn: str = "00000000-0000-4000-8000-000000000002") -> Told:
        """The turn ends, and another one is told of from now on."""
        self.record(type="turnEnded", state={"type": "completed"})
        self.turn = turn
        return self
