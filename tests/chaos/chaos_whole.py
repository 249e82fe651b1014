"""The agent of the chaos run that has what came after the foundation: a hook with state, and a subagent. HEAD alone serves it."""

from __future__ import annotations

from typing import Any

from chaos_agents import POLICY, TOOLS, script
from pydantic import BaseModel

import api_shim as agents


class Counts(agents.Hook):
    """Counts the calls that it saw, in state that workers hand on, and writes the count into each."""

    name = "counts"

    class State(BaseModel):
        """What is kept."""

        calls: int = 0

    async def pre_tool_call(self, ctx: agents.HookContext[State], call: agents.HookCall) -> dict[str, Any] | None:
        """Count a call."""
        if not isinstance(call.arguments, dict) or "key" not in call.arguments:
            return None
        ctx.state = self.State(calls=ctx.state.calls + 1)
        return {**call.arguments, "seen": ctx.state.calls}

    async def post_tool_call(self, ctx: Any, call: Any, result: Any) -> None:
        """Look at its result."""


whole = agents.Agent(
    name="whole",
    model=agents.ScriptedModel(script),
    tools=TOOLS,
    permission_policy=POLICY,
    hooks=[Counts()],
    subagents=[agents.Subagent(name="helper", description="Helps.", model=agents.ScriptedModel(script))],
)
