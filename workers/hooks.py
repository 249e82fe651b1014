"""Hooks: an application's own code at six points of a turn, and what it may decide there.

A hook is written as a subclass of `Hook`; what an agent runs of it is in `workers/hook_set.py`, how in `workers/hook_runs.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal

from typing_extensions import TypeVar

from broker.protocol.values import JsonValue
from workers.models import ModelMessage
from workers.tools import ToolResult

S = TypeVar("S", default=Any)

Point = Literal[
    "pre_agent_turn", "pre_llm_call", "post_llm_call", "pre_tool_call", "post_tool_call", "post_agent_turn"
]  # fmt: skip
"""Where in a turn a hook runs, in the order in which a turn comes by."""


@dataclass(frozen=True)
class Skip:
    """The decision to leave a step out: the turn, or one tool call. `reason` is for the developer, or the model."""

    reason: str

    def __post_init__(self) -> None:
        _check_text("reason", self.reason)


@dataclass(frozen=True)
class Retry:
    """The decision to have the model write its reply again, having read `feedback`."""

    feedback: str

    def __post_init__(self) -> None:
        _check_text("feedback", self.feedback)


@dataclass(frozen=True)
class Reject:
    """The decision to withdraw what the model wrote, or what a tool returned."""

    reason: str

    def __post_init__(self) -> None:
        _check_text("reason", self.reason)


@dataclass(frozen=True)
class RequestApproval:
    """The decision to have a person asked before a call runs. `reason` stands in the question's title."""

    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None:
            _check_text("reason", self.reason)


def _check_text(argument: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{argument} must be a text, not {type(value).__name__}")


def skip(reason: str) -> Skip:
    """Leave this step out.

    From `pre_agent_turn` and `pre_llm_call`: the turn ends as `Completed(output=None, stop_reason="skipped")`. From
    `pre_tool_call`: the call does not run, and the model reads the reason.
    """
    return Skip(reason)


def retry(feedback: str) -> Retry:
    """Have the model write its message again, having read what it wrote and `feedback`; from `post_llm_call`.

    The calls of the withdrawn reply are not made. After `Settings.hook_retries` times the turn fails with `hook_retry_limit`.
    """
    return Retry(feedback)


def reject(reason: str) -> Reject:
    """Withdraw it.

    From `post_llm_call`: the message becomes empty, its calls are not made, and the turn ends as by `skip`. From
    `post_tool_call`: the model reads an error with the reason in place of the result.
    """
    return Reject(reason)


def request_approval(reason: str | None = None) -> RequestApproval:
    """Have a person asked before this call runs, whatever the policy says short of refusing it; from `pre_tool_call`.

    It is asked each time: a grant for the session does not answer it, and it cannot be answered for the session.
    """
    return RequestApproval(reason)


@dataclass(frozen=True)
class HookCall:
    """A tool call, as a hook is shown it. `name` is the tool's full id; `arguments` is a copy of the hook's own.

    Arguments are what the model wrote: an object as a rule, but they need not fit the tool, and may be None.
    """

    id: str
    name: str
    arguments: JsonValue


@dataclass(frozen=True)
class HookReply:
    """A model's reply, whole: its text (`""` if none) and the calls that it wants made."""

    text: str
    calls: tuple[HookCall, ...] = ()


class HookContext(Generic[S]):
    """Where a hook is: in which turn, with what kept, and what was said so far.

    `state` is the hook's own `State`, to be changed or replaced; None without one. `text` is the turn's last text of the
    model so far. `messages` is the conversation as the model reads it, made when it is asked for.
    """

    def __init__(
        self,
        *,
        session_id: str,
        turn_id: str,
        agent_name: str,
        state: S,
        text: str = "",
        messages: Callable[[], Sequence[ModelMessage]] | Sequence[ModelMessage] = (),
    ) -> None:
        self.session_id = session_id
        self.turn_id = turn_id
        self.agent_name = agent_name
        self.state = state
        self.text = text
        self._messages = messages

    @cached_property
    def messages(self) -> tuple[ModelMessage, ...]:
        """The conversation as the model reads it, up to the last step that is done."""
        return tuple(self._messages() if callable(self._messages) else self._messages)


class Hook:
    """Code at six points of a turn: subclass it, override the points you need, pass an instance as `Agent(hooks=[…])`.

    Points are async, or plain functions (run in a thread). Beside what is shown they may take session inputs, as parameters
    `Annotated[T, agents.Depends()]`. Returning None lets the turn go on as it would. A hook that raises fails the turn, with
    code `hook_failed`. Hooks run in their order, guardrails (`Agent(guardrails=[…])`) first.

    `name` names the hook in the log, by default its class; `tools` are tools that the agent has through it. A nested class
    `State`, a pydantic model whose fields all have defaults, is kept across turns and workers as `ctx.state`; readers of the
    session's events see it, the model does not. A change counts together with the step that it was made in: what a crash or an
    interrupt cuts off is not kept, and when a worker is lost before a step is written, that step's points run again.
    """

    name: str | None = None
    tools: Sequence[Any] = ()

    def pre_agent_turn(
        self,
        ctx: HookContext[Any],
        *args: Any,
        **inputs: Any,
    ) -> Awaitable[Skip | None] | Skip | None:
        """Run once a turn, before its first model call. May return `skip(reason)`."""

    def pre_llm_call(
        self,
        ctx: HookContext[Any],
        *args: Any,
        **inputs: Any,
    ) -> Awaitable[Skip | None] | Skip | None:
        """Run before each model call. May return `skip(reason)`."""

    def post_llm_call(
        self,
        ctx: HookContext[Any],
        reply: HookReply,
        *args: Any,
        **inputs: Any,
    ) -> Awaitable[Retry | Reject | None] | Retry | Reject | None:
        """Run when a reply is whole, before its calls are decided. May return `retry(feedback)` or `reject(reason)`.

        Its text was already streamed to whoever follows the session.
        """

    def pre_tool_call(
        self,
        ctx: HookContext[Any],
        call: HookCall,
        *args: Any,
        **inputs: Any,
    ) -> (
        Awaitable[Skip | RequestApproval | Mapping[str, JsonValue] | None]
        | Skip
        | RequestApproval
        | Mapping[str, JsonValue]
        | None
    ):
        """Run before a call is decided on. May return `skip(reason)`, `request_approval(reason)`, or new arguments (a dict).

        The permission policy decides afterwards, on the arguments as they are then, and may still refuse.
        """

    def post_tool_call(
        self,
        ctx: HookContext[Any],
        call: HookCall,
        result: ToolResult,
        *args: Any,
        **inputs: Any,
    ) -> Any:
        """Run when a tool has run or a client has answered, before the result is written.

        May return `reject(reason)`, or another result: whatever a tool may return but None.
        """

    def post_agent_turn(
        self,
        ctx: HookContext[Any],
        *args: Any,
        **inputs: Any,
    ) -> Awaitable[None] | None:
        """Run before a turn ends that is done, also a skipped one; again if a message came and the turn went on."""
