"""Names of what comes with the next release, so that an agent written for the documented API imports: hooks and subagents.

An agent that is given some is refused with an error that says so, never run without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Hook:
    """Code at the six points of a turn; subclass it and override the points you need."""

    async def pre_agent_turn(self, ctx: Any) -> Any:
        """Run before the turn's first model call."""

    async def pre_llm_call(self, ctx: Any) -> Any:
        """Run before each model call."""

    async def post_llm_call(self, ctx: Any) -> Any:
        """Run after each model call, before its calls are decided."""

    async def post_agent_turn(self, ctx: Any) -> Any:
        """Run before the turn ends."""

    async def pre_tool_call(self, ctx: Any) -> Any:
        """Run before a call is decided."""

    async def post_tool_call(self, ctx: Any) -> Any:
        """Run after a tool returned."""


@dataclass(frozen=True)
class Skip:
    """A hook's decision to leave a step out."""

    reason: str


@dataclass(frozen=True)
class RetryReply:
    """A hook's decision to have the model write again."""

    feedback: str


@dataclass(frozen=True)
class Reject:
    """A hook's decision to withdraw what the model wrote."""

    reason: str


def skip(reason: str) -> Skip:
    """Leave this step out."""
    return Skip(reason)


def retry(feedback: str) -> RetryReply:
    """Have the model write its message again, having read `feedback`."""
    return RetryReply(feedback)


def reject(reason: str) -> Reject:
    """Withdraw the message."""
    return Reject(reason)


@dataclass(frozen=True, kw_only=True)
class Subagent:
    """An agent that this agent's model may start; what is unset is inherited."""

    name: str
    description: str
    instructions: str | None = None
    model: Any = None
    tools: Sequence[Any] | None = None


@dataclass(frozen=True, kw_only=True)
class SubagentPolicy:
    """Limits on an agent's subagents."""

    concurrent_child_turn_limit: int = 10
    max_depth: int = 2
