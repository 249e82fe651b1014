# ruff: noqa: I001 - the guide's own lines
# fmt: off
# The guide's "Show the conversation as it goes", unchanged but for its import line; the imports are the first sample's.
import asyncio

import api_shim as agents

from reviewer import payment_reviewer

shown: dict[str, str] = {}  # the reply text printed so far, by entry id


def show_chat(event: agents.Event) -> None:
    match event:
        case agents.EntryCompleted(entry=agents.MessageEntry(role="user") as message):
            print("user:", message.text)
        case agents.EntryCompleted(entry=agents.ToolCallEntry(name, arguments)):
            print("calling", name, arguments)
        case agents.EntryCompleted(entry=agents.ToolResultEntry(name)):
            print(name, "returned")
        case agents.TextDelta(entry_id=entry_id, text=text):
            if entry_id not in shown:
                print("agent: ", end="")
            shown[entry_id] = shown.get(entry_id, "") + text
            print(text, end="", flush=True)  # the reply, while the model writes it
        case agents.EntryCompleted(entry=agents.MessageEntry(role="assistant") as reply):
            so_far = shown.pop(reply.id, "")
            if so_far and reply.text.startswith(so_far):
                print(reply.text[len(so_far) :])  # the rest, if the last deltas were missed
            else:  # no deltas, or the first ones missed
                print(("\n" if so_far else "") + "agent: " + reply.text)


async def chat() -> None:
    session = await payment_reviewer.start_session()
    await session.run("Review transaction monitoring alert 4711.", on_event=show_chat)
    await session.cancel()


asyncio.run(chat())
