"""Runs an agent's hooks for one run of a turn: each point in order, until one of them decides.

What is decided and kept enters the log in the append of the step that it belongs to (`record`), so a crash runs the same points
again only if the log does not hold that step. A hook's State lives here between its points; a run reads it from the log.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import structlog
from pydantic import BaseModel

from broker import fault_points
from broker.protocol.records import ProtocolError
from broker.protocol.values import JsonValue, clean_json, clean_text, watch_replaced
from workers.checkpoints import checkpoint
from workers.effects import Effects, Record
from workers.fold import History
from workers.hook_set import BoundHook, HookRaised, HookSet, dump, restored
from workers.hooks import HookCall, HookContext, HookReply, Point, Reject, RequestApproval, Retry, Skip
from workers.inputs import InputRejectedError, resolve_inputs
from workers.logging import fault
from workers.permissions import sentence_end
from workers.prompt import messages
from workers.tools import ToolError, ToolResult, error_result, to_result

log = structlog.get_logger("turnstream.hooks")

_MAY_RETURN: Final[Mapping[Point, tuple[type, ...]]] = {
    "pre_agent_turn": (Skip,),
    "pre_llm_call": (Skip,),
    "post_llm_call": (Retry, Reject),
    "pre_tool_call": (Skip, RequestApproval, Mapping),
    "post_agent_turn": (),
}


class HookFailed(Exception):  # noqa: N818 - what happened, as `Superseded` and `Gap`
    """A hook ends its turn as failed. `effects` stand in the append of that end."""

    def __init__(self, message: str, *, code: str = "hook_failed", effects: Effects | None = None) -> None:
        super().__init__(message)
        self.error = ProtocolError(message=message, code=code)
        self.effects = effects


@dataclass(frozen=True)
class TurnFacts:
    """What hooks are told of where they run, and the session's inputs."""

    session_id: str
    turn_id: str
    agent_name: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class CallVerdict:
    """What the hooks say of a call: its arguments as they are now; not to be run, or to be asked for.

    `replaced`: what they gave held half characters.
    """

    arguments: JsonValue
    skipped: str | None = None
    asked: RequestApproval | None = None
    replaced: bool = False


@dataclass
class _Note:
    """What a hook's next checkpoint says: its latest point, what it decided there; `private` is for the fold."""

    point: Point
    details: Record
    private: Record | None = None


@dataclass
class _Kept:
    """A State in use, and what is kept of it so far."""

    state: BaseModel
    saved: JsonValue


class HookRuns:
    """The hooks of one run. Every point raises `HookFailed` for what a hook raised, or must not return."""

    def __init__(self, hooks: HookSet, facts: TurnFacts, history: Callable[[], History], *, retries: int = 3) -> None:
        self.retries = retries
        self._hooks = hooks
        self._facts = facts
        self._history = history
        self._kept: dict[str, _Kept] = {}
        self._notes: dict[str, _Note] = {}
        self._one_by_one = asyncio.Lock()

    # The points.

    async def open_turn(self) -> Effects:
        """Run pre_agent_turn; return the step's effects, which say that it has run."""
        for hook in self._hooks.at("pre_agent_turn"):
            verdict = await self._run(hook, "pre_agent_turn")
            self.decided(hook, "pre_agent_turn", {})
            if isinstance(verdict, Skip):
                return self._closed(hook, "pre_agent_turn", "skip", verdict.reason)
        effects = Effects()
        self.record(effects)
        return effects

    async def before_model(self) -> Effects | None:
        """Run pre_llm_call; return effects when the turn is skipped, None when the model is to be called."""
        for hook in self._hooks.at("pre_llm_call"):
            verdict = await self._run(hook, "pre_llm_call")
            if isinstance(verdict, Skip):
                return self._closed(hook, "pre_llm_call", "skip", verdict.reason)
        return None

    async def after_model(self, reply: HookReply) -> tuple[BoundHook, Retry | Reject] | None:
        """Run post_llm_call; return the first that has the reply written again, or withdrawn."""
        for hook in self._hooks.at("post_llm_call"):
            verdict = await self._run(hook, "post_llm_call", copy.deepcopy(reply), text=reply.text)
            if verdict is not None:
                return hook, verdict
        return None

    async def before_call(self, call: HookCall, text: str) -> CallVerdict:
        """Run pre_tool_call: each hook sees the arguments as the ones before it left them. `text` is the reply's."""
        arguments, asked, halves = call.arguments, None, False
        for hook in self._hooks.at("pre_tool_call"):
            shown = HookCall(call.id, call.name, copy.deepcopy(arguments))
            match await self._run(hook, "pre_tool_call", shown, text=text):
                case Skip(reason):
                    with watch_replaced() as replaced:
                        said = clean_text(reason)
                    return CallVerdict(call.arguments, skipped=said, replaced=bool(replaced))
                case RequestApproval() as wanted:
                    asked = asked or wanted
                    with watch_replaced() as replaced:
                        clean_text(wanted.reason or "")
                    halves = halves or bool(replaced)
                case Mapping() as changed:
                    arguments, unclean = self._arguments(hook, changed)
                    halves = halves or unclean
                case _:
                    pass
        return CallVerdict(arguments, asked=asked, replaced=halves)

    @asynccontextmanager
    async def after_call(self, call: HookCall, result: ToolResult) -> AsyncIterator[tuple[ToolResult, Effects]]:
        """Run post_tool_call; give the result as it is now, and effects for the append that writes it: before this ends.

        Calls run side by side, and a State is one for all of them: hooks that keep one see one result at a time.
        """
        hooks = self._hooks.at("post_tool_call")
        effects = Effects()
        async with AsyncExitStack() as stack:
            if any(hook.state for hook in hooks):
                await stack.enter_async_context(self._one_by_one)
            for hook in hooks:
                shown = HookCall(call.id, call.name, copy.deepcopy(call.arguments))
                verdict = await self._run(hook, "post_tool_call", shown, copy.deepcopy(result))
                if isinstance(verdict, Reject):
                    result = error_result(f"The result of {call.name} was withheld: {sentence_end(verdict.reason)}")
                    break
                if verdict is not None:
                    result = self._result(hook, verdict)
            self.record(effects)
            yield result, effects

    async def close_turn(self) -> Effects:
        """Run post_agent_turn; return effects for the append of the turn's end."""
        effects = Effects()
        for hook in self._hooks.at("post_agent_turn"):
            await self._run(hook, "post_agent_turn")
        self.record(effects)
        return effects

    def has(self, point: Point) -> bool:
        """Whether any hook has this point."""
        return bool(self._hooks.at(point))

    # What enters the log.

    def decided(self, hook: BoundHook, point: Point, details: Record, private: Record | None = None) -> None:
        """A hook decided what no entry shows: it stands in the step's checkpoint, `private` among its private fields."""
        note = self._notes.setdefault(hook.name, _Note(point, {}))
        note.point, note.details, note.private = point, {**note.details, **details}, private or note.private

    def record(self, effects: Effects, private: Record | None = None) -> bool:
        """Add a checkpoint for each hook that decided or changed its State since the last step; False if there is none.

        `private` goes to the first.
        """
        written = False
        for hook in self._hooks:
            note, kept = self._notes.get(hook.name), self._kept.get(hook.name)
            if note is None:
                continue
            with watch_replaced() as halves:
                if kept is not None and (now := self._dumped(hook, note.point, kept.state)) != kept.saved:
                    kept.saved = note.details["state"] = now
                elif not note.details and note.point != "pre_agent_turn":
                    continue
                entry = checkpoint(hook.name, note.point, clean_json(note.details))
            effects.entry(entry, {**(note.private or {}), **(private or {})})
            if halves:
                effects.replaced(entry["id"], f"What hook {hook.name} gave")
            written, private = True, None
        self._notes.clear()
        return written

    def forget(self) -> None:
        """The step was not written after all: what was kept is what the log says."""
        self._kept.clear()
        self._notes.clear()

    def _closed(self, hook: BoundHook, point: Point, word: str, reason: str) -> Effects:
        effects = Effects()
        self.decided(hook, point, {word: reason})
        self.record(effects)
        closing(effects, hook, reason)
        return effects

    # One hook.

    async def _run(self, hook: BoundHook, point: Point, *shown: Any, text: str = "") -> Any:
        kept = self._state(hook, point)
        history = self._history()
        ctx: HookContext[Any] = HookContext(
            session_id=self._facts.session_id,
            turn_id=self._facts.turn_id,
            agent_name=self._facts.agent_name,
            state=None if kept is None else kept.state,
            text=text or history.text,
            messages=lambda: tuple(messages(history)),
        )
        verdict = await self._called(hook, point, ctx, *shown)
        if fault_points.armed:
            await fault_points.reach("hook.ran")
        if kept is not None:
            if not isinstance(ctx.state, hook.state or BaseModel):
                raise self._wrong(hook, point, f"a state that is {type(ctx.state).__name__}")
            kept.state = ctx.state
            self.decided(hook, point, {})
        if verdict is not None and point != "post_tool_call" and not isinstance(verdict, _MAY_RETURN[point]):
            raise self._wrong(hook, point, type(verdict).__name__)
        return verdict

    async def _called(self, hook: BoundHook, point: Point, *shown: Any) -> Any:
        bound = hook.points[point]
        try:
            inputs = resolve_inputs(bound.inputs, self._facts.inputs)
        except InputRejectedError as rejected:
            raise HookFailed(f"hook {hook.name} cannot run at {point}: {rejected}") from None
        current = asyncio.current_task()
        cancels = current.cancelling() if current is not None else 0
        failed: BaseException
        try:
            return await bound.call(*shown, **inputs)
        except HookRaised as raised:
            failed = raised.error
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever a hook raises fails its turn, not the worker
            failed = error  # of a cancellation: not the run's, but that of something that the hook awaited
        if current is None or current.cancelling() > cancels:
            raise asyncio.CancelledError from None  # whatever the hook made of it
        facts = self._facts
        ids = {"session": facts.session_id, "turn": facts.turn_id, "hook": hook.name, "point": point}
        log.warning("hook_failed", **ids, **fault(failed))
        raise HookFailed(f"hook {hook.name} raised {type(failed).__name__} at {point}")

    def _state(self, hook: BoundHook, point: Point) -> _Kept | None:
        if hook.state is None or hook.name in self._kept:
            return self._kept.get(hook.name)
        logged = self._history().hooks.kept
        if hook.name not in logged:
            # Compared with another fresh one: defaults that differ each time, such as an id, are kept from the first use.
            state, other = hook.state(), hook.state()
            kept = _Kept(state, self._dumped(hook, point, other))
        else:
            try:
                kept = _Kept(restored(hook.state, logged[hook.name]), logged[hook.name])
            except ValueError as bad:
                raise HookFailed(f"hook {hook.name}: what was kept does not fit its State: {bad}") from None
        self._kept[hook.name] = kept
        return kept

    def _dumped(self, hook: BoundHook, point: Point, state: BaseModel) -> JsonValue:
        try:
            return dump(state)
        except (ValueError, RecursionError):
            raise self._wrong(hook, point, "a state that JSON cannot hold") from None

    def _arguments(self, hook: BoundHook, changed: Mapping[str, Any]) -> tuple[JsonValue, bool]:
        try:
            with watch_replaced() as replaced:
                return clean_json(dict(changed), "arguments"), bool(replaced)
        except (ValueError, RecursionError):
            raise self._wrong(hook, "pre_tool_call", "arguments that JSON cannot hold") from None

    def _result(self, hook: BoundHook, value: Any) -> ToolResult:
        try:
            return to_result(value)
        except ToolError:
            raise self._wrong(hook, "post_tool_call", f"what is no result: {type(value).__name__}") from None

    def _wrong(self, hook: BoundHook, point: Point, what: str) -> HookFailed:
        return HookFailed(f"hook {hook.name} gave {what} at {point}, which is not among what it may give")


def closing(effects: Effects, hook: BoundHook, reason: str) -> None:
    """Say that a hook ended the turn."""
    effects.notice(clean_text(reason), level="info", source=f"hook:{hook.name}")
