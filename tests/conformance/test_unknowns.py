"""What a newer version stores: unknown types and values stay readable, keep their place, and stop nothing.

The records are appended by hand, as a worker of that version would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest
from agents_for_tests import (
    Home,
    StepModel,
    blocked,
    done,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    started,
    stored,
    words,
)

import api_shim as agents
from broker import runs, transitions
from broker.keys import new_id, new_session_id
from broker.protocol.wire import tail
from broker.runs import Write
from broker.scripting import Argument
from workers.models import ModelReasoning

UNKNOWN = "00000000-0000-4000-8000-000000000000"
OPENED = "2026-01-02T03:04:05+00:00"


class Newer:
    """A worker of a newer version: takes up a turn that nobody serves, and appends what the test says."""

    def __init__(self, home: Home) -> None:
        self.broker = home.broker
        self.session = agents.session(new_session_id(1))
        self._fence = new_id()
        self._op = 0

    async def begin(self, text: str = "hi") -> agents.Turn:
        """Open the session, start its turn and take it up."""
        options = transitions.SessionOptions(agent="newer", queue="newer", digest="-")
        await transitions.open_session(self.broker, self.session.id, options)
        self.turn = started(await self.session.start_turn(text))
        job = f"{{s0}}{self.broker.settings.prefix}{self.session.id}:{self.turn.id}:1"
        begun = await runs.begin(
            self.broker,
            self.session.id,
            job=job,
            turn=self.turn.id,
            wake=1,
            fence=self._fence,
            worker="test",
            after="0-0",
            page=1,
        )
        assert isinstance(begun, runs.Begun)
        return self.turn

    def _write(self, seen: str = "0-0") -> Write:
        self._op += 1
        return Write(self.session.id, self._fence, self._op, seen)

    async def append(self, *records: dict[str, Any]) -> None:
        """Append records of the turn."""
        effects: list[Argument] = []
        for record in records:
            effects += ["e", tail(record)]
        await runs.append(self.broker, self._write(), effects, budget=5.0)

    async def append_without_turn(self, *records: dict[str, Any]) -> None:
        """Append records that name no turn: between two appends of the worker, as another process would."""
        keys, client = self.broker.keys, self.broker.client
        for record in records:
            last = (await stored(self.session))[-1].id.rpartition(":")[2]
            n, _, ms = last.partition("-")
            await client.xadd(keys.of("log", self.session.id), {"e": b"{" + tail(record)}, id=f"{int(n) + 1}-{ms}")
            await cast("Awaitable[int]", client.hincrby(keys.of("session", self.session.id), "n", 1))

    async def ask(self, callback: dict[str, Any]) -> str:
        """Open a callback; return its id."""
        whole = {"id": new_id(), "title": "A question", "openedAt": OPENED, **callback}
        effects: list[Argument] = ["q", whole["id"], tail({"type": "callbackOpened", "callback": whole})]
        await runs.append(self.broker, self._write(), effects, budget=5.0)
        return str(whole["id"])

    async def end(self, **state: Any) -> None:
        """End the turn with this state."""
        await runs.finish(self.broker, self._write(""), tail({"type": "turnEnded", "state": state}), budget=5.0)


async def replayed(session: agents.Session) -> list[agents.Event]:
    """The stored events, after one live read of the same session has seen them too."""
    log = await stored(session)
    live = []
    async for event in session.iter_events():
        live.append(event)
        if event.id == log[-1].id:
            break
    assert live == log
    return log


async def test_an_unknown_event_is_given_with_its_data_and_reading_goes_on(home: Home) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    got: list[agents.Event] = []
    waiting = asyncio.create_task(turn.result(on_event=got.append))
    await newer.append({"type": "turnDreamt", "dreamOf": ["sheep"]})
    await newer.end(type="completed", text="ok")
    await waiting

    (event,) = [event for event in got if isinstance(event, agents.UnknownEvent)]
    assert event.turn_id is None
    assert event.type == "turnDreamt"
    assert event.raw["dreamOf"] == ["sheep"]
    assert event.raw["turnId"] == turn.id
    assert event in await replayed(newer.session)
    match event:
        case agents.UnknownEvent(kind, raw):
            assert (kind, raw) == (event.type, event.raw)


async def test_an_unknown_turn_status_keeps_the_wait_going(home: Home) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    got: list[agents.Event] = []
    waiting = asyncio.create_task(turn.result(on_event=got.append))
    await newer.append({"type": "turnUpdated", "status": "paused"})
    assert isinstance(await turn.get(), agents.Running)
    assert isinstance(await turn.result(timeout=0.05), agents.Running)
    assert not waiting.done()
    await newer.end(type="completed", text="ok")

    assert done(await waiting).text == "ok"
    (paused, _) = [event for event in got if isinstance(event, agents.TurnUpdated)]
    assert (paused.status, paused.turn_id) == (agents.UnknownValue("paused"), turn.id)


async def test_an_unknown_session_status_is_an_unknown_value_and_reading_goes_on(home: Home) -> None:
    newer = Newer(home)
    await newer.begin()
    await newer.append(
        {"type": "sessionUpdated", "status": "asleep", "title": "t", "archived": True},
        {"type": "notice", "message": "m", "level": "info", "source": None, "details": {"a": 1}},
    )

    asleep, notice = (await replayed(newer.session))[-2:]
    assert isinstance(asleep, agents.SessionUpdated)
    assert (asleep.status, asleep.title, asleep.archived) == (agents.UnknownValue("asleep"), "t", True)
    assert asleep.turn_id is None
    assert isinstance(notice, agents.Notice)
    assert (notice.details, notice.turn_id) == ({"a": 1}, newer.turn.id)


async def test_an_unknown_notice_level_is_an_unknown_value(home: Home) -> None:
    newer = Newer(home)
    await newer.begin()
    await newer.append({"type": "notice", "message": "m", "level": "loud"})

    match (await replayed(newer.session))[-1]:
        case agents.Notice(message, level=agents.UnknownValue(value), source=None, details=None):
            assert (message, value) == ("m", "loud")
        case other:
            raise AssertionError(other)


async def test_an_event_that_names_no_turn_has_none(home: Home) -> None:
    home.spoilt = True
    newer = Newer(home)
    await newer.begin()
    message = {"type": "message", "id": new_id(), "role": "system", "content": [{"type": "text", "text": "be kind"}]}
    await newer.append_without_turn(
        {"type": "callbackResolved", "callbackId": UNKNOWN},
        {"type": "notice", "message": "m", "level": "info"},
        {"type": "entryAdded", "entry": message},
        {"type": "entryCompleted", "entry": message},
    )

    events = (await replayed(newer.session))[-4:]
    assert words(events) == "CallbackResolved | Notice | +system | =system"
    assert [event.turn_id for event in events] == [None] * 4
    assert isinstance(events[3], agents.EntryCompleted)
    assert events[3].entry.turn_id is None


async def test_raw_of_an_entry_is_the_whole_object_in_camel_case(home: Home) -> None:
    newer = Newer(home)
    await newer.begin()
    entry = {"type": "checkpoint", "id": new_id(), "stepCount": 3, "nested": {"innerName": [1]}}
    await newer.append(
        {"type": "entryAdded", "entry": entry, "private": {"s": 1}},
        {"type": "entryCompleted", "entry": entry, "private": {"s": 1}},
    )
    await newer.end(type="completed", text="ok")
    model = StepModel([ModelReasoning("hm"), "ok"])
    agent = await home.agent(model, name="newer")
    done(await agent.session(newer.session.id).run("go on"))

    _, checkpoint, _, reasoning, _ = [entry async for entry in newer.session.history()]
    assert isinstance(checkpoint, agents.UnknownEntry)
    assert checkpoint.raw == entry
    assert isinstance(reasoning, agents.UnknownEntry)
    assert reasoning.raw == {"type": "reasoning", "id": reasoning.id, "text": "hm"}


async def test_an_unknown_entry_keeps_its_place_in_the_history(home: Home) -> None:
    newer = Newer(home)
    await newer.begin()
    plan = {"type": "plan", "id": new_id(), "stepCount": 3, "nested": {"a": [1]}}
    checkpoint = {"type": "checkpoint", "id": new_id(), "message": "task:kind", "details": {"k": 1}}
    await newer.append(
        {"type": "entryAdded", "entry": plan},
        {"type": "entryCompleted", "entry": plan},
        {"type": "entryAdded", "beside": True},
        {"type": "entryCompleted", "entry": checkpoint},
    )
    await newer.end(type="completed", text="ok")

    assert "+plan | =plan | +checkpoint | =checkpoint" in words(await replayed(newer.session))
    _, read, other = [entry async for entry in newer.session.history()]
    assert isinstance(read, agents.UnknownEntry)
    assert (read.id, read.turn_id, read.type, read.raw) == (plan["id"], newer.turn.id, "plan", plan)
    assert isinstance(other, agents.UnknownEntry)
    assert other.raw == checkpoint


async def test_a_message_of_another_agent_is_no_message_of_a_person(home: Home) -> None:
    newer = Newer(home)
    await newer.begin()
    entry = {
        "type": "message",
        "id": new_id(),
        "role": "user",
        "sender": {"agent": "boss"},
        "content": [{"type": "text", "text": "do it"}],
    }
    await newer.append({"type": "entryAdded", "beside": True}, {"type": "entryCompleted", "entry": entry})
    await newer.end(type="completed", text="ok")

    read = [entry async for entry in newer.session.history()][-1]
    assert isinstance(read, agents.UnknownEntry)
    assert read.type == "message"
    assert read.raw["sender"] == {"agent": "boss"}


async def test_an_unknown_block_is_kept_as_it_was_received(home: Home) -> None:
    newer = Newer(home)
    await newer.begin()
    block = {"type": "hologram", "uri": "h:1", "depthMm": 7}
    content = [{"type": "text", "text": "see "}, block, {"type": "text", "text": "this"}]
    entry = {"type": "message", "id": new_id(), "role": "assistant", "content": content}
    await newer.append({"type": "entryAdded", "beside": True}, {"type": "entryCompleted", "entry": entry})
    await newer.end(type="completed", text="ok")

    read = [entry async for entry in newer.session.history()][-1]
    assert isinstance(read, agents.MessageEntry)
    assert read.text == "see this"
    unknown: Any = read.content[1]
    assert isinstance(unknown, agents.UnknownContentBlock)
    assert (unknown.type, unknown.original_type) == ("unknown", "hologram")
    assert (unknown.uri, unknown.depthMm) == ("h:1", 7)
    with pytest.raises(ValueError, match=r"content\[0\]"):
        await newer.session.start_turn([unknown])  # type: ignore[list-item] # that is the point


@pytest.mark.parametrize(
    "state", [{"type": "evaporated", "text": "so far", "warmth": 9}, {"type": "interrupted", "text": "so far"}]
)
async def test_an_unknown_outcome_is_a_record_and_ends_the_wait(home: Home, state: dict[str, Any]) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    got: list[agents.Event] = []
    waiting = asyncio.create_task(turn.result(on_event=got.append))
    await newer.end(**state)
    record = await waiting

    assert isinstance(record, agents.UnknownOutcome)
    assert (record.outcome, record.text, record.raw) == (state["type"], "so far", state)
    assert isinstance(got[-1], agents.TurnEnded)
    assert got[-1].state == record == await turn.get()


async def test_an_unknown_cause_is_an_unknown_value(home: Home) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    await newer.end(type="interrupted", cause="bored", text="")
    record = await turn.result()

    assert isinstance(record, agents.Interrupted)
    assert record.cause == agents.UnknownValue("bored")


# Callbacks of kinds that only the next version opens.


async def test_an_unknown_callback_blocks_and_cannot_be_answered_here(home: Home) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    callback_id = await newer.ask({"type": "lottery", "prize": 7})
    (callback,) = blocked(await turn.result()).callbacks

    assert isinstance(callback, agents.UnknownOpenCallback)
    assert (callback.id, callback.type, callback.raw["prize"]) == (callback_id, "lottery", 7)
    assert callback.opened_at.isoformat() == OPENED
    with pytest.raises(agents.SdkError, match="lottery"):
        await turn.answer(callback_id, agents.AllowApproval())
    assert len(blocked(await turn.get()).callbacks) == 1


async def test_a_hook_s_approval_has_no_session_wide_scope(home: Home) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    request = {"tool": {"id": "client.add", "name": "add"}, "toolCallId": "c", "arguments": {}, "fromHook": True}
    callback_id = await newer.ask({"type": "approval", "request": request})
    (callback,) = blocked(await turn.result()).callbacks

    assert isinstance(callback, agents.OpenApproval)
    assert callback.request.from_hook
    with pytest.raises(agents.SdkError, match="session"):
        await turn.answer(callback_id, agents.AllowApproval(scope="session"))
    once = agents.AllowApproval()
    assert await turn.answer(callback_id, once) == agents.Answered(once, newer.session.id)


async def test_a_sign_in_takes_exactly_the_sources_that_were_asked(home: Home) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    sources = [
        {"sourceId": name, "title": name.title(), "url": f"https://{name}.example"} for name in ("notion", "git")
    ]
    callback_id = await newer.ask({"type": "signIn", "requests": sources})
    (callback,) = blocked(await turn.result()).callbacks
    assert isinstance(callback, agents.OpenSignIn)
    assert [request.source_id for request in callback.requests] == ["notion", "git"]

    wrong: list[object] = [
        agents.SignInAnswer(),
        agents.SignInAnswer(connected=("notion",)),
        agents.SignInAnswer(connected=("notion", "git", "other")),
        agents.SignInAnswer(connected=("notion", "git"), denied=("git",)),
        agents.AllowApproval(),
        True,
        None,
        {"connected": ["notion", "git"]},
    ]
    for answer in wrong:
        with pytest.raises(agents.SdkError):
            await turn.answer(callback_id, answer)
    good = agents.SignInAnswer(connected=("git",), denied=("notion",))
    assert await turn.answer(callback_id, good) == agents.Answered(None, newer.session.id)


async def test_a_sign_in_handler_answers_and_a_wrong_value_leaves_it_open(home: Home) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    sources = [{"sourceId": "notion", "title": "Notion", "url": "https://notion.example"}]
    await newer.ask({"type": "signIn", "requests": sources})
    given: list[object] = [True, agents.KeepCallbackOpen(), agents.SignInAnswer(connected=("notion",))]
    asked: list[object] = []

    async def sign_in(_ctx: object, requests: tuple[agents.SignInRequest, ...]) -> object:
        asked.append(requests)
        return given.pop(0)

    handled = agents.session(newer.session.id, on_sign_in=sign_in).turn(turn.id)
    with pytest.raises(agents.SdkError):
        await handled.result()
    blocked(await handled.result())
    assert isinstance(await handled.result(timeout=0.1), agents.Running)
    assert asked == [(agents.SignInRequest(source_id="notion", title="Notion", url="https://notion.example"),)] * 3
    assert words(await stored(newer.session)).endswith("CallbackResolved | turn running")


@pytest.mark.parametrize("name", ["connectors.notion.search", "mcp.files.read", "agents.spawn"])
async def test_no_client_answers_a_call_of_a_tool_that_runs_at_its_source(home: Home, name: str) -> None:
    newer = Newer(home)
    turn = await newer.begin()
    callback_id = await newer.ask({"type": "clientTool", "call": {"toolCallId": "c1", "name": name, "arguments": {}}})

    with pytest.raises(agents.SdkError, match=f"{name} is a tool that runs at its source"):
        await turn.answer(callback_id, "found")
    assert [callback.id for callback in blocked(await turn.result()).callbacks] == [callback_id]


# What this version's worker makes of it.


async def test_a_later_turn_goes_on_over_what_it_does_not_know(home: Home) -> None:
    newer = Newer(home)
    await newer.begin()
    plan = {"type": "plan", "id": new_id(), "stepCount": 3}
    await newer.append(
        {"type": "turnDreamt"},
        {"type": "entryAdded", "beside": True},
        {"type": "entryCompleted", "entry": plan},
        {"type": "turnUpdated", "status": "paused"},
    )
    await newer.end(type="evaporated")
    model = StepModel()
    agent = await home.agent(model, name="newer")

    done(await agent.session(newer.session.id).run("go on"))
    assert model.user_texts() == ["hi", "go on"]
    assert len(model.requests[0].messages) == 2
