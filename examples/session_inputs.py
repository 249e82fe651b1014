"""Session inputs: who the session is for. Tools and hooks read it, the model never sees it.

    python examples/session_inputs.py

It prints:

    the model may choose: ['status']
    for Ada: 2 open orders
    for nobody: session input 'customer' was not given when the session started
    for a wrong one: session input customer.plan: Input should be 'free' or 'pro'
"""

from __future__ import annotations

import asyncio
from typing import Annotated, ClassVar, Literal

import api_shim as agents


class Customer(agents.SessionInput):
    """The customer that a session is with. Never put a password or a token in: the session keeps it."""

    input_id: ClassVar[str] = "customer"
    name: str
    plan: Literal["free", "pro"] = "free"


ORDERS = {"Ada": {"open": 2, "paid": 5}}


@agents.tool
def count_orders(status: str, customer: Annotated[Customer, agents.Depends()]) -> str:
    """Count the customer's orders."""
    return f"{ORDERS[customer.name][status]} {status} orders"


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    last = request.messages[-1]
    if isinstance(last, agents.ToolMessage):
        return agents.ScriptedReply(text=last.text)
    return agents.ScriptedReply(calls=[agents.ScriptedCall("client.count_orders", {"status": "open"})])


clerk = agents.Agent(name="clerk", tools=[count_orders], model=agents.ScriptedModel(script))


async def ask(who: str, inputs: dict[str, object]) -> None:
    state = await clerk.run("How many orders are open?", session_inputs=inputs)
    print(f"for {who}: {state.text}")


async def main() -> None:
    print("the model may choose:", list(count_orders.spec.parameters["properties"]))
    await ask("Ada", {"customer": Customer(name="Ada", plan="pro")})
    await ask("nobody", {})
    # A mapping does as well. It is checked where it is used, and that use fails: the value is in no message and in no log.
    await ask("a wrong one", {"customer": {"name": "Bob", "plan": "gold"}})


if __name__ == "__main__":
    asyncio.run(main())
