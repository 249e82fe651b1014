"""The guide's samples run unchanged but for their import line, on both brokers, and print events in its order.

Ids and the borders of deltas differ from run to run; the lines are compared without the ids, deltas joined.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
from pathlib import Path

from agents_for_tests import Home, home_fixture  # noqa: F401 - pytest finds the fixture `home` here

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLES = ROOT / "examples"
ENTRY = ["entry added: {0}", "entry completed: {0}"]
REASONING, CALL, RESULT = "UnknownEntry", "ToolCallEntry", "ToolResultEntry"

REVIEW = [
    "entry added: MessageEntry",
    "entry completed: MessageEntry",
    "turn started",
    "session: running",
    *[line.format(kind) for kind in (REASONING, CALL, RESULT) for line in ENTRY],
    *[line.format(kind) for kind in (REASONING, CALL, RESULT) for line in ENTRY],
    "entry added: UnknownEntry",
    "entry added: MessageEntry",
    "text",
    "entry completed: UnknownEntry",
    "entry completed: MessageEntry",
    "turn ended: Completed",
]
QUESTION = [
    "entry added: MessageEntry",
    "entry completed: MessageEntry",
    "turn started",
    "session: running",
    "entry added: UnknownEntry",
    "entry added: MessageEntry",
    "text",
    "entry completed: UnknownEntry",
    "entry completed: MessageEntry",
    "turn ended: Completed",
]


async def printed(home: Home, sample: str) -> list[str]:
    """The lines that a sample prints in a process of its own."""
    if home.url is not None:
        sys.path.insert(0, str(EXAMPLES))
        try:
            await home.serve(importlib.import_module("reviewer").payment_reviewer)
        finally:
            sys.path.remove(str(EXAMPLES))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"}
    if home.url is not None:
        environment["TURNSTREAM_REDIS_URL"] = home.url
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "guide" / f"{sample}.py"),
        env=environment,
        cwd=HERE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await asyncio.wait_for(running.communicate(), 30)
    assert (running.returncode, errors.decode()) == (0, "")
    return out.decode().splitlines()


def without_ids(lines: list[str]) -> tuple[list[str], list[str]]:
    """Events without their ids, the deltas that follow each other as one `text`; and the texts of all deltas."""
    said: list[str] = []
    texts: list[str] = []
    for line in lines:
        match = re.fullmatch(r"\S+-\S+:\d+-\d+(?:\.\d+)? (.*)", line)
        assert match is not None, line
        event = match[1]
        if event.startswith("text: "):
            texts.append(event)
            event = "text"
        if not (event == "text" and said[-1:] == ["text"]):
            said.append(event)
    return said, texts


async def test_show_prints_the_events_of_a_turn_in_the_documented_order(home: Home) -> None:
    said, texts = without_ids(await printed(home, "follow"))

    assert said == REVIEW
    assert texts[0] == "text: 'Alert '"


async def test_show_chat_prints_the_conversation(home: Home) -> None:
    lines = await printed(home, "chat")

    assert lines[:3] == [
        "user: Review transaction monitoring alert 4711.",
        "calling client.get_alert {'alert_id': '4711'}",
        "client.get_alert returned",
    ]
    assert lines[3].startswith("calling client.open_case {'alert_id': '4711', 'summary': 'Suspicious 9,800 EUR payment")
    assert lines[4] == "client.open_case returned"
    assert lines[-1].startswith("agent: Alert 4711 flags a suspicious 9,800 EUR payment")
    assert lines[-1].endswith("**CASE-4711** on it.")


async def test_a_replay_prints_the_same_with_the_first_delta_and_a_later_turn_is_followed_from_the_record(
    home: Home,
) -> None:
    lines = await printed(home, "replay")
    border = lines.index("---")
    end = next(at for at, line in enumerate(lines) if line.endswith("turn ended: Completed")) + 1
    live, replay, followed = lines[:end], lines[end:border], lines[border + 1 :]

    assert without_ids(live)[0] == without_ids(replay)[0] == REVIEW
    assert without_ids(replay)[1] == ["text: 'Alert '"]
    assert [line for line in replay if " text: " not in line] == [line for line in live if " text: " not in line]
    said, texts = without_ids(followed[:-1])
    assert said == QUESTION
    assert texts[0] == "text: 'CASE-'"
    assert followed[-1] == "CASE-4711"
