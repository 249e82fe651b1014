"""MCP: an agent uses the tools of an MCP server. One that cannot be used is noticed, and the turn goes on.

    pip install 'turnstream[mcp]'
    python examples/mcp_tools.py

It prints:

    notice: The tools of mcp:archive cannot be used: it cannot be reached (FileNotFoundError). (unreachable)
    the model may call: mcp.library.find_book, mcp.library.reserve
    mcp.library.find_book: {'title': 'Emma', 'year': 1815, 'copies': 2}
    mcp.library.reserve: {'result': 'Emma is reserved.'}
    librarian: Emma is reserved for you.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import api_shim as agents


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    match sum(isinstance(message, agents.ToolMessage) for message in request.messages):
        case 0:
            told = ", ".join(tool.id for tool in request.tools)
            call = agents.ScriptedCall("mcp.library.find_book", {"title": "Emma"})
            return agents.ScriptedReply(reasoning=told, calls=[call])
        case 1:
            return agents.ScriptedReply(calls=[agents.ScriptedCall("mcp.library.reserve", {"title": "Emma"})])
        case _:
            return agents.ScriptedReply(text="Emma is reserved for you.")


librarian = agents.Agent(
    name="librarian",
    mcps=[
        agents.MCPServer(
            "library",
            command=sys.executable,  # or url="https://…/mcp", headers={…}
            args=[str(Path(__file__).parent / "servers" / "library_mcp.py")],
            tools=["find_*", "reserve"],  # and not `burn`
        ),
        agents.MCPServer("archive", command="no-such-program"),
    ],
    model=agents.ScriptedModel(script),
)


def show(event: agents.Event) -> None:
    match event:
        case agents.Notice(message, details={"reason": reason}):
            print(f"notice: {message} ({reason})")
        case agents.EntryCompleted(agents.UnknownEntry(type="reasoning", raw=raw)):
            print("the model may call:", raw["text"])
        case agents.EntryCompleted(agents.ToolResultEntry(name=name, structured_content=result)):
            print(f"{name}: {result}")
        case agents.EntryCompleted(agents.MessageEntry(role="assistant") as reply):
            print("librarian:", reply.text)


async def main() -> None:
    session = await librarian.start_session()
    await session.run("Get me Emma.", on_event=show)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
