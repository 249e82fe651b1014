"""What people import: `import api_shim as agents`.

Names are loaded when they are touched: a program that observes sessions imports neither tools nor models, and the command line
listens for signals before anything else is there.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from api_shim.agent import Agent
    from api_shim.handlers import HandlerContext
    from api_shim.listing import SessionInfo, list_dead_letters, list_sessions
    from api_shim.local import connect
    from api_shim.session import Session
    from api_shim.turn import Turn
    from broker.dead_letters import DeadLetter
    from broker.protocol.callbacks import (
        AllowApproval,
        ApprovalRequest,
        ApprovalTool,
        ClientToolCall,
        DenyApproval,
        KeepCallbackOpen,
        OpenApproval,
        OpenCallback,
        OpenClientToolCall,
        OpenSignIn,
        SignInAnswer,
        SignInRequest,
        UnknownOpenCallback,
    )
    from broker.protocol.content import (
        AudioContentBlock,
        ContentAnnotations,
        ContentBlock,
        EmbeddedResourceContentBlock,
        ImageContentBlock,
        ResourceLinkContentBlock,
        TextContentBlock,
        UnknownContentBlock,
    )
    from broker.protocol.entries import (
        ContextMessage,
        HistoryEntry,
        MessageEntry,
        ToolCallEntry,
        ToolResultEntry,
        UnknownEntry,
    )
    from broker.protocol.errors import (
        AgentsError,
        BrokerUnavailableError,
        ClientToolAnswerError,
        InvalidCursorError,
        ObservationLost,
        OutcomeUnknownError,
        SdkError,
        SessionBusyError,
        SessionIdempotencyConflictError,
        SessionNotFoundError,
        SessionTerminatedError,
        TurnNotFoundError,
        UnsupportedSessionProcedureError,
    )
    from broker.protocol.events import (
        CallbackOpened,
        CallbackResolved,
        EntryAdded,
        EntryCompleted,
        Event,
        Notice,
        SessionUpdated,
        TextDelta,
        TurnEnded,
        TurnStarted,
        TurnUpdated,
        UnknownEvent,
    )
    from broker.protocol.history_import import (
        HistoryImportEntry,
        HistoryImportMessage,
        HistoryImportReasoning,
        HistoryImportSnapshot,
        HistoryImportToolCall,
        HistoryImportToolResult,
    )
    from broker.protocol.records import (
        AlreadySettled,
        Answered,
        Blocked,
        Busy,
        Completed,
        Failed,
        Interrupted,
        InvalidOutput,
        NotFound,
        ProtocolError,
        Running,
        TokenUsage,
        ToolCall,
        TurnConflict,
        TurnState,
        UnknownOutcome,
    )
    from broker.protocol.values import JsonValue, UnknownValue
    from workers.agent import SessionAgentCustomization
    from workers.client_tools import ClientTool, ClientToolAnswers, client_tool
    from workers.hooks import (
        Hook,
        HookCall,
        HookContext,
        HookReply,
        Reject,
        RequestApproval,
        Retry,
        Skip,
        reject,
        request_approval,
        retry,
        skip,
    )
    from workers.inputs import Depends, SessionInput
    from workers.mistral_model import MistralModel
    from workers.models import (
        AssistantMessage,
        ContextNote,
        Model,
        ModelDelta,
        ModelError,
        ModelMessage,
        ModelReasoning,
        ModelRequest,
        ModelStop,
        ModelText,
        ModelToolCall,
        ModelUsage,
        RequestedCall,
        SystemMessage,
        ToolMessage,
        ToolSpec,
        UserMessage,
    )
    from workers.openai_model import OpenAIModel
    from workers.permissions import PermissionPolicy, PermissionRule
    from workers.scripted import ScriptedCall, ScriptedModel, ScriptedReply, register_scripted
    from workers.sources import Connector, ConnectorContext, MCPServer
    from workers.subagents import Subagent, SubagentPolicy
    from workers.tools import Tool, ToolAnnotations, ToolError, ToolResult, tool

_MODULES: Final[Mapping[str, str]] = {
    "api_shim.agent": "Agent",
    "api_shim.handlers": "HandlerContext",
    "api_shim.listing": "SessionInfo list_dead_letters list_sessions",
    "api_shim.local": "connect",
    "api_shim.session": "Session",
    "api_shim.turn": "Turn",
    "broker.dead_letters": "DeadLetter",
    "broker.protocol.callbacks": (
        "AllowApproval ApprovalRequest ApprovalTool ClientToolCall DenyApproval KeepCallbackOpen OpenApproval "
        "OpenCallback OpenClientToolCall OpenSignIn SignInAnswer SignInRequest UnknownOpenCallback"
    ),
    "broker.protocol.content": (
        "AudioContentBlock ContentAnnotations ContentBlock EmbeddedResourceContentBlock ImageContentBlock "
        "ResourceLinkContentBlock TextContentBlock UnknownContentBlock"
    ),
    "broker.protocol.entries": "ContextMessage HistoryEntry MessageEntry ToolCallEntry ToolResultEntry UnknownEntry",
    "broker.protocol.errors": (
        "AgentsError BrokerUnavailableError ClientToolAnswerError InvalidCursorError ObservationLost "
        "OutcomeUnknownError SdkError SessionBusyError SessionIdempotencyConflictError SessionNotFoundError "
        "SessionTerminatedError TurnNotFoundError UnsupportedSessionProcedureError"
    ),
    "broker.protocol.events": (
        "CallbackOpened CallbackResolved EntryAdded EntryCompleted Event Notice SessionUpdated TextDelta "
        "TurnEnded TurnStarted TurnUpdated UnknownEvent"
    ),
    "broker.protocol.history_import": (
        "HistoryImportEntry HistoryImportMessage HistoryImportReasoning HistoryImportSnapshot "
        "HistoryImportToolCall HistoryImportToolResult"
    ),
    "broker.protocol.records": (
        "AlreadySettled Answered Blocked Busy Completed Failed Interrupted InvalidOutput NotFound "
        "ProtocolError Running TokenUsage ToolCall TurnConflict TurnState UnknownOutcome"
    ),
    "broker.protocol.values": "JsonValue UnknownValue",
    "workers.agent": "SessionAgentCustomization",
    "workers.client_tools": "ClientTool ClientToolAnswers client_tool",
    "workers.hooks": (
        "Hook HookCall HookContext HookReply Reject RequestApproval Retry Skip reject request_approval retry skip"
    ),
    "workers.inputs": "Depends SessionInput",
    "workers.mistral_model": "MistralModel",
    "workers.models": (
        "AssistantMessage ContextNote Model ModelDelta ModelError ModelMessage ModelReasoning ModelRequest "
        "ModelStop ModelText ModelToolCall ModelUsage RequestedCall SystemMessage ToolMessage ToolSpec "
        "UserMessage"
    ),
    "workers.openai_model": "OpenAIModel",
    "workers.permissions": "PermissionPolicy PermissionRule",
    "workers.scripted": "ScriptedCall ScriptedModel ScriptedReply register_scripted",
    "workers.sources": "Connector ConnectorContext MCPServer",
    "workers.subagents": "Subagent SubagentPolicy",
    "workers.tools": "Tool ToolAnnotations ToolError ToolResult tool",
}
_PLACES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = _PLACES.get(name)
    if module is None:
        raise AttributeError(f"module 'api_shim' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def session(
    session_id: str,
    *,
    on_approval: Any = None,
    on_client_tool: Any = None,
    on_sign_in: Any = None,
) -> Session:
    """Return a handle of a session, without an agent; sends nothing."""
    from api_shim.handlers import Handlers
    from api_shim.local import current_host
    from api_shim.session import Session

    handlers = Handlers(on_approval, on_client_tool, on_sign_in)
    return Session(session_id, host=current_host(), handlers=handlers)


class _Names(ModuleType):
    """`agents.session` is the function above, also once the module of that name is loaded."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "session" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Names

__all__ = [
    "Agent",
    "AgentsError",
    "AllowApproval",
    "AlreadySettled",
    "Answered",
    "ApprovalRequest",
    "ApprovalTool",
    "AssistantMessage",
    "AudioContentBlock",
    "Blocked",
    "BrokerUnavailableError",
    "Busy",
    "CallbackOpened",
    "CallbackResolved",
    "ClientTool",
    "ClientToolAnswerError",
    "ClientToolAnswers",
    "ClientToolCall",
    "Completed",
    "Connector",
    "ConnectorContext",
    "ContentAnnotations",
    "ContentBlock",
    "ContextMessage",
    "ContextNote",
    "DeadLetter",
    "DenyApproval",
    "Depends",
    "EmbeddedResourceContentBlock",
    "EntryAdded",
    "EntryCompleted",
    "Event",
    "Failed",
    "HandlerContext",
    "HistoryEntry",
    "HistoryImportEntry",
    "HistoryImportMessage",
    "HistoryImportReasoning",
    "HistoryImportSnapshot",
    "HistoryImportToolCall",
    "HistoryImportToolResult",
    "Hook",
    "HookCall",
    "HookContext",
    "HookReply",
    "ImageContentBlock",
    "Interrupted",
    "InvalidCursorError",
    "InvalidOutput",
    "JsonValue",
    "KeepCallbackOpen",
    "MCPServer",
    "MessageEntry",
    "MistralModel",
    "Model",
    "ModelDelta",
    "ModelError",
    "ModelMessage",
    "ModelReasoning",
    "ModelRequest",
    "ModelStop",
    "ModelText",
    "ModelToolCall",
    "ModelUsage",
    "NotFound",
    "Notice",
    "ObservationLost",
    "OpenAIModel",
    "OpenApproval",
    "OpenCallback",
    "OpenClientToolCall",
    "OpenSignIn",
    "OutcomeUnknownError",
    "PermissionPolicy",
    "PermissionRule",
    "ProtocolError",
    "Reject",
    "RequestApproval",
    "RequestedCall",
    "ResourceLinkContentBlock",
    "Retry",
    "Running",
    "ScriptedCall",
    "ScriptedModel",
    "ScriptedReply",
    "SdkError",
    "Session",
    "SessionAgentCustomization",
    "SessionBusyError",
    "SessionIdempotencyConflictError",
    "SessionInfo",
    "SessionInput",
    "SessionNotFoundError",
    "SessionTerminatedError",
    "SessionUpdated",
    "SignInAnswer",
    "SignInRequest",
    "Skip",
    "Subagent",
    "SubagentPolicy",
    "SystemMessage",
    "TextContentBlock",
    "TextDelta",
    "TokenUsage",
    "Tool",
    "ToolAnnotations",
    "ToolCall",
    "ToolCallEntry",
    "ToolError",
    "ToolMessage",
    "ToolResult",
    "ToolResultEntry",
    "ToolSpec",
    "Turn",
    "TurnConflict",
    "TurnEnded",
    "TurnNotFoundError",
    "TurnStarted",
    "TurnState",
    "TurnUpdated",
    "UnknownContentBlock",
    "UnknownEntry",
    "UnknownEvent",
    "UnknownOpenCallback",
    "UnknownOutcome",
    "UnknownValue",
    "UnsupportedSessionProcedureError",
    "UserMessage",
    "client_tool",
    "connect",
    "list_dead_letters",
    "list_sessions",
    "register_scripted",
    "reject",
    "request_approval",
    "retry",
    "session",
    "skip",
    "tool",
]
