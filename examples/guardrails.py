"""Guardrails: hooks that run first, and keep a turn from starting, send a reply back, or withdraw it.

    python examples/guardrails.py

It prints:

    > Is my ticket refundable?
    Yes, until 24 hours before departure.
    > Write my homework.
    (skipped)
    > Can I change the date?
    Yes, for a fee of 20 EUR.
    > Tell me about passenger Smith.
    (skipped)
"""

from __future__ import annotations

import asyncio

import api_shim as agents


class OnTopic(agents.Hook):
    """A travel agent's desk does not do everything that it is asked."""

    def pre_agent_turn(self, ctx: agents.HookContext) -> agents.Skip | None:
        asked = [message for message in ctx.messages if isinstance(message, agents.UserMessage)]
        return agents.skip("off topic") if "homework" in asked[-1].text else None


class SaysThePrice(agents.Hook):
    """A reply that mentions a fee says how much it is, and none speaks of other passengers."""

    def post_llm_call(self, ctx: agents.HookContext, reply: agents.HookReply) -> agents.Retry | agents.Reject | None:
        if "Smith" in reply.text:
            return agents.reject("personal data")  # the message entry is completed without content
        if "fee" in reply.text and "EUR" not in reply.text:
            return agents.retry("Say how much the fee is.")  # the same entry is written again
        return None


ANSWERS = {
    "Is my ticket refundable?": "Yes, until 24 hours before departure.",
    "Write my homework.": "The answer is 42.",
    "Can I change the date?": "Yes, for a fee.",
    "Say how much the fee is.": "Yes, for a fee of 20 EUR.",
    "Tell me about passenger Smith.": "Smith sits in row 7.",
}


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    return agents.ScriptedReply(text=ANSWERS[request.messages[-1].text])


desk = agents.Agent(name="travel_desk", guardrails=[OnTopic(), SaysThePrice()], model=agents.ScriptedModel(script))


async def main() -> None:
    session = await desk.start_session()
    for question in ANSWERS:
        if question.startswith("Say"):
            continue
        print(">", question)
        match await session.run(question):
            case agents.Completed(stop_reason="skipped"):
                print("(skipped)")  # output is None: the turn has nothing to say
            case agents.Completed(output):
                print(output)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
