"""An agent whose turns park, for an approval or for a client tool, and whose tools have an effect that a file shows."""

from __future__ import annotations

import os
from pathlib import Path

import api_shim as agents
from workers.scripted import last_user_text


def effect(key: str) -> str:
    """Write a line: one write of a short line is whole beside those of other processes."""
    with Path(os.environ["EFFECTS"]).open("a", encoding="utf-8") as effects:
        effects.write(f"{key}\n")
    return f"done {key}"


@agents.tool
def pay(key: str) -> str:
    """Pay, once somebody has allowed it."""
    return effect(key)


@agents.tool
def note(key: str) -> str:
    """Note something down."""
    return effect(key)


@agents.client_tool
def confirm(key: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the client."""


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """`approve KEY` pays; `confirm KEY` asks the client, and notes that down."""
    word, _, key = last_user_text(request).partition(" ")
    done = [message.name for message in request.messages if isinstance(message, agents.ToolMessage)]
    calls = ["client.pay"] if word == "approve" else ["client.confirm", "client.note"]
    if len(done) == len(calls):
        return agents.ScriptedReply(text=f"Done: {key}")
    return agents.ScriptedReply(calls=[agents.ScriptedCall(calls[len(done)], {"key": key})])


patient = agents.Agent(
    name="patient",
    model=agents.ScriptedModel(script),
    tools=[pay, note, confirm],
    permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.pay"], decision="ask")]),
)
