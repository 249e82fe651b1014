"""One run of one turn: it takes steps until the turn has parked or ended.

Which step comes next is `next_step`'s to say, from the log alone; this is the shell that does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from contextlib import aclosing
from typing import Literal

import structlog

from broker import fault_points
from broker.protocol.records import ProtocolError, completed_to_wire, failed_to_wire
from broker.runs import Begun, Gap
from workers.calls import CallRuns
from workers.effects import Effects
from workers.fold import Call, History
from workers.hook_runs import HookFailed, HookRuns, TurnFacts
from workers.models import ModelError
from workers.prompt import build_request, tell_ahead
from workers.reply import ReplyWriter, abandon
from workers.run_context import RunContext
from workers.run_sources import RunSources
from workers.silence import silence_limit, until_silent
from workers.sources import ConnectorContext
from workers.steps import CallModel, FailLost, Finish, OpenTurn, Park, RunTools, StopReason, Wait, next_step
from workers.subagents import completed_report, failed_report, skipped_report
from workers.toolset import Toolset
from workers.writer import Writer

log = structlog.get_logger("turnstream.turn")

_MODEL_BACKOFF_S = 0.5

Outcome = Literal["parked", "ended"]


class TurnRun:
    """A run. `news` is set when the log has something that this run did not write."""

    def __init__(self, context: RunContext, history: History) -> None:
        self.context = context
        self.news = asyncio.Event()
        self._writer = Writer(
            context.broker,
            context.session_id,
            context.turn_id,
            context.fence,
            history,
            context.lease,
            on_gap=self.news.set,
        )
        self._running: dict[str, asyncio.Task[None]] = {}
        facts = TurnFacts(context.session_id, context.turn_id, context.definition.name, context.inputs)
        self._hooks = HookRuns(
            context.definition.hooks, facts, lambda: self.history, retries=context.broker.settings.hook_retries
        )
        about = ConnectorContext(
            session_id=context.session_id,
            turn_id=context.turn_id,
            agent_name=context.definition.name,
        )
        self._sources = RunSources(context.definition.sources, context.pool, about, context.inputs)
        self._calls = CallRuns(
            context, self._writer, context.definition.toolset(len(context.path)), self._hooks, self._sources
        )
        self._cut_text = ""  # of the message that a failed model call leaves behind
        self.gaps = 0
        """How often the broker turned out to have lost writes."""

    @property
    def history(self) -> History:
        """The session, folded up to what this run has seen."""
        return self._writer.history

    def heed(self) -> None:
        """Raise `CancelledError` once the run was told to stop: what the agent's code made of it is no failure of the turn.

        The word counts, not `Task.cancelling()`: agents' code may cancel its own task, and nobody hands a turn back for that.
        """
        if self.context.lease.told:
            raise asyncio.CancelledError

    async def run(self) -> Outcome:
        """Take steps until the turn has parked or ended.

        Raises `Superseded` when it is not this run's any more.
        """
        try:
            while True:
                try:
                    outcome = await self._step_on()
                except Gap:
                    await self._recover()
                    continue
                if outcome is not None:
                    return outcome
        finally:
            try:
                await self._stop_calls()
            finally:
                self._sources.release()
                await self._writer.close()

    async def _stop_calls(self) -> None:
        self._calls.stopping = True
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._calls.stopping = False

    async def _recover(self) -> None:
        """The broker lost writes: go on from what it still has. Tools that run go on; a model call is made again."""
        self.gaps += 1
        context = self.context
        log.warning("broker_lost_writes", session=context.session_id, turn=context.turn_id)
        self._hooks.forget()
        while self._writer.gap:
            with contextlib.suppress(Gap):  # once more
                await self._writer.reload(self._calls.started_again)
        for call_id, task in self._running.items():
            if (call := self.history.calls.get(call_id)) is None or call.done:
                task.cancel()  # its call is lost too: the model is asked again

    async def _step_on(self) -> Outcome | None:
        try:
            return await self._step()
        except HookFailed as failed:
            await self._stop_calls()
            return await self._fail(failed.error, failed.effects)

    async def _step(self) -> Outcome | None:
        self.heed()
        await self._writer.lease.stands()
        if self._writer.gap:
            raise Gap
        self._reap()
        if self.news.is_set():
            self.news.clear()
            await self._writer.catch_up()
        definition = self.context.definition
        step = next_step(
            self.history,
            frozenset(self._running),
            definition.max_iterations,
            children=definition.policy.concurrent_child_turn_limit,
            opening=self._hooks.has("pre_agent_turn"),
        )
        match step:
            case OpenTurn():
                await self._writer.write(await self._hooks.open_turn())
            case CallModel():
                return await self._call_model()
            case RunTools(calls):
                await self._reach_sources(calls)
                for call in calls:
                    self._running[call.tool_call_id] = asyncio.create_task(self._calls.run(call))
            case FailLost(calls):
                await self._calls.fail_lost(calls)
            case Wait():
                await self._wait()
            case Park():
                if await self._writer.park():
                    return "parked"
                await self._writer.catch_up()
            case Finish(stop_reason):
                return await self._finish(stop_reason)
        return None

    async def _finish(self, stop_reason: StopReason) -> Outcome | None:
        effects, history, context = await self._hooks.close_turn(), self.history, self.context
        state = completed_to_wire(history.text, history.tool_calls, stop_reason, history.usage)
        report = b""
        if context.spawned is not None and stop_reason == "skipped":
            report = skipped_report(context.spawned, context.session_id, context.definition.name)
        elif context.spawned is not None:
            definition, limited = context.definition, context.path[-1] if stop_reason == "iteration_limit" else None
            report = completed_report(
                context.spawned, context.session_id, history.text, definition.output_type, limited=limited
            )
        if await self._writer.finish(state, effects, regardless=stop_reason == "skipped", report=report):
            return "ended"
        self._hooks.forget()
        await self._writer.catch_up()
        return None

    async def _wait(self) -> None:
        """Until a call of this run is done, or there is news, of which a lost hint is made good after a lease: then it looks."""
        news = asyncio.create_task(self.news.wait())
        lease = self.context.broker.settings.lease
        try:
            waited = {news, *self._running.values()}
            done, _ = await asyncio.wait(waited, timeout=lease, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        if not done:
            self.news.set()

    def _reap(self) -> None:
        for call_id, task in list(self._running.items()):
            if task.done():
                del self._running[call_id]
                with contextlib.suppress(Gap, asyncio.CancelledError):  # the writer says so too; a call that was lost
                    task.result()

    # The model.

    async def _call_model(self) -> Outcome | None:
        """Ask the model, again with back-off while that may help; a call that fails for good ends the turn."""
        if not await self._sources_ready():
            return None
        skipped = await self._hooks.before_model()
        if skipped is not None:
            effects = Effects()
            abandon(self.history, effects)
            effects.extend(skipped)
            await self._writer.write(effects)
            return None
        attempts = self.context.broker.settings.model_attempts
        for attempt in range(1, attempts + 1):
            try:
                await self._reply()
            except ModelError as failed:
                self.heed()
                if failed.retryable and attempt < attempts:
                    backoff = _MODEL_BACKOFF_S * 2 ** (attempt - 1) * (0.5 + random.random() / 2)  # noqa: S311 - jitter
                    await asyncio.sleep(backoff if failed.retry_after is None else failed.retry_after)
                    continue
                return await self._fail(ProtocolError(message=str(failed), code=failed.code))
            return None
        return None

    # Tool sources.

    async def _sources_ready(self) -> bool:
        """Whether the model can be asked; not before a person has signed in, which the log then says."""
        if self._sources:
            await self._take_tools(await self._sources.ready(self.history.sources))
        return self.history.sources.sign_in is None

    async def _reach_sources(self, calls: Iterable[Call]) -> None:
        """Connect the sources of calls that are about to run, and that another run decided on."""
        if self._sources:
            running = (
                call.name for call in calls if call.decision == "run" or (call.answer or {}).get("type") == "allow"
            )
            await self._take_tools(await self._sources.reach(running, self.history.sources))

    async def _take_tools(self, effects: Effects) -> None:
        if effects:
            await self._writer.write(effects)
        own = self.context.definition.toolset(len(self.context.path))
        self._calls.tools = Toolset((*own, *self._sources.tools))

    async def _reply(self) -> None:
        definition, customization = self.context.definition, self.context.customization
        model = definition.model_for(customization)
        await tell_ahead(self.history)
        reply = ReplyWriter(self._writer, definition, self._calls.tools, self._hooks)
        try:
            request = build_request(definition, customization, self._calls.tools, self.history)
            limit = silence_limit(model, self.context.broker.settings.model_timeout)
            async with aclosing(until_silent(model.stream(request), limit)) as deltas:
                async for delta in deltas:
                    await reply.take(delta)
                    if fault_points.armed and reply.text:
                        await fault_points.reach("model.streaming")
            if fault_points.armed:
                await fault_points.reach("model.replied")
            await reply.end()
        except Exception:
            self._cut_text = reply.text or self._cut_text
            raise
        self._cut_text = ""

    async def fail(self, error: ProtocolError) -> None:
        """End the turn as failed, whatever came since. Raises as `run` does."""
        try:
            await self._fail(error)
        except Gap:  # also what an earlier write that the broker refused looks like
            await self._writer.reload()
            await self._fail(error)

    async def _fail(self, error: ProtocolError, effects: Effects | None = None) -> Outcome:
        """End the turn as failed, after these effects, which withdraw what the model was writing."""
        self.heed()
        text, context = (None if effects else self._cut_text) or self.history.text, self.context
        report = b""
        if context.spawned is not None:
            report = failed_report(context.spawned, context.session_id, context.path[-1], error)
        await self._writer.finish(failed_to_wire(error, text), effects, regardless=True, report=report)
        return "ended"


async def start_run(context: RunContext, begun: Begun, history: History) -> TurnRun:
    """Return a run whose history is folded up to the log's end as `begin` saw it."""
    run = TurnRun(context, history)
    if history.last != begun.last:
        await run._writer.catch_up()  # noqa: SLF001 - a run is made here and nowhere else
    return run
