"""Structured output: the agent asks its model for a shape, and the record's `output` is an object of it.

    python examples/structured_output.py

It prints:

    ACME bills 119.00 EUR for 3 lines
    no invoice (lines: Field required): {"vendor": "Globex"}
    a shape for one call: Globex, by e-mail
"""

from __future__ import annotations

import asyncio
from decimal import Decimal

from pydantic import BaseModel

import api_shim as agents


class Invoice(BaseModel):
    vendor: str
    lines: int
    euros: Decimal


class Sender(BaseModel):
    name: str
    channel: str


invoice_reader = agents.Agent(
    name="invoice_reader",
    instructions="Read the invoice.",
    output_type=Invoice,  # asks the model for this schema, and parses what comes
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(text='{"vendor": "ACME", "lines": 3, "euros": "119.00"}'),
            agents.ScriptedReply(text='{"vendor": "Globex"}'),
            agents.ScriptedReply(text='{"name": "Globex", "channel": "e-mail"}'),
        ]
    ),
)


async def read(session: agents.Session, text: str) -> None:
    match await session.run(text):
        case agents.Completed(Invoice(vendor=vendor, lines=lines, euros=euros)):
            print(f"{vendor} bills {euros} EUR for {lines} lines")
        case agents.Completed(agents.InvalidOutput(error, text)):  # a value to match on, never an exception
            print(f"no invoice ({error}): {text}")
        case other:
            print("not completed:", other)


async def main() -> None:
    session = await invoice_reader.start_session()
    await read(session, "ACME Ltd, 3 lines, total EUR 119.00")
    await read(session, "Globex: we'll send it later.")

    # `output_type` of a call only parses: the agent still asks its model for what it is made for.
    match await session.run("Who wrote that, and how?", output_type=Sender):
        case agents.Completed(Sender(name=name, channel=channel)):
            print(f"a shape for one call: {name}, by {channel}")
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
