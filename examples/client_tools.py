"""Client tools: the model calls them, the client runs them, and the turn parks in between.

A wait answers the ones whose stub has an answering function. The others are in `Blocked`, for whoever can answer.

    python examples/client_tools.py

It prints:

    [editor] which text is selected?
    [editor] there is no file notes.txt
    the turn waits for: client.pick_color {'of': 'title'}
    the model read: 'Turnstream'; 'there is no file notes.txt'; '{"name":"teal","rgb":"#008080"}'
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

import api_shim as agents


class Color(BaseModel):
    name: str
    rgb: str


@agents.client_tool
def selection() -> str:  # type: ignore[empty-body] # a stub: it runs at the client
    """Return the text that the person selected."""


@agents.client_tool
def open_file(path: str) -> str:  # type: ignore[empty-body]
    """Open a file in the person's editor and return its text."""


@agents.client_tool
def pick_color(of: str) -> Color:  # type: ignore[empty-body]
    """Let the person pick a color."""


@selection.answer
def _() -> str:
    print("[editor] which text is selected?")
    return "Turnstream"


@open_file.answer
async def _(path: str) -> str:
    print(f"[editor] there is no file {path}")
    raise agents.ToolError(f"there is no file {path}")  # the model reads it, as from any tool


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    results = [message for message in request.messages if isinstance(message, agents.ToolMessage)]
    if results:
        return agents.ScriptedReply(text="; ".join(repr(result.text) for result in results))
    calls = [
        agents.ScriptedCall("client.selection", {}),
        agents.ScriptedCall("client.open_file", {"path": "notes.txt"}),
        agents.ScriptedCall("client.pick_color", {"of": "title"}),
    ]
    return agents.ScriptedReply(calls=calls)


designer = agents.Agent(name="designer", tools=[selection, open_file, pick_color], model=agents.ScriptedModel(script))


async def main() -> None:
    session = await designer.start_session(on_client_tool=agents.ClientToolAnswers(selection, open_file))
    state = await session.run("Color the title like my notes say.")
    assert isinstance(state, agents.Blocked)

    # Two are answered. Anyone with the ids can answer the one that is left: another process, a browser, tomorrow.
    [waiting] = state.callbacks
    assert isinstance(waiting, agents.OpenClientToolCall)
    print("the turn waits for:", waiting.call.name, waiting.call.arguments)
    turn = designer.session(state.session_id).turn(state.turn_id)
    await turn.answer(waiting.id, Color(name="teal", rgb="#008080"))  # checked against the stub's return type

    print("the model read:", (await turn.result(after=state)).text)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
