"""A model's reply: streamed into the log while it is written, and ended by one append.

That append holds the completed entries, each tool call with what was decided about it, and every question that they raise. So
the log alone says what is still to do, and a decision is never taken twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from broker.keys import new_id
from broker.protocol.callbacks import (
    ApprovalRequest,
    ApprovalTool,
    ClientToolCall,
    approval_to_wire,
    client_call_to_wire,
)
from broker.protocol.records import TokenUsage
from broker.protocol.values import JsonValue, clean_json, clean_text, dumps, is_clean, watch_replaced
from broker.protocol.wire import tail
from workers.agent import AgentDefinition
from workers.client_tools import ClientTool
from workers.effects import Effects, Record, error_entry
from workers.fold import CALLS_LIMIT, History, call_field
from workers.hook_runs import CallVerdict, HookFailed, HookRuns, closing
from workers.hook_set import BoundHook
from workers.hooks import HookCall, HookReply, Reject, RequestApproval, Retry
from workers.models import ModelDelta, ModelError, ModelReasoning, ModelStop, ModelText, ModelToolCall, ModelUsage
from workers.permissions import decide, interrupted_text, refused_text, skipped_text
from workers.subagents import SpawnTool
from workers.toolset import Toolset
from workers.writer import Writer

_HIGH: Final = re.compile("[\ud800-\udbff]$")


class CleanText:
    """Cleans a stream of text once: half of a surrogate pair at the end of a piece waits for its other half."""

    def __init__(self) -> None:
        self._held = ""
        self.replaced = False

    def feed(self, piece: str) -> str:
        """Return the text that is certain now."""
        piece = self._held + piece
        self._held = piece[-1] if _HIGH.search(piece) else ""
        return self._clean(piece[: len(piece) - len(self._held)])

    def end(self) -> str:
        """Return what was held."""
        held, self._held = self._held, ""
        return self._clean(held)

    def _clean(self, text: str) -> str:
        if is_clean(text):
            return text
        with watch_replaced() as halves:
            cleaned = clean_text(text)
        self.replaced = self.replaced or bool(halves)
        return cleaned


def _around(entry: Record) -> tuple[bytes, bytes]:
    """The bytes that complete an entry, before and after its text (written as NUL, which JSON escapes)."""
    before, _, after = tail({"type": "entryCompleted", "entry": entry}).partition(dumps("\x00")[1:-1])
    return before, after


@dataclass
class _Part:
    """The message, or the reasoning, of a reply."""

    kind: str
    entry_id: str | None
    open: bool
    pieces: list[str] = field(default_factory=list)
    clean: CleanText = field(default_factory=CleanText)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def entry(self, text: str) -> Record:
        """The entry's stored form; without text, of a message that was not written after all, its content is empty."""
        if self.kind == "reasoning":
            return {"type": "reasoning", "id": self.entry_id, "text": text}
        content: list[JsonValue] = [{"type": "text", "text": text}] if text else []
        return {"type": "message", "id": self.entry_id, "role": "assistant", "content": content}


class ReplyWriter:
    """Writes one reply. An earlier try's open entries are written into again, from their start."""

    def __init__(self, writer: Writer, definition: AgentDefinition, tools: Toolset, hooks: HookRuns) -> None:
        history = writer.history
        self._writer = writer
        self._definition = definition
        self._tools = tools
        self._hooks = hooks
        self._read = history.n
        self._message = _Part("message", history.open_message, open=False)
        self._reasoning = _Part("reasoning", history.open_reasoning, open=False)
        self._calls: list[ModelToolCall] = []
        self._usage = TokenUsage()
        self._cut_short = False

    @property
    def text(self) -> str:
        """The message's text so far."""
        return self._message.text

    async def take(self, delta: ModelDelta) -> None:
        """Take one delta of the model."""
        match delta:
            case ModelText(text):
                await self._more(self._message, self._message.clean.feed(text))
            case ModelReasoning(text):
                await self._more(self._reasoning, self._reasoning.clean.feed(text))
            case ModelToolCall():
                self._calls.append(delta)
                if len(self._calls) > CALLS_LIMIT:
                    raise ModelError(
                        f"the model made more than {CALLS_LIMIT} calls in one reply", code="too_many_calls"
                    )
            case ModelUsage(usage):
                self._usage = self._usage + usage
            case ModelStop(reason):
                self._cut_short = reason == "length"
            case _:
                raise ModelError(
                    f"the model's stream() gave {type(delta).__name__}; it gives ModelText(…) and the like"
                )

    async def _more(self, part: _Part, text: str) -> None:
        if not text:
            return
        part.pieces.append(text)
        effects = Effects()
        if part.entry_id is not None:
            if not part.open:  # an earlier try's entry, or one to be written again: its text starts afresh
                part.open = True
                effects.write(part.entry_id, part.kind, *_around(part.entry("\x00")), "")
                await self._writer.write(effects)
            self._writer.more_text(part.kind, part.entry_id, text)
            return
        part.open = True
        part.entry_id = new_id()
        added: Record = {"type": "entryAdded", "entry": part.entry(text)}
        if part.kind == "message":
            added = {"type": "entryAdded", "delta": True, "entry": part.entry(text)}
        effects.event(added)
        effects.write(part.entry_id, part.kind, *_around(part.entry("\x00")), text)
        await self._writer.write(effects)

    async def end(self) -> bool:
        """Write the reply's end; False when the model had nothing to say, which leaves nothing in the log.

        Raises `HookFailed`.
        """
        for part in (self._reasoning, self._message):
            await self._more(part, part.clean.end())
        calls = list(self._cleaned(self._calls, self._writer.history))
        if self._hooks.has("post_llm_call"):
            shown = tuple(HookCall(call.id, call.name, call.arguments) for call, _ in calls)
            match await self._hooks.after_model(HookReply(self.text, shown)):
                case hook, Retry(feedback):
                    await self._again(hook, feedback)
                    return True
                case hook, Reject(reason):
                    await self._withdraw(hook, reason)
                    return True
        return await self._keep(calls)

    async def _keep(self, calls: list[tuple[ModelToolCall, bool]]) -> bool:
        effects, history = Effects(), self._writer.history
        private: Record = {"reply": self._read_and_used}
        replaced: list[tuple[str, str]] = []
        for part in (self._reasoning, self._message):
            if part.entry_id is None:
                continue
            effects.completed(part.entry(part.text), private if part.open else None)
            effects.close(part.entry_id)
            private = {} if part.open else private
            if part.clean.replaced:
                replaced.append((part.entry_id, "What the model wrote"))
        if self._message.text:
            effects.last_text(self._message.text)
        questions: list[Record] = []
        for made, halves in calls:
            call, verdict = await self._judged(made)
            decided, question = self._decide(call, verdict, history)
            entry: Record = {
                "type": "toolCall",
                "id": new_id(),
                "toolCallId": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            effects.entry(entry, {**private, "call": decided})
            private = {}
            cut = interrupted_text(entry["name"], started=False)
            field = call_field(call.id, hooked="hooked" in decided)
            effects.keep(field, error_entry(new_id(), call.id, entry["name"], cut))
            if question is not None:
                questions.append(question)
            if halves or verdict.replaced:
                replaced.append((entry["id"], "What a hook set" if verdict.replaced else "What the model wrote"))
        if self._hooks.record(effects, private):
            private = {}
        for question in questions:
            effects.ask(question)
        self._notices(effects, replaced)
        if effects:
            await self._writer.write(effects)
        if private:
            history.note_silence(self._read, self._usage)
        return not private

    @property
    def _read_and_used(self) -> Record:
        return {"read": self._read, "usage": _usage(self._usage)}

    async def _again(self, hook: BoundHook, feedback: str) -> None:
        """The model writes the reply again, into the same entries; cut before it does, they are empty."""
        effects, history = Effects(), self._writer.history
        if history.drafts >= self._hooks.retries:
            abandon(history, effects)
            said = f"hook {hook.name} had the reply written again {history.drafts} times, and did not take the last one"
            raise HookFailed(said, code="hook_retry_limit", effects=effects)
        for part in (self._reasoning, self._message):
            if part.entry_id is not None:
                effects.close(part.entry_id)
                effects.keep(part.entry_id, part.entry(""))
        details: Record = {"retry": feedback, "text": self.text}
        self._hooks.decided(hook, "post_llm_call", details, {"draft": self._read_and_used})
        self._hooks.record(effects)
        await self._writer.write(effects)

    async def _withdraw(self, hook: BoundHook, reason: str) -> None:
        """The reply was rejected: its entries are empty, its calls are not made, and the turn only ends."""
        effects = Effects()
        abandon(self._writer.history, effects)
        self._hooks.decided(hook, "post_llm_call", {"reject": reason}, {"reply": self._read_and_used})
        self._hooks.record(effects)
        closing(effects, hook, reason)
        await self._writer.write(effects)

    def _notices(self, effects: Effects, replaced: Iterable[tuple[str, str]]) -> None:
        for entry_id, what in replaced:
            effects.replaced(entry_id, what)
        if self._cut_short:
            said = "The model stopped at its length limit; its reply is cut short."
            effects.notice(said, level="warning", source="model", details={"reason": "length"})

    def _cleaned(self, calls: Iterable[ModelToolCall], history: History) -> Iterator[tuple[ModelToolCall, bool]]:
        """Calls as they are stored, and whether text of theirs was replaced.

        A call id is unique in its session: one that a provider repeats, or that is no plain text, is replaced.
        """
        seen = set(history.call_ids)
        for call in calls:
            good = bool(call.id) and call.id not in seen and is_clean(call.id) and call.id.isprintable()
            call_id = call.id if good else f"call_{new_id()}"
            seen.add(call_id)
            known = self._tools.find(call.name)
            with watch_replaced() as replaced:
                name = known.id if known is not None else clean_text(call.name)
                arguments, malformed = _arguments(call)
            yield ModelToolCall(call_id, name, arguments, malformed), bool(replaced)

    async def _judged(self, call: ModelToolCall) -> tuple[ModelToolCall, CallVerdict]:
        """A call with the arguments that the hooks leave it, and what they say of it; they are shown what could run."""
        if call.malformed or not self._hooks.has("pre_tool_call") or self._tools.find(call.name) is None:
            return call, CallVerdict(call.arguments)
        verdict = await self._hooks.before_call(HookCall(call.id, call.name, call.arguments), self.text)
        return replace(call, arguments=verdict.arguments), verdict

    def _decide(self, call: ModelToolCall, verdict: CallVerdict, history: History) -> tuple[Record, Record | None]:
        """What to do with a call, and the question it raises. Written with it, and never decided again."""
        known = self._tools.find(call.name)
        if known is None:
            listed = ", ".join(spec.id for spec in self._tools.specs) or "none"
            return {"decision": "refused", "text": f"There is no tool {call.name[:80]!r}. Known tools: {listed}."}, None
        if call.malformed:
            return {"decision": "refused", "text": f"The arguments of {known.id} are no valid JSON."}, None
        if verdict.skipped is not None:
            return {"decision": "refused", "text": skipped_text(known.id, verdict.skipped)}, None
        mode, policy = self._definition.permission_mode, self._definition.permission_policy
        decision = decide(known.id, mode, policy, history.grants)
        if decision == "refused":
            return {"decision": "refused", "text": refused_text(known.id)}, None
        callback, now = new_id(), datetime.now(UTC)
        retry_safe = not isinstance(known, (ClientTool, SpawnTool)) and known.retry_safe
        spawns: Record = {"spawns": True} if isinstance(known, SpawnTool) else {}
        hooked: Record = {}
        if isinstance(known, ClientTool) and self._hooks.has("post_tool_call"):
            hooked = {"hooked": True}
        if decision == "ask" or verdict.asked is not None:
            tool = ApprovalTool(id=known.id, name=known.name, description=known.description or None)
            request = ApprovalRequest(
                tool=tool, tool_call_id=call.id, arguments=call.arguments, from_hook=verdict.asked is not None
            )
            question = approval_to_wire(callback, request, now, approval_title(known.name, verdict.asked))
            return {"decision": "ask", "callback": callback, "retrySafe": retry_safe, **hooked, **spawns}, question
        if isinstance(known, ClientTool):
            asked = ClientToolCall(tool_call_id=call.id, name=known.id, arguments=call.arguments)
            return {"decision": "client", "callback": callback, **hooked}, client_call_to_wire(callback, asked, now)
        return {"decision": "run", "retrySafe": retry_safe, **spawns}, None


def abandon(history: History, effects: Effects) -> None:
    """Complete what a reply opened and will not write: without content."""
    for kind, entry_id in (("reasoning", history.open_reasoning), ("message", history.open_message)):
        if entry_id is not None:
            effects.completed(_Part(kind, entry_id, open=False).entry(""))
            effects.close(entry_id)


def approval_title(name: str, asked: RequestApproval | None) -> str | None:
    """The title of a question that a hook gave a reason for; None is the usual one."""
    if asked is None or asked.reason is None:
        return None
    return clean_text(f"Allow {name}? {asked.reason}")


def _arguments(call: ModelToolCall) -> tuple[JsonValue, bool]:
    """A call's arguments, and whether they are malformed; what JSON cannot hold is, and is not kept."""
    try:
        return clean_json(call.arguments, "arguments"), call.malformed
    except (ValueError, RecursionError):
        return None, True


def _usage(usage: TokenUsage) -> Record:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
    }
