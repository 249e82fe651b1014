"""Context messages: what your application tells the model beside what the person said.

    python examples/context_messages.py

It prints:

    the chat shows: What should I wear?
    the log has: user, context (input), assistant
    the model read: [The person is in Oslo. It is snowing.] What should I wear?
    the model read: [The person is in Rome.] And here?
"""

from __future__ import annotations

import asyncio

import api_shim as agents


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    note, question = request.messages[-2:]  # the context stands before the message that it was sent with
    assert isinstance(note, agents.ContextNote)
    assert isinstance(question, agents.UserMessage)
    return agents.ScriptedReply(text=f"[{note.text}] {question.text}")


stylist = agents.Agent(name="stylist", model=agents.ScriptedModel(script))


async def main() -> None:
    session = await stylist.start_session()
    turn = await session.send_message(
        [
            {"type": "text", "text": "What should I wear?"},
            {"type": "context", "text": "The person is in Oslo. It is snowing."},
        ]
    )
    record = await turn.result()
    kinds = []
    async for entry in session.history():
        match entry:
            case agents.ContextMessage(kind=kind):  # no MessageEntry: a chat does not show it as said by anyone
                kinds.append(f"context ({kind})")
            case agents.MessageEntry(role="user"):
                print("the chat shows:", entry.text)
                kinds.append("user")
            case agents.MessageEntry(role):
                kinds.append(role)
    print("the log has:", ", ".join(kinds))
    print("the model read:", record.text)

    turn = await session.send_message(
        [{"type": "text", "text": "And here?"}, {"type": "context", "text": "The person is in Rome."}]
    )
    print("the model read:", (await turn.result()).text)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
