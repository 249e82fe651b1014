"""What the conformance tests share: a home on each broker, and models whose every step the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, TypeVar

import homes
import pytest
from eventually import eventually

import api_shim as agents
from broker.log import read_events
from broker.protocol.content import content_text
from workers.models import ModelDelta, ModelStop, ModelText, ModelToolCall, ModelUsage, UserMessage
from workers.scripted import replies_so_far

E = TypeVar("E")


class Gate:
    """Where a model or a tool waits for the test: `reached` is set when it is there, `open` lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def wait(self) -> None:
        """Be there, and wait."""
        self.reached.set()
        await self.open.wait()


class StepModel:
    """A model that takes steps: it writes, calls, waits for the test (a Gate) or fails, and keeps what it was asked.

    Which reply is given depends on how many replies the conversation holds; `tries` counts how often each was asked for.
    Past the last one it says "done". Steps are texts, `ScriptedCall`, `TokenUsage`, `ModelError`, `Gate` and deltas. A reply
    that is a list of lists gives its first list at the first try, and so on.
    """

    def __init__(self, *replies: Sequence[Any]) -> None:
        self._replies = replies
        self.requests: list[agents.ModelRequest] = []
        self.tries: dict[int, int] = {}

    def _steps(self, at: int) -> Sequence[Any]:
        if at >= len(self._replies):
            return ["done"]
        tries = self.tries.get(at, 0)
        self.tries[at] = tries + 1
        reply = self._replies[at]
        if reply and isinstance(reply[0], list):
            reply = reply[min(tries, len(reply) - 1)]
        return reply

    async def stream(self, request: agents.ModelRequest) -> AsyncIterator[ModelDelta]:
        """Yield the deltas of the reply that is due."""
        self.requests.append(request)
        at = replies_so_far(request)
        calls = 0
        for step in self._steps(at):
            match step:
                case str():
                    yield ModelText(step)
                case agents.ScriptedCall(name, arguments, call_id):
                    calls += 1
                    yield ModelToolCall(call_id or f"call_{at + 1}_{calls}", name, arguments)
                case agents.TokenUsage():
                    yield ModelUsage(step)
                case Gate():
                    await step.wait()
                case agents.ModelError():
                    raise step
                case _:
                    yield step
        yield ModelStop("tool_calls" if calls else "end")

    def user_texts(self, request: int = -1) -> list[str]:
        """The texts of people that one request held."""
        return [
            content_text(message.content)
            for message in self.requests[request].messages
            if isinstance(message, UserMessage)
        ]


def call(name: str, **arguments: Any) -> agents.ScriptedCall:
    """A call of the tool `name`."""
    return agents.ScriptedCall(f"client.{name}", arguments)


@agents.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@agents.client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the person for a color."""


class Home(homes.Home):
    """A home with agents that ask."""

    async def asking(self, *replies: Any, **options: Any) -> agents.Agent:
        """Make an agent that calls `add` and asks before each call; by default once, and then says "done"."""
        steps = replies or ([call("add", a=1, b=2)],)
        return await self.agent(StepModel(*steps), **{"tools": [add], "permission_mode": "ask", **options})


@pytest.fixture(name="home", params=["embedded", "redis"])
async def home_fixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """Each of the two brokers in turn, under a prefix of its own."""
    async for home in homes.opened(Home, request, monkeypatch):
        yield home


# Reading.


async def stored(session: agents.Session) -> list[agents.Event]:
    """Every event that the session has stored so far."""
    place = await session._place()
    return [event async for event in read_events(place.broker, session.id)]


def _entry_word(entry: agents.HistoryEntry) -> str:
    match entry:
        case agents.MessageEntry(role):
            return role
        case agents.ToolCallEntry():
            return "call"
        case agents.ToolResultEntry():
            return "result"
        case agents.UnknownEntry(kind):
            return kind


def word(event: agents.Event) -> str:
    """An event in one or two words."""
    match event:
        case agents.EntryAdded(entry):
            return f"+{_entry_word(entry)}"
        case agents.EntryCompleted(entry):
            return f"={_entry_word(entry)}"
        case agents.TurnUpdated(status) | agents.SessionUpdated(status):
            return f"{type(event).__name__.removesuffix('Updated').lower()} {status}"
        case agents.TurnEnded(state):
            return f"ended {type(state).__name__}"
        case _:
            return type(event).__name__


def words(events: Iterable[agents.Event]) -> str:
    """Events in their order, in words; the deltas of one message are one word."""
    said: list[str] = []
    for event in events:
        if not (isinstance(event, agents.TextDelta) and said[-1:] == ["TextDelta"]):
            said.append(word(event))
    return " | ".join(said)


STARTED = "+user | =user | TurnStarted | session running"
REPLIED = "+assistant | TextDelta | =assistant"
ASKED = "+call | =call | CallbackOpened | turn blocked"
ANSWERED = "CallbackResolved | turn running"
ENDED = "turn terminated | ended Completed | session waiting"


def spelled(*parts: str) -> str:
    """Parts of a log, joined."""
    return " | ".join(parts)


def entries_of(events: Iterable[agents.Event], kind: type[E]) -> list[E]:
    """The completed entries of one class."""
    found = [event.entry for event in events if isinstance(event, agents.EntryCompleted)]
    return [entry for entry in found if isinstance(entry, kind)]


def lasting(events: list[agents.Event]) -> list[agents.Event]:
    """What every reader gets: all but the deltas."""
    return [event for event in events if not isinstance(event, agents.TextDelta)]


def expect_pairs(events: Sequence[agents.Event]) -> None:
    """Each EntryAdded has exactly one EntryCompleted, after it; and each call its result."""
    for entry_id in {
        event.entry.id for event in events if isinstance(event, agents.EntryAdded | agents.EntryCompleted)
    }:
        of = [
            type(event).__name__
            for event in events
            if isinstance(event, agents.EntryAdded | agents.EntryCompleted) and event.entry.id == entry_id
        ]
        assert of == ["EntryAdded", "EntryCompleted"]
    calls = [entry.tool_call_id for entry in entries_of(events, agents.ToolCallEntry)]
    results = [entry.tool_call_id for entry in entries_of(events, agents.ToolResultEntry)]
    assert sorted(calls) == sorted(results)
    asked = [event.callback.id for event in events if isinstance(event, agents.CallbackOpened)]
    assert sorted(asked) == sorted(event.callback_id for event in events if isinstance(event, agents.CallbackResolved))


# Turns.


def started(turn: agents.Turn | agents.Busy) -> agents.Turn:
    """The turn of a send that was not refused."""
    assert isinstance(turn, agents.Turn)
    return turn


def done(state: object) -> agents.Completed[Any]:
    """The record of a turn that is done."""
    assert isinstance(state, agents.Completed), state
    return state


def blocked(state: object) -> agents.Blocked:
    """The record of a turn that waits."""
    assert isinstance(state, agents.Blocked), state
    return state


async def opened(turn: agents.Turn) -> agents.OpenCallback:
    """The first callback that a turn waits for."""
    return blocked(await turn.result()).callbacks[0]


async def seen(session: agents.Session, sign: str) -> None:
    """Wait until the log holds an event, named by its word."""

    async def look() -> str:
        return words(await stored(session))

    await eventually(look, f"the log holds {sign}", until=lambda said: sign in said.split(" | "))
