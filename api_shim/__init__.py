"""What people import: `import api_shim as agents`.

Names that only a worker needs (Agent, tools, hooks) are loaded when they are touched: a program that observes sessions imports
neither tools nor models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from api_shim.handlers import HandlerContext
from api_shim.listing import SessionInfo, list_dead_letters, list_sessions
from api_shim.local import connect, current_host
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

if TYPE_CHECKING:
    from api_shim.agent import Agent
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

_LATE: dict[str, str] = {
    "Agent": "api_shim.agent",
    "AssistantMessage": "workers.models",
    "ClientTool": "workers.client_tools",
    "ClientToolAnswers": "workers.client_tools",
    "Connector": "workers.sources",
    "ConnectorContext": "workers.sources",
    "ContextNote": "workers.models",
    "Depends": "workers.inputs",
    "Hook": "workers.hooks",
    "HookCall": "workers.hooks",
    "HookContext": "workers.hooks",
    "HookReply": "workers.hooks",
    "MCPServer": "workers.sources",
    "MistralModel": "workers.mistral_model",
    "Model": "workers.models",
    "ModelDelta": "workers.models",
    "ModelError": "workers.models",
    "ModelMessage": "workers.models",
    "ModelReasoning": "workers.models",
    "ModelRequest": "workers.models",
    "ModelStop": "workers.models",
    "ModelText": "workers.models",
    "ModelToolCall": "workers.models",
    "ModelUsage": "workers.models",
    "OpenAIModel": "workers.openai_model",
    "PermissionPolicy": "workers.permissions",
    "PermissionRule": "workers.permissions",
    "Reject": "workers.hooks",
    "RequestApproval": "workers.hooks",
    "RequestedCall": "workers.models",
    "Retry": "workers.hooks",
    "ScriptedCall": "workers.scripted",
    "ScriptedModel": "workers.scripted",
    "ScriptedReply": "workers.scripted",
    "SessionAgentCustomization": "workers.agent",
    "SessionInput": "workers.inputs",
    "Skip": "workers.hooks",
    "Subagent": "workers.subagents",
    "SubagentPolicy": "workers.subagents",
    "SystemMessage": "workers.models",
    "Tool": "workers.tools",
    "ToolAnnotations": "workers.tools",
    "ToolError": "workers.tools",
    "ToolMessage": "workers.models",
    "ToolResult": "workers.tools",
    "ToolSpec": "workers.models",
    "UserMessage": "workers.models",
    "client_tool": "workers.client_tools",
    "register_scripted": "workers.scripted",
    "reject": "workers.hooks",
    "request_approval": "workers.hooks",
    "retry": "workers.hooks",
    "skip": "workers.hooks",
    "tool": "workers.tools",
}


def __getattr__(name: str) -> Any:
    module = _LATE.get(name)
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

    handlers = Handlers(on_approval, on_client_tool, on_sign_in)
    return Session(session_id, host=current_host(), handlers=handlers)


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
