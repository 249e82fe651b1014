"""An agent's definition: what a worker needs to run its turns. Checked whole when it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel

from broker.keys import AGENT_NAME
from broker.protocol.errors import SdkError
from workers.client_tools import ClientTool
from workers.hook_set import HookSet
from workers.hooks import Hook
from workers.models import Model, ToolSpec, check_model, resolve_model
from workers.permissions import PermissionMode, PermissionPolicy
from workers.sources import Connector, MCPServer, as_sources
from workers.subagents import SpawnTool, Subagent, SubagentPolicy, checked_subagents
from workers.tools import Tool
from workers.toolset import AnyTool, Toolset, as_tools

_INHERITED: Final = (
    "model", "instructions", "tools", "permission_mode", "permission_policy", "max_iterations", "temperature",
    "reasoning_effort", "subagents", "subagent_policy", "tool_errors",
)  # fmt: skip

_POLICY: Final = SubagentPolicy()


@dataclass(frozen=True, kw_only=True)
class SessionAgentCustomization:
    """What one session changes about its agent. `additional_instructions` are added below the agent's own."""

    additional_instructions: str = ""
    model: str | None = None
    reasoning_effort: str | None = None


def _check_texts(*, name: object, **optional: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"name must be a text, not {type(name).__name__}")
    for argument, value in optional.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{argument} must be a text or None, not {type(value).__name__}")


def _check_numbers(max_iterations: object, temperature: object) -> None:
    if max_iterations is not None:
        if type(max_iterations) is not int:
            raise TypeError(f"max_iterations must be a whole number, not {type(max_iterations).__name__}")
        if max_iterations < 1:
            raise ValueError(f"max_iterations must be 1 or more, not {max_iterations}")
    if temperature is not None:
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            raise TypeError(f"temperature must be a number, not {type(temperature).__name__}")
        if not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be 0 or more, not {temperature}")


def _check_classes(permission_policy: object, output_type: object) -> None:
    if permission_policy is not None and not isinstance(permission_policy, PermissionPolicy):
        raise TypeError(f"permission_policy must be a PermissionPolicy, not {type(permission_policy).__name__}")
    if output_type is not None and not (isinstance(output_type, type) and issubclass(output_type, BaseModel)):
        raise TypeError(f"output_type must be a class of pydantic's BaseModel, not {output_type!r}")


class AgentDefinition:
    """The nouns of an agent: model, instructions, tools, permissions, hooks.

    Raises `ValueError`, `TypeError` or `SdkError` naming the argument that is wrong.
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
        check_model(model)
        _check_texts(name=name, instructions=instructions, reasoning_effort=reasoning_effort, description=description)
        if not AGENT_NAME.fullmatch(name):
            raise ValueError(f"name must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, not {name!r}")
        if permission_mode not in get_args(PermissionMode):
            raise ValueError(f"permission_mode must be 'auto', 'ask' or 'deny', not {permission_mode!r}")
        if tool_errors not in ("report", "raise"):
            raise ValueError(f"tool_errors must be 'report' or 'raise', not {tool_errors!r}")
        _check_classes(permission_policy, output_type)
        _check_numbers(max_iterations, temperature)
        self.model = model
        self.name = name
        self.instructions = instructions
        self.tools = as_tools(tools, "tools")
        self.hooks = HookSet(guardrails, hooks)
        self._handed_on = {"guardrails": guardrails, "hooks": hooks, "mcps": mcps, "connectors": connectors}
        self.sources = as_sources(mcps, connectors)
        self.permission_mode = permission_mode
        self.permission_policy = permission_policy
        self.output_type = output_type
        self.max_iterations = max_iterations
        self.temperature = temperature
        self.reasoning_effort = reasoning_effort
        self.subagents = checked_subagents(subagents)
        if subagent_policy is not None and not isinstance(subagent_policy, SubagentPolicy):
            raise TypeError(f"subagent_policy must be a SubagentPolicy, not {type(subagent_policy).__name__}")
        self.subagent_policy = subagent_policy
        self.tool_errors = tool_errors
        self.description = description
        self._own = self.toolset()
        self._children: dict[str, AgentDefinition] = {}
        for each in self.subagents:
            self._inherited(each, subagents=())  # raises, naming it, for one that cannot be made

    def toolset(self, depth: int = 0) -> Toolset:
        """Return the tools that a run has `depth` levels below its root, its hooks' among them; it adds those of its sources."""
        tools = Toolset(self.tools)
        for hook in self.hooks:
            for item in hook.tools:
                if tools.has(item.id):
                    raise ValueError(
                        f"hook {hook.name}: tools: there is a tool with the id {item.id!r} already; give one name="
                    )
                tools.add(item)
        if self.subagents and depth < self.policy.max_depth:
            tools.add(SpawnTool(self.subagents))
        return tools

    @property
    def policy(self) -> SubagentPolicy:
        """The limits on its subagents."""
        return self.subagent_policy or _POLICY

    def child(self, name: str) -> AgentDefinition:
        """Return the definition of a subagent, which inherits what it leaves unset. Raises `KeyError` for an unknown name."""
        if name not in self._children:
            found = next((each for each in self.subagents if each.name == name), None)
            if found is None:
                raise KeyError(name)
            self._children[name] = self._inherited(found)
        return self._children[name]

    def _inherited(self, subagent: Subagent, **more: Any) -> AgentDefinition:
        own = {name: getattr(self, name) for name in _INHERITED} | self._handed_on
        try:
            return AgentDefinition(**{**own, **subagent.overrides(), **more})
        except (TypeError, ValueError, SdkError) as bad:
            raise type(bad)(f"subagent {subagent.name}: {bad}") from bad

    @property
    def stubs(self) -> list[ClientTool]:
        """The client tools of the agent and of its subagents, at any depth."""
        below = (item for each in self._below() for item in each.tools or ())
        return [item for item in (*self.tools, *below) if isinstance(item, ClientTool)]

    @property
    def hook_stubs(self) -> list[ClientTool]:
        """The client tools of their hooks, whose answers are not checked."""
        own = (item for hook in self.hooks for item in hook.tools)
        hooks = (hook for each in self._below() for hook in (*(each.hooks or ()), *(each.guardrails or ())))
        return [
            item for item in (*own, *(item for hook in hooks for item in hook.tools)) if isinstance(item, ClientTool)
        ]

    def _below(self) -> Iterator[Subagent]:
        waiting = list(self.subagents)
        while waiting:
            yield (each := waiting.pop())
            waiting += each.subagents or ()

    def tool(self, tool_id: str) -> AnyTool | None:
        """Return one of the agent's own or its hooks' tools, as `Toolset.find` does."""
        return self._own.find(tool_id)

    def outliving(self, silence: float | None, usual: float) -> list[str]:
        """Return the ids of tools that may run for longer than a turn may be silent, in seconds; None: for ever.

        Their turn would fail before their own time is over. `usual` is the limit of tools that name none.
        """
        if silence is None:
            return []
        own = (tool for tool in self.tools if isinstance(tool, Tool))
        return [tool.id for tool in own if (usual if tool.timeout is None else tool.timeout) >= silence]

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told about the agent's own and its hooks' tools."""
        return self._own.specs

    def model_for(self, customization: Mapping[str, Any]) -> Model:
        """Return the model of a session."""
        return resolve_model(customization.get("model") or self.model)

    def instructions_for(self, customization: Mapping[str, Any]) -> str | None:
        """Return the instructions of a session: the agent's, and below them the session's own."""
        parts = [self.instructions, customization.get("additional_instructions")]
        return "\n\n".join(part for part in parts if part) or None
