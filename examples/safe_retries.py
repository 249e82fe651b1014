"""Safe retries: a send with a key of yours is applied once, however often it is sent.

    python examples/safe_retries.py

It prints:

    the same session: True
    the same turn: True
    messages of the person: 1
    the key with something else: SessionIdempotencyConflictError
    after the session's end the key still finds its turn: True
"""

from __future__ import annotations

import asyncio
import uuid

import api_shim as agents

orders = agents.Agent(name="orders", model="scripted:echo")


async def main() -> None:
    # A web hook that may come twice, in two processes: both open the same session, and send the same message once.
    order = f"order-{uuid.uuid4()}"
    session = await orders.start_session(title="An order", idempotency_key=order)
    again = await orders.start_session(title="An order", idempotency_key=order)
    print("the same session:", session == again)

    first = await session.send_message("It was paid.", idempotency_key="event-1")
    await first.result()
    second = await again.send_message("It was paid.", idempotency_key="event-1")
    print("the same turn:", first == second)
    messages = [entry async for entry in session.history() if isinstance(entry, agents.MessageEntry)]
    print("messages of the person:", sum(message.role == "user" for message in messages))

    try:
        await session.send_message("It was cancelled.", idempotency_key="event-1")
    except agents.SessionIdempotencyConflictError as conflict:
        print("the key with something else:", type(conflict).__name__)

    await session.cancel()
    late = await session.send_message("It was paid.", idempotency_key="event-1")
    print("after the session's end the key still finds its turn:", late == first)


if __name__ == "__main__":
    asyncio.run(main())
