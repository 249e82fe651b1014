"""Sign-in: a connector is an MCP server that wants the person's own credentials. A turn asks for them, and parks until then.

    pip install 'turnstream[mcp]'
    python examples/sign_in.py

It prints:

    the turn waits for: Sign in to Public library
    [Ada] signs in at http://127.0.0.1:PORT/sign-in
    connectors.library.reserve: Emma is reserved.
    the next turn asks nobody: Completed
    Bob will not sign in. The model read: The tools of Public library (connectors:library) cannot be used now.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, ClassVar

import api_shim as agents

PORT = os.environ.get("LIBRARY_PORT", "8931")
VAULT = Path(tempfile.gettempdir()) / f"turnstream-example-{PORT}"  # in real life, your database
SERVER = Path(__file__).parent / "servers" / "library_mcp.py"


class Reader(agents.SessionInput):
    input_id: ClassVar[str] = "reader"
    name: str


def credentials(ctx: agents.ConnectorContext, reader: Annotated[Reader, agents.Depends()]) -> str | None:
    """Return this reader's token; None when they must sign in first. Runs at the worker, whenever a turn connects."""
    card = VAULT / reader.name
    return card.read_text(encoding="utf-8") if card.exists() else None


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    notes = [message.text for message in request.messages if isinstance(message, agents.ContextNote)]
    if notes:
        return agents.ScriptedReply(text=notes[-1])
    if isinstance(request.messages[-1], agents.ToolMessage):
        return agents.ScriptedReply(text="Reserved.")
    return agents.ScriptedReply(calls=[agents.ScriptedCall("connectors.library.reserve", {"title": "Emma"})])


desk = agents.Agent(
    name="library_desk",
    connectors=[
        agents.Connector(
            "library",
            title="Public library",
            url=f"http://127.0.0.1:{PORT}/mcp",
            sign_in_url=f"http://127.0.0.1:{PORT}/sign-in",
            credentials=credentials,
        )
    ],
    model=agents.ScriptedModel(script),
)


async def ada() -> None:
    session = await desk.start_session(session_inputs={"reader": Reader(name="ada")})
    state = await session.run("Reserve Emma.")
    assert isinstance(state, agents.Blocked)
    [callback] = state.callbacks
    assert isinstance(callback, agents.OpenSignIn)
    print("the turn waits for:", callback.title)
    [request] = callback.requests
    print("[Ada] signs in at", request.url.replace(PORT, "PORT"))
    (VAULT / "ada").write_text("card-of-ada", encoding="utf-8")  # what your sign-in page does in the end
    turn = session.turn(state.turn_id)
    await turn.answer(callback.id, agents.SignInAnswer(connected=(request.source_id,)))
    await turn.result(after=state)
    async for entry in session.history():
        if isinstance(entry, agents.ToolResultEntry):
            print(f"{entry.name}: {entry.text}")
    print("the next turn asks nobody:", type(await session.run("Reserve it again.")).__name__)
    await session.cancel()


async def bob() -> None:
    def no(ctx: agents.HandlerContext, requests: tuple[agents.SignInRequest, ...]) -> agents.SignInAnswer:
        return agents.SignInAnswer(denied=tuple(request.source_id for request in requests))

    session = await desk.start_session(session_inputs={"reader": Reader(name="bob")}, on_sign_in=no)
    turn = await session.send_message("Reserve Emma.")
    print("Bob will not sign in. The model read:", (await turn.result()).text)
    await session.cancel()


async def main() -> None:
    VAULT.mkdir(exist_ok=True)
    (VAULT / "ada").unlink(missing_ok=True)
    with subprocess.Popen([sys.executable, str(SERVER), PORT], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it is ready
        try:
            await ada()
            await bob()
        finally:
            server.kill()


if __name__ == "__main__":
    asyncio.run(main())
