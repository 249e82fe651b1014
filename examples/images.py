"""Images, files and whom they are for: content blocks in messages and in tools' results.

    python examples/images.py

It prints:

    the model sees: text, image (image/png, a red dot)
    the model sees: text, resource_link (report.pdf), embedded_resource (text/csv)
    the model sees of the tool's result: text
    the client sees of it: text, image (image/png, dots) and {'took_ms': 7}
"""

from __future__ import annotations

import asyncio
import base64

import api_shim as agents

DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)


@agents.tool
def draw(dots: int) -> agents.ToolResult:
    """Draw dots for the person."""
    for_user = agents.ContentAnnotations(audience=["user"])  # without the assistant: the model never gets it
    picture = agents.ImageContentBlock.from_bytes(DOT, alt_text="dots", annotations=for_user)
    said = agents.TextContentBlock(text=f"{dots} dots")
    return agents.ToolResult([said, picture], meta={"took_ms": 7})  # nor does it get `meta`


def shown(block: agents.ContentBlock) -> str:
    match block:
        case agents.TextContentBlock():
            return "text"
        case agents.ImageContentBlock(media_type=media_type, alt_text=alt_text):
            return f"image ({media_type}, {alt_text})"
        case agents.ResourceLinkContentBlock(name=name):
            return f"resource_link ({name})"
        case agents.EmbeddedResourceContentBlock(media_type=media_type):
            return f"embedded_resource ({media_type})"
        case _:
            return block.type


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    last = request.messages[-1]
    assert isinstance(last, (agents.UserMessage, agents.ToolMessage))
    if last.text == "Draw 3 dots.":
        return agents.ScriptedReply(calls=[agents.ScriptedCall("client.draw", {"dots": 3})])
    return agents.ScriptedReply(text=", ".join(map(shown, last.content)))


painter = agents.Agent(name="painter", tools=[draw], model=agents.ScriptedModel(script))


async def main() -> None:
    session = await painter.start_session()
    photo = agents.ImageContentBlock.from_bytes(DOT, alt_text="a red dot")  # from_path("dot.png") reads a file
    turn = await session.send_message([agents.TextContentBlock(text="What is this?"), photo])
    print("the model sees:", (await turn.result()).text)

    files = [
        {"type": "text", "text": "Compare these."},
        {"type": "resource_link", "uri": "https://example.com/report.pdf", "name": "report.pdf"},
        {"type": "embedded_resource", "uri": "file:///a.csv", "mediaType": "text/csv", "text": "a,b\n1,2\n"},
    ]
    turn = await session.send_message(files)
    print("the model sees:", (await turn.result()).text)

    turn = await session.send_message("Draw 3 dots.")
    print("the model sees of the tool's result:", (await turn.result()).text)
    async for entry in session.history():
        match entry:
            case agents.ToolResultEntry(content=content, meta=meta):
                print("the client sees of it:", ", ".join(map(shown, content)), "and", meta)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
