"""History import: a session that goes on where another system left off.

    python examples/history_import.py

It prints:

    None system: Be brief.
    None user: What is the status of order A-17?
    None calls orders.status {'id': 'A-17'}
    None orders.status: {"status":"shipped"}
    None assistant: It has shipped.
    None checkpoint: crm:ticket {'id': 4711}
    turn user: And when does it come?
    turn assistant: Tomorrow. (I read 6 messages.)
"""

from __future__ import annotations

import asyncio
from typing import Any

import api_shim as agents

# As another system exported it: the classes agents.HistoryImport…, or mappings of them in snake_case or camelCase.
EXPORT: list[Any] = [
    {"type": "message", "role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    agents.HistoryImportMessage(
        role="user", content=[agents.TextContentBlock(text="What is the status of order A-17?")]
    ),
    {"type": "tool_call", "toolCallId": "c1", "toolKind": "mcp", "name": "orders.status", "arguments": {"id": "A-17"}},
    {"type": "tool_result", "toolCallId": "c1", "name": "orders.status", "result": {"status": "shipped"}},
    {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "It has shipped."}]},
    agents.HistoryImportSnapshot(task_name="crm", snapshot_type="ticket", value={"id": 4711}),  # not for the model
]


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    return agents.ScriptedReply(text=f"Tomorrow. (I read {len(request.messages)} messages.)")


courier = agents.Agent(name="courier", model=agents.ScriptedModel(script))


async def main() -> None:
    session = await courier.start_session(history=EXPORT)
    await session.run("And when does it come?")
    async for entry in session.history():
        when = "turn" if entry.turn_id else "None"  # what was imported belongs to no turn
        match entry:
            case agents.MessageEntry(role):
                print(f"{when} {role}: {entry.text}")
            case agents.ToolCallEntry(name, arguments):
                print(f"{when} calls {name} {arguments}")
            case agents.ToolResultEntry(name):
                print(f"{when} {name}: {entry.text}")
            case agents.UnknownEntry(kind, raw):
                print(f"{when} {kind}: {raw['message']} {raw['details']}")
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
