"""Handlers: functions of the client that answer callbacks while a wait is under way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api_shim.arguments import check_callable
from broker.protocol.callbacks import OpenApproval, OpenCallback, OpenClientToolCall, OpenSignIn

if TYPE_CHECKING:
    from workers.agent import AgentDefinition

Handler = Callable[..., Any]


@dataclass(frozen=True)
class HandlerContext:
    """What an approval or sign-in handler is told besides the request: which callback of which turn it is about."""

    session_id: str
    turn_id: str | None
    callback_id: str
    title: str


@dataclass(frozen=True)
class Handlers:
    """The handlers of a session's handle; the handles of its turns and subagents share them."""

    on_approval: Handler | None = None
    on_client_tool: Handler | None = None
    on_sign_in: Handler | None = None

    def __post_init__(self) -> None:
        for name in ("on_approval", "on_client_tool", "on_sign_in"):
            check_callable(name, getattr(self, name))

    def client_tool_for(self, name: str, definition: AgentDefinition | None) -> Handler | None:
        """Return what answers calls of a client tool: `on_client_tool`, else the function bound to a stub of the agent's."""
        if self.on_client_tool is not None:
            answers = getattr(self.on_client_tool, "answers", None)
            return self.on_client_tool if answers is None or answers(name) else None
        stubs = [*definition.stubs, *definition.hook_stubs] if definition is not None else []
        return next((stub.run for stub in stubs if stub.id == name and stub.answering is not None), None)

    def handles(self, callback: OpenCallback, definition: AgentDefinition | None) -> bool:
        """Whether a wait with these handlers answers this callback itself."""
        match callback:
            case OpenApproval():
                return self.on_approval is not None
            case OpenSignIn():
                return self.on_sign_in is not None
            case OpenClientToolCall(call):
                return self.client_tool_for(call.name, definition) is not None
            case _:
                return False


async def called(function: Handler, *arguments: Any) -> Any:
    """Call a handler, sync or async, and return what it returns."""
    value = function(*arguments)
    return await value if inspect.isawaitable(value) else value
