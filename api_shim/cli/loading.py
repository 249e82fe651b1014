"""`MODULE:AGENT`: where a command finds an agent."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import click

from api_shim.agent import Agent


def load_agent(place: str) -> Agent:
    """Return the agent that `MODULE:NAME` names. Raises `click.UsageError` with one sentence that says what is wrong."""
    module_name, _, attribute = place.partition(":")
    if not module_name or not attribute:
        raise click.UsageError(f"{place!r} is no MODULE:AGENT, such as examples.reviewer:payment_reviewer.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is not None and module_name.startswith(missing.name):
            raise click.UsageError(
                f"There is no module {module_name!r} here; run the command where it can be imported."
            ) from None
        raise
    agent = getattr(module, attribute, None)
    if not isinstance(agent, Agent):
        found = "nothing" if agent is None else f"a {type(agent).__name__}"
        raise click.UsageError(f"{place}: {attribute!r} is {found}, not an Agent.")
    return agent
