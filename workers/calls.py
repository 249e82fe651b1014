"""Tool calls of a run: each is run, asked of the client, given to a subagent, or written down as it was decided."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime

from broker import fault_points
from broker.keys import new_id
from broker.protocol.callbacks import ClientToolCall, client_call_to_wire
from broker.protocol.errors import SessionBusyError
from broker.protocol.values import watch_replaced
from broker.runs import Gap
from workers.client_tools import ClientTool
from workers.effects import Effects, Record, error_entry, result_entry, result_of, stored_result
from workers.fold import Call
from workers.hook_runs import HookRuns
from workers.hooks import HookCall
from workers.permissions import away_text, denied_text, expired_text, interrupted_text, lost_text, unknown_text
from workers.run_context import RunContext
from workers.run_sources import RunSources
from workers.subagents import Parent, SpawnTool, new_child
from workers.tools import RunnableTool, ToolError, ToolResult
from workers.toolset import Toolset
from workers.writer import Writer


class CallRuns:
    """The calls of one run. `tools` are those that it has now: its sources' come and go."""

    def __init__(
        self, context: RunContext, writer: Writer, tools: Toolset, hooks: HookRuns, sources: RunSources
    ) -> None:
        self.context = context
        self.tools = tools
        self._writer = writer
        self._hooks = hooks
        self._sources = sources
        self.stopping = False
        """Whether the run stops them, and so reads nothing anew."""
        self._at_work: dict[str, str] = {}
        """The tools that run: each call's id, and its result's entry."""

    async def run(self, call: Call) -> None:
        """Run a call, or write down what was decided or answered about it."""
        tool = self.tools.find(call.name)
        settled, answer = self._settled(call, tool), call.answer or {}
        if settled is not None:
            replaced = bool(answer.get("replaced"))
            answered = call.outcome == "answered" and answer.get("type") == "clientTool"
            if answered and self._hooks.has("post_tool_call"):
                await self._conclude(call, settled["id"], result_of(settled), replaced=replaced)
            else:
                await self._write_result(call, settled, replaced=replaced)
        elif isinstance(tool, ClientTool):
            await self._ask_client(call)
        elif isinstance(tool, SpawnTool):
            await self._spawn(call, tool)
        elif tool is not None:
            await self._run_tool(call, tool)

    def _settled(self, call: Call, tool: object) -> Record | None:
        """The result of a call that does not run here: refused, denied, expired, closed, or answered by a client."""
        entry_id = call.result_entry or new_id()

        def error(text: str) -> Record:
            return error_entry(entry_id, call.tool_call_id, call.name, text)

        if call.decision == "refused":
            return error(call.text or "")
        answer = call.answer or {}
        match (call.outcome, answer.get("type")):
            case ("expired", _):
                return error(expired_text(call.name))
            case ("answered", "deny"):
                return error(denied_text(call.name, answer.get("reason")))
            case ("answered", "clientTool"):
                return {**answer["result"], "id": entry_id}
            case (None, _) | ("answered", "allow"):
                if tool is not None:
                    return None
                away = self._sources.owner_of(call.name) is not None
                return error(away_text(call.name) if away else unknown_text(call.name))
            case _:
                return error(interrupted_text(call.name, started=False))

    async def _conclude(self, call: Call, entry_id: str, result: ToolResult, *, replaced: bool = False) -> None:
        """Write a call's result as the hooks leave it."""
        shown = HookCall(call.tool_call_id, call.name, call.arguments)
        with watch_replaced() as halves:
            async with self._hooks.after_call(shown, result) as (left, effects):
                try:
                    entry = stored_result(entry_id, call.tool_call_id, call.name, left)
                except ValueError as bad:
                    said = f"The result of {call.name} cannot be stored: {bad}"
                    entry = error_entry(entry_id, call.tool_call_id, call.name, said)
                await self._write_result(call, entry, effects, replaced=replaced or bool(halves))

    async def _write_result(
        self, call: Call, entry: Record, kept: Effects | None = None, *, replaced: bool = False
    ) -> None:
        effects = Effects()
        if call.started:
            effects.completed(entry)
        else:
            effects.entry(entry)
        effects.close(call.field)
        effects.close(entry["id"])
        if replaced:
            effects.replaced(entry["id"], f"The result of {call.name}")
        if kept is not None:
            effects.extend(kept)
        self._sources.report(effects, self._writer.history.sources)
        await self._writer.write(effects)

    async def _ask_client(self, call: Call) -> None:
        """An approved call of a client tool: now the client is asked for its result."""
        asked = ClientToolCall(tool_call_id=call.tool_call_id, name=call.name, arguments=call.arguments)
        effects = Effects()
        effects.ask(client_call_to_wire(new_id(), asked, datetime.now(UTC)))
        await self._writer.write(effects)

    def _starting(self, call: Call, entry_id: str) -> Effects:
        """Its result is added, empty: from now on the call has started."""
        effects = Effects()
        effects.event({"type": "entryAdded", "entry": result_entry(entry_id, call.tool_call_id, call.name)})
        effects.close(call.field)
        cut = interrupted_text(call.name, started=True)
        effects.keep(entry_id, error_entry(entry_id, call.tool_call_id, call.name, cut))
        return effects

    async def _run_tool(self, call: Call, tool: RunnableTool) -> None:
        entry_id = call.result_entry or new_id()
        if not call.started:
            await self._writer.write(self._starting(call, entry_id))
        self._at_work[call.tool_call_id] = entry_id
        try:
            await self._writer.lease.stands()  # this process may have stood still since, and its turn be another's
            if fault_points.armed:
                await fault_points.reach("tool.started")
            limit = self.context.broker.settings.tool_timeout
            with watch_replaced() as replaced:
                result = await tool.call(call.arguments, self.context.inputs, limit)
            if fault_points.armed:
                await fault_points.reach("tool.ran")
            await self._conclude_once(call, entry_id, result, replaced=bool(replaced))
        finally:
            del self._at_work[call.tool_call_id]

    async def _conclude_once(self, call: Call, entry_id: str, result: ToolResult, *, replaced: bool) -> None:
        """Write the result of a tool that ran; when the broker loses writes meanwhile, to its call as the log has it then."""
        while not (self.stopping and self._writer.gap):  # else it would wait for its run, and its run for it
            await self._writer.whole()  # while it is read anew, the history says nothing of the call
            known = self._writer.history.calls.get(call.tool_call_id)
            if known is None or known.done:
                return
            with contextlib.suppress(Gap):
                await self._conclude(known, entry_id, result, replaced=replaced)
                return

    def started_again(self) -> Effects:
        """Say that the tools which run have started, where the broker has lost that: no other run may start them again."""
        effects = Effects()
        for call_id, entry_id in self._at_work.items():
            call = self._writer.history.calls.get(call_id)
            if call is not None and not call.started:
                effects.extend(self._starting(call, entry_id))
        return effects

    async def _spawn(self, call: Call, tool: SpawnTool) -> None:
        """Start a subagent; its end completes the call's result, whatever worker has the turn by then."""
        context, entry_id = self.context, new_id()
        try:
            asked = tool.task(call.arguments)
        except ToolError as bad:
            await self._write_result(call, error_entry(entry_id, call.tool_call_id, call.name, str(bad)))
            return
        parent = Parent(
            session_id=context.session_id,
            agent=context.definition.name,
            path=context.path,
            customization=context.customization,
        )
        own_model = context.definition.child(asked[0]).model is not context.definition.model
        child = new_child(parent, call, entry_id, asked, own_model=own_model)
        effects = self._starting(call, entry_id)
        try:
            limit = context.definition.policy.concurrent_child_turn_limit
            started = await self._writer.spawn(child, effects, limit)
        except SessionBusyError:
            started = False
        if not started:
            said = f"{call.name} could not start a subagent: the broker takes no new work now."
            await self._write_result(call, error_entry(entry_id, call.tool_call_id, call.name, said))

    async def fail_lost(self, calls: Iterable[Call]) -> None:
        """Write down that these had started when their worker was lost."""
        effects = Effects()
        for call in calls:
            entry = error_entry(call.result_entry or new_id(), call.tool_call_id, call.name, lost_text(call.name))
            effects.completed(entry)
            effects.close(entry["id"])
        await self._writer.write(effects)
