"""An audit log: an observer that keeps its cursor in a file, so that it may be stopped and started and misses nothing.

    python examples/audit_log.py SESSION [FILE]      follow a session of TURNSTREAM_REDIS_URL into FILE (audit.jsonl)
    python examples/audit_log.py                     a session of its own, followed in two parts

It prints, without SESSION:

    stopped after 3 events
    in the end there are 24 events, the last one SessionUpdated

It imports no worker code: observing a session needs neither tools nor models.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import api_shim as agents


def last_cursor(file: Path) -> str | None:
    """Return the cursor of the last event that was written."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return str(json.loads(lines[-1])["id"]) if lines else None


async def follow(session: agents.Session, file: Path, enough: Callable[[agents.Event], bool]) -> None:
    """Append each event to the file, from where the file ends, until `enough` or the session's end."""
    with file.open("a", encoding="utf-8") as out:
        async for event in session.iter_events(after=last_cursor(file)):
            if isinstance(event, agents.TextDelta):
                continue  # live only: the completed entry has the text
            out.write(json.dumps({"id": event.id, "turn": event.turn_id, "event": type(event).__name__}) + "\n")
            out.flush()
            if enough(event):
                return


async def demonstrate(file: Path) -> None:
    """Follow a session until its turn starts, stop, and go on from the file."""
    from reviewer import payment_reviewer  # here: who only observes needs no agent

    session = await payment_reviewer.start_session()
    await session.run("Review transaction monitoring alert 4711.")
    await follow(session, file, lambda event: isinstance(event, agents.TurnStarted))
    print("stopped after", len(file.read_text(encoding="utf-8").splitlines()), "events")
    await session.cancel()
    await follow(session, file, lambda _: False)
    events = [json.loads(line)["event"] for line in file.read_text(encoding="utf-8").splitlines()]
    print(f"in the end there are {len(events)} events, the last one {events[-1]}")


def main() -> None:
    if len(sys.argv) > 1:
        file = Path(sys.argv[2] if len(sys.argv) > 2 else "audit.jsonl")
        asyncio.run(follow(agents.session(sys.argv[1]), file, lambda _: False))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(demonstrate(Path(folder) / "audit.jsonl"))


if __name__ == "__main__":
    main()
