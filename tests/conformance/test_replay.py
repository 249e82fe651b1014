"""Reading events again and from a cursor: nothing twice, nothing missed, deltas apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from agents_for_tests import (
    ENDED,
    REPLIED,
    STARTED,
    Gate,
    Home,
    StepModel,
    add,
    ask_color,
    blocked,
    call,
    done,
    entries_of,
    home_fixture,  # noqa: F401 - pytest finds the fixture `home` here
    lasting,
    seen,
    spelled,
    started,
    stored,
    words,
)
from eventually import eventually

import api_shim as agents
from workers.models import ModelReasoning


async def take(events: AsyncIterator[agents.Event], count: int) -> list[agents.Event]:
    """The first `count` events that are no deltas."""
    got: list[agents.Event] = []
    async for event in events:
        if not isinstance(event, agents.TextDelta):
            got.append(event)
        if len(got) == count:
            break
    return got


async def rich_session(home: Home) -> tuple[agents.Session, list[agents.Event]]:
    """A session that has ended after two turns, with all kinds of events, and what one live reader got of it."""
    gate = Gate()
    model = StepModel(["May ", "I?", call("add", a=1, b=2), call("ask_color", of="sky")], ["Hel", gate, "lo"])
    agent = await home.agent(
        model,
        tools=[add, ask_color],
        permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.add"], decision="ask")]),
    )
    session = await agent.start_session()
    live: list[agents.Event] = []

    async def follow() -> None:
        async for event in session.iter_events():
            live.append(event)  # noqa: PERF401 - as it comes

    following = asyncio.create_task(follow())
    turn = started(await session.start_turn("hi"))
    for callback in blocked(await turn.result()).callbacks:
        answer = agents.AllowApproval() if isinstance(callback, agents.OpenApproval) else "blue"
        await turn.answer(callback.id, answer)
    await gate.reached.wait()
    await eventually(lambda: any(isinstance(event, agents.TextDelta) for event in live[-2:]), "the text is live")
    gate.open.set()
    await turn.result()
    await session.rename("sums")
    await session.run([{"type": "context", "text": "it rains"}, {"type": "text", "text": "again"}])
    await session.cancel()
    await following
    return session, live


async def test_a_replay_is_what_a_live_reader_got_but_for_later_deltas(home: Home) -> None:
    session, live = await rich_session(home)
    replay = [event async for event in session.iter_events()]

    assert lasting(replay) == lasting(live)
    assert words(replay) == words(live)
    first = {event.id for event in replay if isinstance(event, agents.EntryAdded)}
    assert all(event.id in first for event in replay if isinstance(event, agents.TextDelta))
    assert sum(isinstance(event, agents.TextDelta) for event in live) > sum(
        isinstance(event, agents.TextDelta) for event in replay
    )


async def test_a_reader_that_resumes_after_any_event_gets_exactly_the_rest(home: Home) -> None:
    session, live = await rich_session(home)

    for at, event in enumerate(live):
        rest = [later async for later in session.iter_events(after=event.id)]
        assert lasting(rest) == lasting(live[at + 1 :]), event


async def test_after_the_first_delta_s_id_both_its_events_are_past(home: Home) -> None:
    session, live = await rich_session(home)
    first = next(event for event in live if isinstance(event, agents.TextDelta))
    rest = [event async for event in session.iter_events(after=first.id)]

    added = {event.entry.id for event in rest if isinstance(event, agents.EntryAdded)}
    assert first.entry_id not in added
    assert first.entry_id in {event.entry.id for event in rest if isinstance(event, agents.EntryCompleted)}
    assert not [event for event in rest if isinstance(event, agents.TextDelta) and event.id == first.id]


async def test_a_reader_that_starts_after_an_entry_was_added_gets_only_its_completion(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.run("hi")
    log = await stored(session)
    rest = await take(session.iter_events(after=log[0].id), 2)

    assert words(rest) == "=user | TurnStarted"


async def test_a_record_is_a_cursor(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    first = done(await session.run("one"))
    await session.run("two")
    got = await take(session.iter_events(after=first), 9)

    assert words(got) == spelled(STARTED, "+assistant | =assistant", ENDED)
    assert entries_of(got, agents.MessageEntry)[0].text == "two"


async def test_a_session_s_events_go_on_over_turns_and_live_until_it_ends(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    got: list[agents.Event] = []

    async def follow() -> None:
        got.extend([event async for event in session.iter_events()])

    following = asyncio.create_task(follow())
    await session.run("one")
    await session.run("two")
    await session.cancel()
    await following

    turn = spelled(STARTED, REPLIED, ENDED)
    assert words(got) == spelled(turn, turn, "session terminated")
    assert lasting(got) == lasting(await stored(session))


async def test_an_ended_session_is_still_read_to_its_end(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.cancel()

    assert words([event async for event in session.iter_events()]) == "session terminated"
    assert [event async for event in session.iter_events(after=(await stored(session))[-1].id)] == []


# Bad cursors.


@pytest.fixture(params=["session", "turn"])
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def reading(way: str, turn: agents.Turn, session: agents.Session, after: str) -> AsyncIterator[agents.Event]:
    return session.iter_events(after=after) if way == "session" else turn.iter_events(after=after)


@pytest.mark.parametrize(
    "bad", ["", "5", "nonsense", "{sid}", "{sid}:", "{sid}:x-1", "{sid}:1", "{sid}:-1-2", "{sid}:1-2-3"]
)
async def test_a_malformed_cursor_is_refused_at_the_first_iteration(home: Home, way: str, bad: str) -> None:
    session = await (await home.agent(StepModel())).start_session()
    turn = session.turn(done(await session.run("hi")).turn_id)
    events = reading(way, turn, session, bad.format(sid=session.id))

    with pytest.raises(agents.InvalidCursorError):
        await anext(events)


async def test_a_cursor_of_another_session_is_refused_at_the_first_iteration(home: Home, way: str) -> None:
    agent = await home.agent(StepModel())
    session, other = await agent.start_session(), await agent.start_session()
    turn = session.turn(done(await session.run("hi")).turn_id)
    foreign = done(await other.run("hi")).cursor
    events = reading(way, turn, session, foreign)

    with pytest.raises(agents.InvalidCursorError, match="another session"):
        await anext(events)


async def test_a_cursor_ahead_of_the_log_is_refused_at_the_first_iteration(home: Home, way: str) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate]))).start_session()
    turn = started(await session.start_turn("hi"))
    events = reading(way, turn, session, f"{session.id}:99-1796000000000")

    with pytest.raises(agents.InvalidCursorError, match="ahead"):
        await anext(events)
    gate.open.set()


async def test_a_wait_refuses_a_foreign_cursor_before_it_reads_and_an_unknown_one_when_it_reads(home: Home) -> None:
    gate = Gate()
    agent = await home.agent(StepModel([gate]))
    session, other = await agent.start_session(), await agent.start_session()
    turn = started(await session.start_turn("hi"))
    foreign = (await started(await other.start_turn("hi")).get()).cursor

    with pytest.raises(agents.InvalidCursorError):
        await turn.result(after=foreign)
    with pytest.raises(agents.InvalidCursorError):
        await session.turn("00000000-0000-4000-8000-000000000000").result(after=foreign)
    with pytest.raises(agents.InvalidCursorError):
        await turn.result(after=f"{session.id}:99-1796000000000", on_event=print)
    with pytest.raises(agents.InvalidCursorError):
        await turn.result(after=f"{session.id}:99-1796000000000")
    gate.open.set()


async def test_nothing_is_raised_by_calling_iter_events(home: Home) -> None:
    session = (await home.agent(StepModel())).session("no such session")

    session.iter_events(after="nonsense")
    session.turn("no such turn").iter_events(after="nonsense")
    with pytest.raises(agents.SessionNotFoundError):
        await anext(session.iter_events())
    with pytest.raises(agents.SessionNotFoundError):
        await anext(session.turn("no such turn").iter_events())


async def test_an_unknown_turn_is_said_at_the_first_iteration(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    events = session.turn("00000000-0000-4000-8000-000000000000").iter_events()

    with pytest.raises(agents.TurnNotFoundError):
        await anext(events)


# One turn's events.


async def test_turns_read_in_sequence_are_the_log(home: Home) -> None:
    session, _ = await rich_session(home)
    read = [[event async for event in turn.iter_events()] for turn in await session.turns()]
    log = await stored(session)

    assert [event for part in read for event in part] == log[:-2]
    assert words(log[-2:]) == "session waiting | session terminated"
    for part, turn in zip(read, await session.turns(), strict=True):
        assert isinstance(part[-1], agents.TurnEnded)
        assert part[-1].turn_id == turn.id
    assert words(read[1][:2]) == "session waiting | session waiting", "the first turn's, and the new title's"


async def test_a_turn_is_followed_live_up_to_its_end(home: Home) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel([gate, "Hello"]))).start_session()
    turn = started(await session.start_turn("hi"))

    async def follow() -> list[agents.Event]:
        return [event async for event in turn.iter_events()]

    following = asyncio.create_task(follow())
    await gate.reached.wait()
    gate.open.set()

    assert words(await following) == spelled(STARTED, REPLIED, "turn terminated | ended Completed")


async def test_a_turn_never_shows_an_earlier_turn_even_from_an_older_cursor(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    first = done(await session.run("one"))
    second = session.turn(done(await session.run("two")).turn_id)
    oldest = (await stored(session))[0].id

    alone = [event async for event in second.iter_events()]
    assert [event async for event in second.iter_events(after=oldest)] == alone
    assert [event async for event in second.iter_events(after=first)] == alone[1:], "after the record: its own events"
    inside = alone[4].id
    assert [event async for event in second.iter_events(after=inside)] == alone[5:]


async def test_at_or_past_a_turn_s_end_there_is_nothing_at_once(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    first = done(await session.run("one"))
    turn = session.turn(first.turn_id)
    await session.run("two")
    log = await stored(session)
    end = next(event for event in log if isinstance(event, agents.TurnEnded))

    for after in (end.id, first, log[-1].id):
        async with asyncio.timeout(2):
            assert [event async for event in turn.iter_events(after=after)] == []


# What reading does, and does not.


async def test_after_a_turn_s_end_its_id_reads_on_and_its_record_may_skip(home: Home) -> None:
    session = await (await home.agent(StepModel())).start_session()
    await session.run("one")
    await session.rename("sums")
    await session.run("two")
    await session.cancel()
    log = await stored(session)
    at = next(n for n, event in enumerate(log) if isinstance(event, agents.TurnEnded))
    ended = log[at]
    assert isinstance(ended, agents.TurnEnded)
    by_id = [event async for event in session.iter_events(after=ended.id)]
    by_record = [event async for event in session.iter_events(after=ended.state)]

    assert by_id == log[at + 1 :]
    assert words(by_id[:1]) == "session waiting"
    assert by_record == log[at + 2 :]


async def test_what_a_reader_does_to_plain_data_never_reaches_the_log(home: Home) -> None:
    @agents.tool
    def look(where: str) -> agents.ToolResult:
        """Look somewhere."""
        return agents.ToolResult(where, structured_content={"a": [1]}, meta={"m": 1})

    model = StepModel([ModelReasoning("hm"), call("look", where="here")])
    session = await (await home.agent(model, tools=[look])).start_session()

    def change(event: agents.Event) -> None:
        match event:
            case agents.EntryCompleted(agents.ToolCallEntry() as entry):
                entry.arguments.clear()
            case agents.EntryCompleted(agents.ToolResultEntry() as result):
                result.structured_content["a"].append(2)
                result.meta.clear()
            case agents.EntryCompleted(agents.UnknownEntry() as unknown):
                unknown.raw["text"] = "changed"
            case _:
                pass

    done(await session.run("hi", on_event=change))
    log = await stored(session)
    assert [entry.arguments for entry in entries_of(log, agents.ToolCallEntry)] == [{"where": "here"}]
    (result,) = entries_of(log, agents.ToolResultEntry)
    assert (result.structured_content, result.meta) == ({"a": [1]}, {"m": 1})
    assert entries_of(log, agents.UnknownEntry)[0].raw["text"] == "hm"
    assert [entry async for entry in session.history()] == [
        event.entry for event in log if isinstance(event, agents.EntryCompleted)
    ]
    done(await session.run("again"))
    assert "'where': 'here'" in repr(model.requests[-1])


async def test_events_that_cannot_be_read_again_are_lost_and_say_where_to_resume(home: Home, way: str) -> None:
    gate = Gate()
    session = await (await home.agent(StepModel(["Hel", gate, "lo"]))).start_session()
    turn = started(await session.start_turn("hi"))
    await gate.reached.wait()
    await seen(session, "+assistant")
    log = await stored(session)
    home.spoilt = True
    # The broker comes back with less than it had: nothing before the third event is there any more.
    kept = log[2].id.rpartition(":")[2]
    await home.broker.client.xtrim(home.broker.keys.of("log", session.id), minid=kept, approximate=False)

    with pytest.raises(agents.ObservationLost) as lost:
        await anext(reading(way, turn, session, log[0].id))
    asked, first = log[0].id.rpartition(":")[2], kept
    assert f"no longer holds event {asked}, it begins with {first}" in str(lost.value)
    assert lost.value.cursor is not None
    rest = await take(session.iter_events(after=lost.value.cursor), 3)
    assert rest == log[2:5]
    gate.open.set()
    assert done(await turn.result()).text == "Hello", "the turn is not changed"


async def test_reading_changes_nothing(home: Home) -> None:
    def never(_ctx: object, _request: object) -> agents.AllowApproval:
        raise AssertionError("reading answers nothing")

    session = await (await home.asking()).start_session(on_approval=never)
    turn = started(await session.start_turn("hi"))
    await seen(session, "turn blocked")
    before, state = await stored(session), await turn.get()
    for events in (session.iter_events(), turn.iter_events()):
        assert await take(events, len(before)) == before
    await session.info()
    await session.turns()
    assert len([entry async for entry in session.history()]) == 2

    assert await stored(session) == before
    assert await turn.get() == state


async def test_a_parked_turn_s_events_wait_and_go_on(home: Home) -> None:
    session = await (await home.asking()).start_session()
    turn = started(await session.start_turn("hi"))
    asked = blocked(await turn.result())

    async def follow() -> list[agents.Event]:
        return [event async for event in turn.iter_events()]

    following, waiting = asyncio.create_task(follow()), asyncio.create_task(turn.result(after=asked))
    await asyncio.wait({following, waiting}, timeout=0.2)
    assert not following.done()
    assert not waiting.done()
    await turn.answer(asked.callbacks[0].id, agents.AllowApproval())

    assert done(await waiting).text == "done"
    assert words(await following).endswith("turn terminated | ended Completed")
