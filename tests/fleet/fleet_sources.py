"""An agent whose tools are a program's and a connector's, for worker processes. The message is the name of the tool to call."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import api_shim as agents
from workers.scripted import last_user_text

PROGRAM = str(Path(__file__).parent.parent / "mcp_server.py")


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Call the tool that the message names, and say so."""
    named = last_user_text(request)
    if type(request.messages[-1]).__name__ == "ToolMessage":
        return agents.ScriptedReply(text=f"Called {named}.")
    return agents.ScriptedReply(calls=[agents.ScriptedCall(named, {})])


def credentials(_ctx: agents.ConnectorContext) -> str | None:
    """Give the token that lies where a person's sign-in puts it."""
    kept = Path(os.environ["TOKEN_FILE"])
    return kept.read_text() if kept.exists() else None


box = agents.MCPServer("box", command=sys.executable, args=[PROGRAM, "stdio"], env={"MCP_CASE": os.environ["MCP_CASE"]})
librarian = agents.Agent(name="librarian", model=agents.ScriptedModel(script), mcps=[box])
notion = agents.Connector(
    "notion", url=os.environ["TOOL_SERVER"], sign_in_url="https://notion.example", credentials=credentials
)
reader = agents.Agent(name="reader", model=agents.ScriptedModel(script), connectors=[notion])
