"""`MODULE:AGENT`: where a command finds an agent."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import click

from api_shim.agent import Agent


class NoAgentError(click.ClickException):
    """A `MODULE:AGENT` names no agent. Exit status 2."""

    exit_code = 2


def load_agent(place: str) -> Agent:
    """Return the agent that `MODULE:NAME` names. Raises `NoAgentError` with one sentence that says what is wrong."""
    module_name, _, attribute = place.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise NoAgentError(f"{place!r} is no MODULE:AGENT, such as examples.reviewer:payment_reviewer.")
    module = _module(module_name)
    try:
        agent = getattr(module, attribute)
    except AttributeError:
        known = [name for name, value in vars(module).items() if isinstance(value, Agent)]
        hint = f"its agents: {', '.join(known)}" if known else "it has no agent"
        raise NoAgentError(f"{place}: the module {module_name} has no {attribute!r}; {hint}.") from None
    if not isinstance(agent, Agent):
        raise NoAgentError(f"{place}: {attribute!r} is of type {type(agent).__name__}, not an Agent.")
    return agent


def load_agents(places: Iterable[str]) -> list[Agent]:
    """Return the agents at these places. Raises `NoAgentError`, also when two have one name."""
    found: dict[str, Agent] = {}
    for place in places:
        agent = load_agent(place)
        if found.setdefault(agent.name, agent) is not agent:
            raise NoAgentError(f"{place}: another agent here is named {agent.name!r} too; a worker serves one.")
    return list(found.values())


def _module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        # A module that it imports in its turn is the author's to mend: that one keeps its traceback.
        if missing.name is not None and f"{name}.".startswith(f"{missing.name}."):
            raise NoAgentError(f"There is no module {name!r} here; run the command where it can be imported.") from None
        raise
