"""A model of your own: any object with `stream(request)` that yields deltas. This one flips a coin by a rule.

    python examples/own_model.py

It prints:

    reasoning: Someone wants a coin.
    calls client.flip {'seed': 7}
    reply: It is heads.
    tokens: 16 in, 6 out
    failed: the model is asleep (model_unavailable)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import api_shim as agents


@agents.tool
def flip(seed: int) -> str:
    """Flip a coin."""
    return "heads" if seed % 2 else "tails"


class Croupier:
    """It keeps nothing between calls: after a crash the same call is made again, by another process."""

    async def stream(self, request: agents.ModelRequest) -> AsyncIterator[agents.ModelDelta]:
        """Yield the reply piece by piece, as a real model sends it."""
        match request.messages[-1]:
            case agents.ToolMessage() as result:
                for piece in ("It ", "is ", f"{result.text}."):
                    yield agents.ModelText(piece)
            case agents.UserMessage(text=text) if "Wake up" in text:
                raise agents.ModelError("the model is asleep", code="model_unavailable")  # retryable=True tries again
            case _:
                yield agents.ModelReasoning("Someone wants a coin.")
                yield agents.ModelToolCall("call_1", "client.flip", {"seed": 7})
        yield agents.ModelUsage(agents.TokenUsage(input_tokens=8, output_tokens=3, total_tokens=11))
        yield agents.ModelStop("end")


casino = agents.Agent(name="casino", model=Croupier(), tools=[flip])


async def main() -> None:
    session = await casino.start_session()
    state = await session.run("Flip a coin.")
    async for entry in session.history():
        match entry:
            case agents.UnknownEntry(type="reasoning", raw=raw):
                print("reasoning:", raw["text"])
            case agents.ToolCallEntry(name, arguments):
                print("calls", name, arguments)
            case agents.MessageEntry(role="assistant"):
                print("reply:", entry.text)
    if isinstance(state, agents.Completed):
        print(f"tokens: {state.usage.input_tokens} in, {state.usage.output_tokens} out")
    match await session.run("Wake up!"):
        case agents.Failed(error):
            print(f"failed: {error.message} ({error.code})")
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
