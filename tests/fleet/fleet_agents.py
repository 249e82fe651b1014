"""The agents that the worker processes of these tests serve. What a message says decides what the model does."""

from __future__ import annotations

import asyncio
import os
import time

import redis.asyncio as aioredis

import api_shim as agents
from workers.scripted import last_user_text


async def count(name: str) -> None:
    """Count something where the test can see it."""
    client = aioredis.Redis.from_url(os.environ["TURNSTREAM_REDIS_URL"])
    try:
        await client.incr(f"{os.environ['TURNSTREAM_PREFIX']}effect:{name}")
    finally:
        await client.aclose()


@agents.tool
async def pay(key: str) -> str:
    """Have an effect that can be counted."""
    client = aioredis.Redis.from_url(os.environ["TURNSTREAM_REDIS_URL"])
    try:
        await client.incr(f"{os.environ['TURNSTREAM_PREFIX']}effect:{key}")
    finally:
        await client.aclose()
    return f"paid {key}"


@agents.tool
async def wait_long(seconds: float) -> str:
    """Run for a while, on the worker's loop."""
    await count("begun")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await asyncio.shield(count("stopped"))
        raise
    return "waited"


@agents.tool
def block(seconds: float) -> str:
    """Run for a while, in a thread."""
    time.sleep(seconds)
    return "blocked"


@agents.tool
def compute(seconds: float) -> str:
    """Keep the interpreter busy for a while, in a thread."""
    until, steps = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        steps += 1
    return "computed"


TAKE_TIME = {"tool": "client.wait_long", "thread": "client.block", "busy": "client.compute"}


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Echo a message, but for those of a few words.

    `ask KEY` pays; `tool S`, `thread S`, `busy S` and `think S` take S seconds; `stream N` writes N words; `delegate MESSAGE` has
    a subagent do it.
    """
    text = last_user_text(request)
    word, _, rest = text.partition(" ")
    if type(request.messages[-1]).__name__ == "ToolMessage":
        return agents.ScriptedReply(text=f"Done: {text}")
    match word:
        case "ask":
            return agents.ScriptedReply(calls=[agents.ScriptedCall("client.pay", {"key": rest})])
        case "tool" | "thread" | "busy":
            seconds = float(rest.split()[0])
            return agents.ScriptedReply(calls=[agents.ScriptedCall(TAKE_TIME[word], {"seconds": seconds})])
        case "delegate":
            return agents.ScriptedReply(calls=[agents.ScriptedCall("agents.spawn", {"agent": "helper", "task": rest})])
        case "think":
            return agents.ScriptedReply(chunks=["thought"], delay=float(rest))
        case "stream":
            return agents.ScriptedReply(chunks=["word "] * int(rest), delay=0.002)
        case _:
            return agents.ScriptedReply(text=f"You said: {text}")


helper = agents.Subagent(name="helper", description="Does as the clerk does.", subagents=[])

clerk = agents.Agent(
    name="clerk",
    subagents=[helper],
    model=agents.ScriptedModel(script),
    tools=[pay, wait_long, block, compute],
    permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.pay"], decision="ask")]),
)
