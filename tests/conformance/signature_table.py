"""The public surface as the reference pages give it, written by hand: a change of the code must be made here too.

A signature is what `inspect.signature` shows, without `self`, `cls` and annotations.
"""

from __future__ import annotations

from typing import Final

EVENT: Final = "(*, id, session_id, turn_id"

SIGNATURES: Final[dict[str, str]] = {
    # events
    "Event": f"{EVENT})",
    "TurnStarted": f"{EVENT})",
    "TurnUpdated": f"{EVENT}, status)",
    "TurnEnded": f"{EVENT}, state)",
    "CallbackOpened": f"{EVENT}, callback)",
    "CallbackResolved": f"{EVENT}, callback_id)",
    "SessionUpdated": f"{EVENT}, status, title, archived)",
    "Notice": f"{EVENT}, message, level, source, details=None)",
    "EntryAdded": f"{EVENT}, entry)",
    "EntryCompleted": f"{EVENT}, entry)",
    "TextDelta": f"{EVENT}, entry_id, text)",
    "UnknownEvent": f"{EVENT}, type, raw={{}})",
    # entries
    "MessageEntry": "(*, id, turn_id, role, content)",
    "ContextMessage": "(*, id, turn_id, content, kind, source)",
    "ToolCallEntry": "(*, id, turn_id, tool_call_id, name, arguments)",
    "ToolResultEntry": "(*, id, turn_id, tool_call_id, name, content, structured_content, is_error, meta={})",
    "UnknownEntry": "(*, id, turn_id, type, raw)",
    # content
    "ContentAnnotations": "(*, audience=None, priority=None, last_modified=None)",
    "TextContentBlock": "(*, annotations=None, meta=None, text='')",
    "ImageContentBlock": "(*, annotations=None, meta=None, uri, media_type=None, alt_text=None)",
    "ImageContentBlock.from_bytes": "(data, media_type=None, *, alt_text=None, annotations=None)",
    "ImageContentBlock.from_path": "(path, media_type=None, *, alt_text=None, annotations=None)",
    "AudioContentBlock": "(*, annotations=None, meta=None, uri, media_type=None)",
    "ResourceLinkContentBlock": (
        "(*, annotations=None, meta=None, uri, name=None, title=None, description=None, media_type=None, size=None)"
    ),
    "EmbeddedResourceContentBlock": "(*, annotations=None, meta=None, uri, media_type=None, text=None, blob=None)",
    "UnknownContentBlock": "(*, original_type)",
    # a starting history
    "HistoryImportMessage": "(*, role, content=[])",
    "HistoryImportReasoning": "(*, text)",
    "HistoryImportToolCall": "(*, tool_call_id, tool_kind='local', name, arguments=None)",
    "HistoryImportToolResult": "(*, tool_call_id, name=None, result=None, error=None, annotations={})",
    "HistoryImportSnapshot": "(*, task_name, snapshot_type, value=None)",
    # session and turn
    "Session.turn": "(turn_id)",
    "Session.send_message": "(content, *, idempotency_key=None)",
    "Session.start_turn": "(content, *, idempotency_key=None)",
    "Session.run": "(content, *, output_type=None, idempotency_key=None, timeout=None, on_event=None)",
    "Session.iter_events": "(*, after=None)",
    "Session.cancel": "()",
    "Session.subagents": "()",
    "Session.info": "()",
    "Session.history": "(*, after=None, limit=None)",
    "Session.turns": "()",
    "Session.rename": "(title)",
    "Session.archive": "(archived=True)",
    "Turn.get": "()",
    "Turn.result": "(*, output_type=None, after=None, timeout=None, on_event=None)",
    "Turn.iter_events": "(*, after=None)",
    "Turn.steer": "(content)",
    "Turn.answer": "(callback_id, answer)",
    "Turn.interrupt": "()",
    "Depends": "()",
    # agent
    "Agent": (
        "(*, model, name='default_agent', instructions=None, tools=(), permission_mode='auto', permission_policy=None, "
        "output_type=None, max_iterations=None, temperature=None, reasoning_effort=None, hooks=(), guardrails=(), "
        "subagents=(), subagent_policy=None, mcps=(), connectors=(), tool_errors='report', description=None)"
    ),
    "Agent.start_session": (
        "(*, history=None, session_inputs=None, title=None, agent=None, idempotency_key=None, "
        "on_approval=None, on_client_tool=None, on_sign_in=None)"
    ),
    "Agent.session": "(session_id, *, on_approval=None, on_client_tool=None, on_sign_in=None)",
    "Agent.run": (
        "(content, *, output_type=None, timeout=None, on_event=None, "
        "on_approval=None, on_client_tool=None, on_sign_in=None, session_inputs=None)"
    ),
    "Agent.load_from": "(*, agent_name=None, agent_id=None, url=None)",
    "SessionAgentCustomization": "(*, additional_instructions='', model=None, reasoning_effort=None)",
    "list_sessions": (
        "(*, host=None, scope='roots', root=None, parent=None, status=None, agent_name=None, archived=False, limit=None)"
    ),
    "connect": "(url)",
    "skip": "(reason)",
    "retry": "(feedback)",
    "reject": "(reason)",
    "ClientTool.answer": "(function)",
    # the vendors' models
    "OpenAIModel": (
        "(name, *, base_url=None, api_key=None, timeout=None, headers=None, options=None, "
        "accepts=('image', 'audio', 'document'), strict_order=None)"
    ),
    "MistralModel": (
        "(name, *, base_url=None, api_key=None, timeout=None, headers=None, options=None, "
        "accepts=('image', 'audio', 'document'))"
    ),
}
"""Exactly these parameters, kinds and defaults."""

RECORD: Final = "session_id turn_id cursor text"
OPEN: Final = "id session_id turn_id title opened_at"

FIELDS: Final[dict[str, str]] = {
    # records
    "Running": RECORD,
    "Blocked": f"{RECORD} callbacks",
    "Completed": f"{RECORD} output tool_calls stop_reason usage",
    "Interrupted": f"{RECORD} cause",
    "Failed": f"{RECORD} error",
    "UnknownOutcome": f"{RECORD} outcome raw",
    "ToolCall": "name arguments",
    "TokenUsage": "input_tokens output_tokens total_tokens cached_input_tokens",
    "InvalidOutput": "error text",
    "ProtocolError": "message code details",
    "UnknownValue": "value",
    "Busy": "turn",
    "TurnConflict": "active_turn_id",
    "Answered": "answer session_id",
    "AlreadySettled": "",
    "NotFound": "",
    # callbacks and answers
    "OpenApproval": f"{OPEN} request",
    "OpenSignIn": f"{OPEN} requests",
    "OpenClientToolCall": f"{OPEN} call",
    "ApprovalRequest": "tool tool_call_id arguments from_hook",
    "ApprovalTool": "id name description",
    "SignInRequest": "source_id title url",
    "ClientToolCall": "tool_call_id name arguments",
    "AllowApproval": "scope",
    "DenyApproval": "reason",
    "SignInAnswer": "connected denied",
    "KeepCallbackOpen": "",
    # the rest
    "SessionInfo": ("id agent_name title status archived parent_id root_id preview termination created_at updated_at"),
    "ToolResult": "content structured_content meta is_error",
    "PermissionPolicy": "default rules",
    "PermissionRule": "tools decision",
    "SubagentPolicy": "concurrent_child_turn_limit max_depth",
}
"""These fields in this order; the reference leaves their kinds open."""

DEFAULTS: Final[dict[str, dict[str, object]]] = {
    "AllowApproval": {"scope": "once"},
    "DenyApproval": {"reason": None},
    "SignInAnswer": {"connected": (), "denied": ()},
    "ToolResult": {"structured_content": None, "meta": {}, "is_error": False},
    "PermissionPolicy": {"default": "allow"},
    "SubagentPolicy": {"concurrent_child_turn_limit": 10, "max_depth": 2},
}
"""What the fields above are when they are left out."""

AT_LEAST: Final[dict[str, dict[str, object]]] = {
    "session": {"session_id": ...},
    "tool": {"name": None, "description": None, "annotations": None, "retry_safe": False, "timeout": None},
    "client_tool": {"output_schema": None},
    "Subagent": {"name": ..., "description": ..., "instructions": ...},
}
"""At least these parameters, with these defaults (`...`: not said)."""

MATCH_ARGS: Final[dict[str, str]] = {
    "Event": "",
    "TurnStarted": "",
    "TurnUpdated": "status",
    "TurnEnded": "state",
    "CallbackOpened": "callback",
    "CallbackResolved": "callback_id",
    "SessionUpdated": "status title archived",
    "Notice": "message level source details",
    "EntryAdded": "entry",
    "EntryCompleted": "entry",
    "TextDelta": "entry_id text",
    "UnknownEvent": "type raw",
    "UnknownEntry": "type raw",
    "MessageEntry": "role content",
    "ContextMessage": "role content kind source",
    "ToolCallEntry": "name arguments tool_call_id",
    "ToolResultEntry": "name content structured_content is_error tool_call_id meta",
    "Running": "",
    "Blocked": "callbacks",
    "Completed": "output tool_calls stop_reason usage",
    "Interrupted": "cause",
    "Failed": "error",
    "UnknownOutcome": "outcome raw",
    "ToolCall": "name arguments",
    "TokenUsage": "input_tokens output_tokens total_tokens cached_input_tokens",
    "InvalidOutput": "error text",
    "ProtocolError": "message code details",
    "UnknownValue": "value",
    "Busy": "turn",
    "TurnConflict": "active_turn_id",
    "Answered": "answer session_id",
    "AlreadySettled": "",
    "NotFound": "",
    "OpenApproval": "request",
    "OpenSignIn": "requests",
    "OpenClientToolCall": "call",
    "ApprovalRequest": "tool tool_call_id arguments from_hook",
    "ApprovalTool": "id name description",
    "SignInRequest": "source_id title url",
    "ClientToolCall": "tool_call_id name arguments",
    "AllowApproval": "scope",
    "DenyApproval": "reason",
    "SignInAnswer": "connected denied",
    "KeepCallbackOpen": "",
    "ContentAnnotations": "audience priority last_modified",
    "TextContentBlock": "annotations meta text",
    "ImageContentBlock": "annotations meta uri media_type alt_text",
    "AudioContentBlock": "annotations meta uri media_type",
    "ResourceLinkContentBlock": "annotations meta uri name title description media_type size",
    "EmbeddedResourceContentBlock": "annotations meta uri media_type text blob",
    "UnknownContentBlock": "original_type",
}

TYPES: Final[dict[str, str]] = {
    "TextContentBlock": "text",
    "ImageContentBlock": "image",
    "AudioContentBlock": "audio",
    "ResourceLinkContentBlock": "resource_link",
    "EmbeddedResourceContentBlock": "embedded_resource",
    "UnknownContentBlock": "unknown",
    "HistoryImportMessage": "message",
    "HistoryImportReasoning": "reasoning",
    "HistoryImportToolCall": "tool_call",
    "HistoryImportToolResult": "tool_result",
    "HistoryImportSnapshot": "snapshot",
}
"""What `type` always is."""

AWAITED: Final = {
    "Session": "send_message start_turn run cancel subagents info turns rename archive",
    "Turn": "get result steer answer interrupt",
    "Agent": "start_session run",
}
"""Methods that are awaited; every other method of these classes in `SIGNATURES` is called plainly."""

ERRORS: Final = (
    "SdkError",
    "SessionNotFoundError",
    "TurnNotFoundError",
    "InvalidCursorError",
    "ObservationLost",
    "OutcomeUnknownError",
    "SessionBusyError",
    "SessionTerminatedError",
    "SessionIdempotencyConflictError",
    "UnsupportedSessionProcedureError",
    "ClientToolAnswerError",
    "BrokerUnavailableError",
)

OTHER_NAMES: Final = (
    "ClientToolAnswers",
    "ContentBlock",
    "HistoryEntry",
    "HistoryImportEntry",
    "Hook",
    "JsonValue",
    "Model",
    "ModelDelta",
    "ModelReasoning",
    "ModelRequest",
    "ModelStop",
    "ModelText",
    "ModelToolCall",
    "ModelUsage",
    "OpenCallback",
    "ScriptedModel",
    "SessionInput",
    "ToolAnnotations",
    "ToolError",
    "TurnState",
    "UnknownOpenCallback",
)
"""Public names without a signature of their own in the reference."""
