"""The agents of the chaos run. A message says what the model does: `plan {"key", "steps"}`, one reply for each step.

This module runs under the code of HEAD and of the foundation, and so names nothing that only one of them has.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any, Final

import ledger

import api_shim as agents
from broker.protocol.content import content_text
from workers.models import AssistantMessage, UserMessage

LARGE: Final = "All of it is said at length. " * 2600
"""Over 64 KiB: it is stored once, beside the log."""


@agents.tool(retry_safe=os.environ.get("CHAOS_PLANT") == "twice")
async def run(key: str, seconds: float, seen: int = 0) -> str:
    """Have an effect that must not come twice."""
    ledger.enter("run", key)
    await asyncio.sleep(seconds)
    return f"ran {key}"


@agents.tool(retry_safe=True)
async def again(key: str, seconds: float, seen: int = 0) -> str:
    """Have an effect that may come twice."""
    ledger.enter("again", key)
    await asyncio.sleep(seconds)
    return f"ran {key}"


@agents.tool
def thread(key: str, seconds: float, seen: int = 0) -> str:
    """Have an effect in a thread."""
    ledger.enter("thread", key)
    time.sleep(seconds)
    return f"ran {key}"


@agents.tool
async def block(key: str, seconds: float, seen: int = 0) -> str:
    """Have an effect, and hold up the worker's loop, past its lease perhaps."""
    ledger.enter("block", key)
    time.sleep(seconds)  # noqa: ASYNC251 - as users' tools do
    return f"ran {key}"


@agents.tool
def busy(key: str, seconds: float, seen: int = 0) -> str:
    """Have an effect, and keep the interpreter busy."""
    ledger.enter("busy", key)
    until, steps = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        steps += 1
    return f"ran {key}"


@agents.tool
async def ask(key: str, seconds: float, seen: int = 0) -> str:
    """Have an effect that a person allows first."""
    ledger.enter("ask", key)
    await asyncio.sleep(seconds)
    return f"ran {key}"


@agents.tool
async def fail(key: str, seconds: float, seen: int = 0) -> str:
    """Have an effect, and fail."""
    ledger.enter("fail", key)
    await asyncio.sleep(seconds)
    raise RuntimeError(f"failed {key}")


@agents.tool
async def large(key: str, seconds: float, seen: int = 0) -> str:
    """Give back much."""
    ledger.enter("large", key)
    await asyncio.sleep(seconds)
    return f"ran {key}: {LARGE}"


@agents.client_tool
def client(key: str, seconds: float, seen: int = 0) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the client."""


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Give the reply of the last plan's next step: its number is how many replies stand after the plan."""
    plan: dict[str, Any] | None = None
    done = 0
    for message in request.messages:
        if isinstance(message, UserMessage) and (text := content_text(message.content)).startswith("plan "):
            plan, done = json.loads(text.removeprefix("plan ")), 0
        elif isinstance(message, AssistantMessage):
            done += 1
    if plan is None:
        return agents.ScriptedReply(text="There is no plan.")
    key, steps = f"{plan['key']}.{done}", plan["steps"]
    if done >= len(steps):
        return agents.ScriptedReply(text=f"Done: {plan['key']}", delay=0.002)
    word, *rest = steps[done]
    if word == "say":
        # A reply of text alone ends a turn: a call that asks for nothing keeps it going.
        words = [f"{key}:{at} " for at in range(rest[0])]
        call = agents.ScriptedCall("client.again", {"key": f"{key}.say", "seconds": 0.0})
        return agents.ScriptedReply(chunks=words, delay=rest[1], calls=[call])
    calls = [_call(f"{key}.{at}", kind, value) for at, (kind, value) in enumerate(rest)]
    return agents.ScriptedReply(text="Let me see.", calls=calls)


def _call(key: str, kind: str, value: Any) -> agents.ScriptedCall:
    if kind == "spawn":
        task = "plan " + json.dumps({"key": key, "steps": value})
        return agents.ScriptedCall("agents.spawn", {"agent": "helper", "task": task})
    return agents.ScriptedCall(f"client.{kind}", {"key": key, "seconds": value})


TOOLS: Final = (run, again, thread, block, busy, ask, fail, large, client)
POLICY: Final = agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.ask"], decision="ask")])

plain = agents.Agent(name="plain", model=agents.ScriptedModel(script), tools=TOOLS, permission_policy=POLICY)
