"""A worker process that can be made to stand still: `python standing_agents.py`. It says each write that it is about to send.

`TURNSTREAM_TEST_STAND` names a fault point at which it stops itself (SIGSTOP) at the first passing; a message names what its one
tool does: `spin S` computes on the worker's loop, `hold S` holds the interpreter's lock, so that not even threads run, `stop`
stops the process, `sleep S` waits.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from fleet_agents import count

import api_shim as agents
from broker import fault_points
from broker.broker import Broker
from broker.settings import Settings
from workers import renewal
from workers.logging import configure_logging
from workers.scripted import last_user_text
from workers.worker import TurnWorker

WRITES = ("append", "park", "finish", "spawn", "release")


@agents.tool
async def stand(how: str, seconds: float) -> str:
    """Stand still."""
    await count("begun")
    match how:
        case "spin":
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
        case "hold":
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            await asyncio.sleep(seconds)
    return f"stood still: {how}"


def script(request: agents.ModelRequest) -> agents.ScriptedReply:
    """Call the tool as the message says; `hello` is answered."""
    text = last_user_text(request)
    how, _, seconds = text.partition(" ")
    if how == "hello" or type(request.messages[-1]).__name__ == "ToolMessage":
        return agents.ScriptedReply(text=f"Done: {text}")
    arguments: agents.JsonValue = {"how": how, "seconds": float(seconds or 0)}
    return agents.ScriptedReply(calls=[agents.ScriptedCall("client.stand", arguments)])


stander = agents.Agent(name="stander", model=agents.ScriptedModel(script), tools=[stand])


def _say(what: str) -> None:
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()


def _saying(write: str) -> Callable[[], Awaitable[None]]:
    async def say() -> None:
        _say(f"sends {write}")

    return say


async def _stand_once() -> None:
    fault_points.armed.pop(os.environ["TURNSTREAM_TEST_STAND"])
    _say("stands")
    os.kill(os.getpid(), signal.SIGSTOP)
    _say("goes on")


async def main() -> None:
    """Work, until killed."""
    renewal.WEDGED_S = float(os.environ.get("TURNSTREAM_TEST_WEDGED", "60"))  # type: ignore[misc] # a Final that tests shorten
    for write in WRITES:
        fault_points.arm(f"{write}.before", _saying(write))
    if at := os.environ.get("TURNSTREAM_TEST_STAND"):
        fault_points.arm(at, _stand_once)
    configure_logging(json=True)
    await TurnWorker(Broker(Settings()), [stander.definition]).main()


if __name__ == "__main__":
    asyncio.run(main())
