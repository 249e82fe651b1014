"""Client processes of these tests: `python clients.py ROLE …`. They print one line of JSON for each thing that happened."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import api_shim as agents
from broker import transitions


def say(value: Any) -> None:
    """Print a line for the test."""
    print(json.dumps(value), flush=True)


async def told() -> str:
    """Wait for a line from the test."""
    line: str = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return line.strip()


async def answer_race(session_id: str, callback_id: str, count: int, first: int) -> None:
    """Have `count` clients read a callback as open, wait for the test, and answer it all at once, each differently."""
    go, at_barrier = asyncio.Event(), 0
    send = transitions.answer

    async def after_barrier(*arguments: Any, **options: Any) -> Any:
        nonlocal at_barrier
        at_barrier += 1
        if at_barrier == count:
            say("read")
        await go.wait()
        return await send(*arguments, **options)

    transitions.answer = after_barrier
    turn = agents.session(session_id).turn("any")
    # A process sends in this order, so its first answer is the one that may win: `first` 0 lets that be a yes.
    answers: list[Any] = [
        agents.DenyApproval(f"reason {n}") if (n + first) % 2 else agents.AllowApproval() for n in range(count)
    ]
    tasks = [asyncio.create_task(turn.answer(callback_id, answer)) for answer in answers]
    await told()
    go.set()
    for outcome in await asyncio.gather(*tasks):
        say([type(outcome).__name__, repr(getattr(outcome, "answer", None)), getattr(outcome, "session_id", None)])


async def send_many(session_id: str, how: str, count: int) -> None:
    """Send `count` messages at once, when the test says so."""
    session = agents.session(session_id)
    say("ready")
    await told()
    send = session.send_message if how == "message" else session.start_turn
    for sent in await asyncio.gather(*(send(f"tool 30 {n}") for n in range(count))):
        if isinstance(sent, agents.Busy):
            say(["Busy", sent.turn.id])
        else:
            say(["started" if sent.started else "joined", sent.id])


async def observe(session_id: str, after: str, limit: int) -> None:
    """Print `limit` events after a cursor ('' = from the start; limit 0 = all), then that no worker's code was loaded."""
    count = 0
    async for event in agents.session(session_id).iter_events(after=after or None):
        say([event.id, type(event).__name__])
        count += 1
        if count == limit:
            break
    say(sorted(name for name in sys.modules if name.startswith("workers")))


async def observe_many(count: int, session_ids: list[str]) -> None:
    """Follow sessions with `count` observers; once all have read what is there, say so; at the end, say what each saw."""
    seen: list[list[str]] = [[] for _ in range(count)]
    started = 0

    async def one(at: int) -> None:
        nonlocal started
        async for event in agents.session(session_ids[at % len(session_ids)]).iter_events():
            if not seen[at]:
                started += 1
                if started == count:
                    say("following")
            if not isinstance(event, agents.TextDelta):
                seen[at].append(event.id)

    await asyncio.gather(*(one(at) for at in range(count)))
    say(seen)


async def approve(count: int) -> None:
    """Answer every approval of the sessions whose ids the test sends, each with yes."""

    async def one(session_id: str) -> int:
        answered = 0
        session = agents.session(session_id)
        async for event in session.iter_events():
            if isinstance(event, agents.CallbackOpened) and event.turn_id is not None:
                outcome = await session.turn(event.turn_id).answer(event.callback.id, agents.AllowApproval())
                answered += isinstance(outcome, agents.Answered)
        return answered

    say("ready")
    tasks = [asyncio.create_task(one(await told())) for _ in range(count)]
    say(sum(await asyncio.gather(*tasks)))


async def interrupt(session_id: str, turn_id: str) -> None:
    """Interrupt a turn."""
    outcome = await agents.session(session_id).turn(turn_id).interrupt()
    say(type(outcome).__name__)


async def idle(session_id: str, seconds: float) -> None:
    """Observe a session on which nothing happens; say the CPU time that took."""
    import time

    events = agents.session(session_id).iter_events()
    first = await anext(events)
    say(first.id)
    before = time.process_time()
    upcoming = asyncio.ensure_future(anext(events))
    done, _ = await asyncio.wait({upcoming}, timeout=seconds)
    say([len(done), time.process_time() - before])
    say((await upcoming).id)


def main() -> None:
    role, *rest = sys.argv[1:]
    match role:
        case "race":
            asyncio.run(answer_race(rest[0], rest[1], int(rest[2]), int(rest[3])))
        case "send":
            asyncio.run(send_many(rest[0], rest[1], int(rest[2])))
        case "observe":
            asyncio.run(observe(rest[0], rest[1], int(rest[2])))
        case "observe-many":
            asyncio.run(observe_many(int(rest[0]), rest[1:]))
        case "approve":
            asyncio.run(approve(int(rest[0])))
        case "interrupt":
            asyncio.run(interrupt(rest[0], rest[1]))
        case "idle":
            asyncio.run(idle(rest[0], float(rest[1])))
        case _:
            raise SystemExit(f"no role {role!r}")


if __name__ == "__main__":
    main()
