"""`Agent`: an agent's definition, and what a client does with it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal

from pydantic import BaseModel

from api_shim.arguments import check_key, check_wait, checked_title
from api_shim.handlers import Handlers
from api_shim.local import Host, current_host, place_of
from api_shim.session import Session
from broker.contents import replaced_note
from broker.keys import AGENT_NAME, new_session_id
from broker.protocol.content import ImageContentBlock, TextContentBlock
from broker.protocol.errors import SdkError, SessionIdempotencyConflictError
from broker.protocol.events import Event
from broker.protocol.history_import import HistoryImportEntry
from broker.protocol.records import Busy, TurnState
from broker.protocol.sends import mapped
from broker.protocol.values import JsonValue, clean_json, clean_text, dumps, watch_replaced
from broker.starting_history import check_history, open_with_history
from broker.transitions import SessionOptions, open_session
from workers.agent import AgentDefinition, SessionAgentCustomization
from workers.client_tools import ClientTool
from workers.hooks import Hook
from workers.inputs import SessionInput
from workers.models import Model, check_model
from workers.permissions import PermissionMode, PermissionPolicy
from workers.sources import Connector, MCPServer
from workers.subagents import Subagent, SubagentPolicy
from workers.tools import Tool


class Agent:
    """An agent: model, instructions, tools, permissions, hooks.

    Without a broker's URL its turns run in this process; with one, on the processes that `turnstream worker` starts.
    """

    def __init__(  # noqa: PLR0913 - the specification's signature
        self,
        *,
        model: str | Model,
        name: str = "default_agent",
        instructions: str | None = None,
        tools: Sequence[Tool[..., Any] | ClientTool | Callable[..., Any]] = (),
        permission_mode: PermissionMode = "auto",
        permission_policy: PermissionPolicy | None = None,
        output_type: type[BaseModel] | None = None,
        max_iterations: int | None = None,
        temperature: float | None = None,
        reasoning_effort: str | None = None,
        hooks: Sequence[Hook] = (),
        guardrails: Sequence[Hook] = (),
        subagents: Sequence[Subagent] = (),
        subagent_policy: SubagentPolicy | None = None,
        mcps: Sequence[MCPServer] = (),
        connectors: Sequence[Connector] = (),
        tool_errors: Literal["report", "raise"] = "report",
        description: str | None = None,
    ) -> None:
        definition = AgentDefinition(
            model=model,
            name=name,
            instructions=instructions,
            tools=tools,
            permission_mode=permission_mode,
            permission_policy=permission_policy,
            output_type=output_type,
            max_iterations=max_iterations,
            temperature=temperature,
            reasoning_effort=reasoning_effort,
            hooks=hooks,
            guardrails=guardrails,
            subagents=subagents,
            subagent_policy=subagent_policy,
            mcps=mcps,
            connectors=connectors,
            tool_errors=tool_errors,
            description=description,
        )
        self._set(definition, name, None)

    @classmethod
    def load_from(cls, *, agent_name: str | None = None, agent_id: str | None = None, url: str | None = None) -> Agent:
        """Return a handle of an agent that workers serve, by its name (`agent_id` is the same name). Sends nothing.

        `url` names the broker; None is where this process runs. Raises `ValueError` unless exactly one name is given, and an
        agent can have it.
        """
        if (agent_name is None) == (agent_id is None):
            raise ValueError("give agent_name or agent_id, and not both: workers serve an agent under its name")
        name = agent_name or agent_id or ""
        if not AGENT_NAME.fullmatch(str(name)):
            raise ValueError(f"an agent's name is 1 to 64 of the characters A-Z a-z 0-9 _ . -, not {name!r}")
        agent = cls.__new__(cls)
        agent._set(None, name, url)  # noqa: SLF001 - made here, of this class
        return agent

    def _set(self, definition: AgentDefinition | None, name: str, host: Host) -> None:
        self._definition, self._name, self._host = definition, name, host

    def __repr__(self) -> str:
        return f"<Agent {self._name}>"

    @property
    def name(self) -> str:
        """The agent's name, under which workers serve it."""
        return self._name

    @property
    def definition(self) -> AgentDefinition:
        """What a worker runs. Raises `SdkError` for a handle of `load_from`, which has none."""
        if self._definition is None:
            raise SdkError(f"{self!r} is a handle of an agent that workers serve; it has no definition here")
        return self._definition

    def session(
        self,
        session_id: str,
        *,
        on_approval: Callable[..., Any] | None = None,
        on_client_tool: Callable[..., Any] | None = None,
        on_sign_in: Callable[..., Any] | None = None,
    ) -> Session:
        """Return a handle of a session; sends nothing."""
        handlers = Handlers(on_approval, on_client_tool, on_sign_in)
        return Session(session_id, host=self._host or current_host(), definition=self._definition, handlers=handlers)

    async def start_session(
        self,
        *,
        history: Sequence[HistoryImportEntry | Mapping[str, Any]] | None = None,
        session_inputs: Mapping[str, Any] | None = None,
        title: str | None = None,
        agent: SessionAgentCustomization | Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        on_approval: Callable[..., Any] | None = None,
        on_client_tool: Callable[..., Any] | None = None,
        on_sign_in: Callable[..., Any] | None = None,
    ) -> Session:
        """Open a session. The same key gives the same session; with other options `SessionIdempotencyConflictError`.

        `history` is what was said and done elsewhere: the session begins with it, as entries of no turn; one that is long
        goes in pages, and the session exists once it is whole. `session_inputs` maps input ids to values that tools and hooks
        read. Raises `ValueError` or `TypeError` naming the place, such as `history[3].content[0].text`, before anything is sent.
        """
        return await self._open(
            history=history,
            session_inputs=session_inputs,
            title=title,
            customization=agent,
            idempotency_key=idempotency_key,
            handlers=Handlers(on_approval, on_client_tool, on_sign_in),
            once=False,
        )

    async def _open(
        self,
        *,
        history: Sequence[HistoryImportEntry | Mapping[str, Any]] | None,
        session_inputs: Mapping[str, Any] | None,
        title: str | None,
        customization: SessionAgentCustomization | Mapping[str, Any] | None,
        idempotency_key: str | None,
        handlers: Handlers,
        once: bool,
    ) -> Session:
        check_key(idempotency_key)
        place = place_of(self._host or current_host())
        with watch_replaced() as replaced:
            inputs = dumps(_inputs(session_inputs))
            changed = dumps(_customization(customization))
            titled = dumps(None if title is None else checked_title(title))
        starting = await check_history(() if history is None else history, place.broker.settings.message_limit)
        told = (inputs, changed, titled) if starting is None else (inputs, changed, titled, starting.digest.encode())
        digest = hashlib.sha256(b"\n".join(told)).hexdigest()[:32]
        await place.ready()
        if self._definition is not None:
            await place.serve(self._definition)
        session_id = new_session_id(place.broker.settings.shards, self._name, idempotency_key)
        options = SessionOptions(
            agent=self._name,
            queue=self._name,
            title=titled,
            once=once,
            digest=digest,
            inputs=inputs,
            customization=changed,
            preview=b"" if starting is None else starting.preview,
            note=replaced_note("session", "What the session was opened with") if replaced else None,
        )
        try:
            if starting is None:
                await open_session(place.broker, session_id, options)
            else:
                await open_with_history(place.broker, session_id, options, starting)
        except SessionIdempotencyConflictError as conflict:
            conflict.idempotency_key = idempotency_key
            raise
        return Session(session_id, host=place.host, definition=self._definition, handlers=handlers)

    async def run(
        self,
        content: str | Sequence[TextContentBlock | ImageContentBlock | Mapping[str, Any]],
        *,
        output_type: type[BaseModel] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the specification's name; an expired wait returns a record
        on_event: Callable[[Event], Awaitable[None] | None] | None = None,
        on_approval: Callable[..., Any] | None = None,
        on_client_tool: Callable[..., Any] | None = None,
        on_sign_in: Callable[..., Any] | None = None,
        session_inputs: Mapping[str, Any] | None = None,
    ) -> TurnState[Any]:
        """Run one turn in a session of its own, which ends with it; never raises for how the turn ended.

        A run that returns Blocked or Running (at `timeout` seconds) leaves both alive, to be answered and awaited.
        """
        check_wait(timeout, on_event)
        session = await self._open(
            history=None,
            session_inputs=session_inputs,
            title=None,
            customization=None,
            idempotency_key=None,
            handlers=Handlers(on_approval, on_client_tool, on_sign_in),
            once=True,
        )
        state = await session.run(content, output_type=output_type, timeout=timeout, on_event=on_event)
        if isinstance(state, Busy):
            raise AssertionError("a session of its own has no other turn")
        return state


def _inputs(given: Mapping[str, Any] | None) -> dict[str, JsonValue]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"session_inputs must be a mapping of input ids to values, not {type(given).__name__}")
    values: dict[str, JsonValue] = {}
    for input_id, value in (given or {}).items():
        if not isinstance(input_id, str):
            raise TypeError(f"session_inputs: an input id is a text, not {type(input_id).__name__}")
        plain = value.model_dump(mode="json") if isinstance(value, SessionInput) else value
        values[input_id] = clean_json(plain, f"session_inputs[{input_id!r}]")
    return values


def _customization(given: SessionAgentCustomization | Mapping[str, Any] | None) -> dict[str, JsonValue]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        given = SessionAgentCustomization(
            **mapped(given, [each.name for each in fields(SessionAgentCustomization)], "agent")
        )
    if not isinstance(given, SessionAgentCustomization):
        raise TypeError(f"agent must be a SessionAgentCustomization or a mapping of one, not {type(given).__name__}")
    changed = {key: value for key, value in asdict(given).items() if value}
    for key, value in changed.items():
        if not isinstance(value, str):
            raise TypeError(f"agent.{key} must be a text, not {type(value).__name__}")
    if given.model is not None:
        check_model(given.model)
    return {key: clean_text(value) for key, value in changed.items()}
