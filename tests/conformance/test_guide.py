"""The guide's samples run unchanged but for their import line, on both brokers, and print events in its order.

Ids and the borders of deltas differ from run to run; the lines are compared without the ids, deltas joined.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from agents_for_tests import (
    Gate,
    Home,
    StepModel,
    add,
    call,
    done,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    started,
    stored,
)
from eventually import eventually

import api_shim as agents

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


async def replayed(home: Home) -> tuple[list[str], list[str], list[str]]:
    """What the third and fourth sample print: the turn live, the turn read again, the second turn."""
    lines = await printed(home, "replay")
    border = lines.index("---")
    end = next(at for at, line in enumerate(lines) if line.endswith("turn ended: Completed")) + 1
    return lines[:end], lines[end:border], lines[border + 1 :]


async def test_a_turn_read_again_prints_the_same_with_at_most_the_first_delta(home: Home) -> None:
    live, replay, _ = await replayed(home)

    assert without_ids(live)[0] == without_ids(replay)[0] == REVIEW
    assert without_ids(replay)[1] == ["text: 'Alert '"]
    assert [line for line in replay if " text: " not in line] == [line for line in live if " text: " not in line]
    at = next(n for n, line in enumerate(replay) if " text: " in line)
    assert replay[at].split()[0] == replay[at - 1].split()[0]
    assert replay[at - 1].endswith("entry added: MessageEntry")


async def test_a_second_turn_is_followed_after_the_first_one_s_record(home: Home) -> None:
    _, _, followed = await replayed(home)
    said, texts = without_ids(followed[:-1])

    assert said == QUESTION
    assert texts[0] == "text: 'CASE-'"
    assert followed[-1] == "CASE-4711"


# The samples' functions, on other turns.


def functions_of(sample: str) -> dict[str, Any]:
    """What a sample defines, without its run."""
    source = (HERE / "guide" / f"{sample}.py").read_text().partition("asyncio.run(")[0]
    names: dict[str, Any] = {}
    exec(compile(source.replace("from reviewer import payment_reviewer\n", ""), sample, "exec"), names)  # noqa: S102 - the sample itself
    return names


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines printed since the last look, without the ids."""
    return [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]


async def test_show_prints_each_question_and_its_answer(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    agent = await home.asking([call("add", a=1, b=2)], [call("add", a=3, b=4)])
    session = await agent.start_session(on_approval=lambda _ctx, _request: agents.AllowApproval())
    done(await session.run("hi", on_event=functions_of("follow")["show"]))
    lines = lines_of(capsys)

    log = await stored(session)
    asked = [event.callback for event in log if isinstance(event, agents.CallbackOpened)]
    told = [line for line in lines if line.startswith(("waits for:", "answered:"))]
    assert told == [line for callback in asked for line in (f"waits for: {callback.title}", f"answered: {callback.id}")]
    assert lines.index(f"answered: {asked[0].id}") < lines.index("entry added: ToolResultEntry")


async def test_a_chat_that_missed_deltas_prints_the_whole_reply(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["Hel", gate, "lo you"]))).start_session()
    # Deltas are live only: another reader sees to it that this process is told of the session before its turn starts.
    await session.rename("watched")
    watching = session.iter_events()
    await anext(watching)
    live: list[agents.Event] = []
    running = asyncio.create_task(session.run("hi", on_event=live.append))
    await eventually(lambda: any(isinstance(event, agents.TextDelta) for event in live), "the reader is live")
    gate.open.set()
    await running
    await cast("AsyncGenerator[agents.Event, None]", watching).aclose()
    first, *later = [event for event in live if isinstance(event, agents.TextDelta)]
    show_chat = functions_of("chat")["show_chat"]

    def shown(events: Sequence[agents.Event]) -> str:
        for event in events:
            show_chat(event)
        return capsys.readouterr().out.partition("\n")[2]

    assert shown((await stored(session))[1:]) == "agent: Hello you\n"
    assert shown([event for event in live if event not in later]) == "agent: Hello you\n"
    assert shown([event for event in live if not isinstance(event, agents.TextDelta)]) == "agent: Hello you\n"
    assert shown([event for event in live if event != first]).endswith("\nagent: Hello you\n")


async def test_finished_calls_are_told_by_their_completed_results(home: Home) -> None:
    model = StepModel([call("add", a=1, b=2)], [call("add", a="one")], [call("nothing")])
    session = await (await home.agent(model, tools=[add])).start_session()
    told: list[tuple[str | None, bool]] = []

    def progress(event: agents.Event) -> None:
        match event:
            case agents.EntryCompleted(entry=agents.ToolResultEntry(name, is_error=is_error)):
                told.append((name, is_error))
            case agents.TurnEnded():
                assert len(told) == 3
            case _:
                pass

    done(await session.run("hi", on_event=progress))
    assert told == [("client.add", False), ("client.add", True), ("client.nothing", True)]


async def test_a_turn_is_followed_in_one_task_and_answered_in_another(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    show = functions_of("follow")["show"]
    agent = await home.asking([call("add", a=1, b=2)], ["ok"], [call("add", a=3, b=4)])
    session = await agent.start_session()

    async def follow(turn: agents.Turn) -> None:
        async for event in turn.iter_events():
            show(event)

    turn = started(await session.start_turn("hi"))
    alone = asyncio.create_task(follow(turn))
    await asyncio.wait({alone}, timeout=0.2)
    assert not alone.done(), "nobody answers: following alone stands still"
    assert lines_of(capsys)[-1].startswith("waits for:")
    handled = agent.session(session.id, on_approval=lambda _ctx, _request: agents.AllowApproval())
    done(await handled.turn(turn.id).result())
    await alone
    assert lines_of(capsys)[-1] == "turn ended: Completed"

    second = started(await handled.start_turn("again"))
    _, state = await asyncio.gather(follow(second), second.result())
    done(state)
    assert lines_of(capsys)[-1] == "turn ended: Completed"
