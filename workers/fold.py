"""A session's history as the next step needs it: folded from the log, record by record, and from nothing else.

The fold is what makes a fresh worker, a crash, a resume and a replayed test one code path. It keeps, in the order in which a
model reads them, inputs and replies with the results of their calls; and, of the active turn, what is open, counted and asked.

Private fields of records that it reads (written by `workers/reply.py`, `broker/scripts/answer.lua` and the shim's answers):

    entryCompleted  private.reply    {"read": N, "usage": {…}}    the first record of a model's reply
    checkpoint      private.draft    {"read": N, "usage": {…}}    a reply that a hook has the model write again
    toolCall entry  private.call     {"decision": "run|ask|client|refused", "callback": id, "text": …, "retrySafe": …,
                                      "hooked": …, "spawns": …}
    callbackResolved private         {"outcome": "answered|closed|expired", "answer": {…}}
    context message private.source   "down" or "up", of the tool source that it is about
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from broker.protocol.content import ContentBlock, content_for_model, content_from_wire, content_text
from broker.protocol.records import TokenUsage, ToolCall
from broker.protocol.values import JsonValue, dumps
from workers.checkpoints import HookLog
from workers.source_state import SourceStates

if TYPE_CHECKING:
    from workers.models import ModelMessage

_ITEM_WEIGHT: Final = 1000
"""What a message takes beside its contents."""


def call_field(tool_call_id: str, *, hooked: bool) -> str:
    """Return the open field of a call. `hooked`: one that a client's answer does not find, to put its result there.

    A turn that is cut then has nothing that a hook would have withheld. No id holds a line break, so the two never meet.
    """
    return f"call:{chr(10) if hooked else ''}{tool_call_id}"


CALLS_LIMIT: Final = 128
"""Calls of one reply: as many as one append holds, and as providers take."""


@dataclass
class Call:
    """One tool call of a reply: what was decided about it, and how far it got."""

    tool_call_id: str
    name: str
    arguments: JsonValue
    decision: str = "run"
    callback: str | None = None
    text: str | None = None
    retry_safe: bool = False
    hooked: bool = False
    spawns: bool = False
    answer: dict[str, Any] | None = None
    outcome: str | None = None
    result_entry: str | None = None
    result: dict[str, Any] | None = None

    @property
    def field(self) -> str:
        """Under which the bytes that complete it are kept, until it starts."""
        return call_field(self.tool_call_id, hooked=self.hooked)

    @property
    def started(self) -> bool:
        """Whether the tool had started, in this run or an earlier one."""
        return self.result_entry is not None

    @property
    def done(self) -> bool:
        """Whether its result is in the log."""
        return self.result is not None

    @property
    def ready(self) -> bool:
        """Whether something can be done about it now: run it, or write down what was decided or answered."""
        if self.done or (self.spawns and self.started):
            return False
        return self.decision in ("run", "refused") or self.outcome is not None

    @property
    def starts_child(self) -> bool:
        """Whether what can be done about it now is to start a subagent."""
        return self.spawns and self.ready and self.decision != "refused" and self.allowed

    @property
    def allowed(self) -> bool:
        """Whether nobody has to be asked, or somebody said yes."""
        return self.decision == "run" or (self.outcome == "answered" and (self.answer or {}).get("type") == "allow")


@dataclass
class Input:
    """A message to the model: the user's, a system message of an imported history; and the context sent with it.

    One of role "context" is a message about a tool source that came after a reply; it asks the model for nothing.
    """

    position: int
    role: str
    content: tuple[ContentBlock, ...]
    context: list[tuple[ContentBlock, ...]] = field(default_factory=list)
    told: tuple[ModelMessage, ...] | None = field(default=None, compare=False)
    """What a model reads of it, once nothing can be added to it (workers/prompt.py)."""


@dataclass
class Reply:
    """What one model call gave: its text and its calls, whose results are with them."""

    position: int
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    result_position: int = 0
    told: tuple[ModelMessage, ...] | None = field(default=None, compare=False)
    """As an input's; once every call has its result."""


@dataclass
class Draft:
    """A reply that a hook had the model write again: its text, and what the model is told of it."""

    position: int
    text: str
    feedback: str
    told: tuple[ModelMessage, ...] | None = field(default=None, compare=False)


@dataclass
class History:
    """A session, folded up to `last` (the id of the last stored event; `n` its position)."""

    last: str = "0-0"
    n: int = 0
    timeline: list[Input | Reply | Draft] = field(default_factory=list)
    grants: set[str] = field(default_factory=set)
    call_ids: set[str] = field(default_factory=set)
    turn: str | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    open_message: str | None = None
    open_reasoning: str | None = None
    replies: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    text: str = ""
    opened_at: dict[str, int] = field(default_factory=dict)
    silent_at: int = -1
    early: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Results of a starting history that came before their calls."""
    hooks: HookLog = field(default_factory=HookLog)
    sources: SourceStates = field(default_factory=SourceStates)
    weight: int = field(default=0, compare=False)
    """Bytes of memory that it takes, roughly."""

    def apply(self, stream_id: str, record: dict[str, Any]) -> None:
        """Fold one stored record, the next one of the log. A type that this version does not know changes nothing."""
        self.last, self.n = stream_id, int(stream_id.partition("-")[0])
        turn = record.get("turnId")
        if turn is not None and turn != self.turn:
            self._begin(turn)
        match record["type"]:
            case "entryAdded":
                if (entry := record.get("entry")) is not None:
                    self._added(entry)
            case "entryCompleted":
                self.weight += _ITEM_WEIGHT + len(dumps(record["entry"]))
                self._completed(record["entry"], record.get("private") or {}, turn)
            case "callbackOpened":
                self._opened(record["callback"])
            case "callbackResolved":
                self._resolved(record["callbackId"], record.get("private") or {})
            case "notice":
                self.sources.notice(record)
            case _:
                pass

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Every call of the active turn, in order, also denied and failed ones."""
        return tuple(ToolCall(name=call.name, arguments=call.arguments) for call in self.calls.values())

    @property
    def drafts(self) -> int:
        """How often the reply that is due was written already, and is to be written again."""
        since = takewhile(lambda item: not isinstance(item, Reply), reversed(self.timeline))
        return sum(isinstance(item, Draft) for item in since)

    @property
    def awaits_model(self) -> bool:
        """Whether there is something that the model has not answered: an input, or results of its calls."""
        asking = (item for item in reversed(self.timeline) if not (isinstance(item, Input) and item.role == "context"))
        match next(asking, None):
            case None:
                return False
            case Reply() as reply:
                return bool(reply.calls) and max(reply.position, reply.result_position) > self.silent_at
            case item:
                return item.position > self.silent_at

    def note_silence(self, read: int, usage: TokenUsage) -> None:
        """The model, having read up to `read`, had nothing to say: no record shows it, and only newer things call it again."""
        self.silent_at, self.usage, self.replies = read, self.usage + usage, self.replies + 1

    def _begin(self, turn: str) -> None:
        self.turn, self.replies, self.usage, self.text = turn, 0, TokenUsage(), ""
        self.open_message = self.open_reasoning = None
        self.calls, self.opened_at, self.early = {}, {}, {}
        self._drop_drafts()
        self.hooks.begin_turn()
        self.sources.begin()

    def _added(self, entry: dict[str, Any]) -> None:
        match entry["type"]:
            case "message":
                self.open_message = entry["id"]
            case "reasoning":
                self.open_reasoning = entry["id"]
            case "toolResult":
                if (call := self.calls.get(entry["toolCallId"])) is not None:
                    call.result_entry = entry["id"]
            case _:
                pass
        self.opened_at[entry["id"]] = self.n

    def _completed(self, entry: dict[str, Any], private: dict[str, Any], turn: str | None) -> None:
        if turn is None:
            self._imported(entry)
            return
        reply = private.get("reply")
        if reply is not None:
            self._open_reply(int(reply["read"]))
            self.replies += 1
            self.usage = self.usage + TokenUsage(**(reply.get("usage") or {}))
        if (draft := private.get("draft")) is not None:
            self._draft(entry["details"], draft)
        match entry["type"]:
            case "message":
                self.sources.told(entry, private)
                self._message(entry, replied=reply is not None)
            case "reasoning":
                self.open_reasoning = None if self.open_reasoning == entry["id"] else self.open_reasoning
            case "toolCall":
                self._call(entry, private.get("call") or {})
            case "toolResult":
                self._result(entry)
            case "checkpoint":
                self.hooks.note(entry)
            case _:
                pass

    def _place(self, item: Reply | Draft, read: int) -> None:
        """What people sent after the reply's request had read the log stands after the reply and its results."""
        at = len(self.timeline)
        while at and isinstance(before := self.timeline[at - 1], Input) and before.position > read:
            at -= 1
        self.timeline.insert(at, item)

    def _open_reply(self, read: int) -> Reply:
        reply = Reply(self.n)
        self._drop_drafts()
        self._place(reply, read)
        return reply

    def _draft(self, details: dict[str, Any], private: dict[str, Any]) -> None:
        self._place(Draft(self.n, details["text"], details["retry"]), int(private["read"]))
        self.usage = self.usage + TokenUsage(**(private.get("usage") or {}))

    def _drop_drafts(self) -> None:
        """The reply that was due is there, or its turn is over: what it replaced is nothing that a model reads."""
        if self.drafts:
            self.timeline = [item for item in self.timeline if not isinstance(item, Draft)]

    def _last_reply(self) -> Reply | None:
        return next((item for item in reversed(self.timeline) if isinstance(item, Reply)), None)

    def _message(self, entry: dict[str, Any], *, replied: bool) -> None:
        content = tuple(content_from_wire(block) for block in entry["content"])
        match entry.get("role", "user"):  # a message between agents has a sender, and no role
            case "assistant":
                if self.open_message == entry["id"]:
                    self.open_message = None
                if not content:
                    return  # an entry of an earlier try that the reply did not write
                last = self._last_reply()
                if not replied and not (last is not None and last.position == self.n - 1):
                    # Cut by an interrupt: what was read is what stood before it was opened.
                    last = self._open_reply(self.opened_at.get(entry["id"], self.n))
                if last is not None:
                    last.text = self.text = content_text(content)
            case "context":
                if self.timeline and isinstance(item := self.timeline[-1], Input) and item.role != "context":
                    item.context.append(content)
                    item.told = None
                elif entry.get("kind") == "capability_source":
                    self.timeline.append(Input(self.n, "context", content))
            case role:
                self.timeline.append(Input(self.n, role, content))

    def _call(self, entry: dict[str, Any], decided: dict[str, Any]) -> None:
        reply = self._last_reply() or self._open_reply(self.n)
        self._add_call(reply, entry, decided)

    def _add_call(self, reply: Reply, entry: dict[str, Any], decided: dict[str, Any]) -> Call:
        call = Call(
            entry["toolCallId"],
            entry["name"],
            entry.get("arguments"),
            decision=decided.get("decision", "run"),
            callback=decided.get("callback"),
            text=decided.get("text"),
            retry_safe=bool(decided.get("retrySafe")),
            hooked=bool(decided.get("hooked")),
            spawns=bool(decided.get("spawns")),
        )
        reply.calls.append(call)
        self.calls[call.tool_call_id] = call
        self.call_ids.add(call.tool_call_id)
        return call

    def _imported(self, entry: dict[str, Any]) -> None:
        """An entry of a starting history, complete and in its place. Its call ids are each their call's and result's own.

        Calls join the reply that stands last, as many as it may have, until one of its results is there: a model asks for
        several, then reads them.
        """
        match entry["type"]:
            case "message" if entry["role"] == "assistant":
                content = tuple(content_from_wire(block) for block in entry["content"])
                self.timeline.append(Reply(self.n, content_text(content_for_model(content))))
            case "message":
                self._message(entry, replied=False)
            case "toolCall":
                last = self.timeline[-1] if self.timeline else None
                full = isinstance(last, Reply) and len(last.calls) == CALLS_LIMIT
                if not isinstance(last, Reply) or full or any(call.done for call in last.calls):
                    last = self._open_reply(self.n)
                call = self._add_call(last, entry, {})
                call.result = self.early.pop(call.tool_call_id, None)
            case "toolResult" if (made := self.calls.get(entry["toolCallId"])) is not None:
                made.result = entry
            case "toolResult":
                self.early[entry["toolCallId"]] = entry
            case _:
                pass

    def _result(self, entry: dict[str, Any]) -> None:
        call = self.calls.get(entry["toolCallId"])
        if call is not None and not call.done:  # its one result
            call.result_entry, call.result = entry["id"], entry
            if (reply := self._last_reply()) is not None:
                reply.result_position = self.n

    def _opened(self, callback: dict[str, Any]) -> None:
        """A client tool's call that was approved first is then asked of the client."""
        self.sources.opened(callback)
        if callback.get("type") == "clientTool":
            call = self.calls.get(callback["call"]["toolCallId"])
            if call is not None:
                call.decision, call.callback, call.outcome, call.answer = "client", callback["id"], None, None

    def _resolved(self, callback_id: str, private: dict[str, Any]) -> None:
        self.sources.resolved(callback_id, private)
        for call in self.calls.values():
            if call.callback == callback_id:
                call.outcome = private.get("outcome", "closed")
                call.answer = private.get("answer")
                if call.answer is not None and call.answer.get("scope") == "session":
                    self.grants.add(call.name)
