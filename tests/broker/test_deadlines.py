"""What happens when nobody does anything: callbacks expire, idle and old sessions end."""

from __future__ import annotations

import pytest
from holders import (
    answer,
    ask,
    begin,
    called,
    claim,
    command,
    expect_whole,
    fields,
    hold,
    kinds,
    lost,
    move_clock,
    notice,
    open_session,
    queued,
    records,
    running,
    sent,
    start,
    verb_interrupt,
    writing,
)
from limits import (
    HOUR,
    WEEK,
    armed,
    asking,
    end_state,
    limits_fixture,  # noqa: F401 - pytest finds the fixture `limits` here
    look,
)

from broker import runs, transitions
from broker.broker import Broker
from broker.channels import subscribe
from broker.deadlines import expire
from broker.keys import new_id
from broker.scripting import Argument
from broker.settings import DAY_S


async def termination(broker: Broker, session_id: str) -> tuple[str | None, ...]:
    return tuple(await fields(broker, session_id, "status", "termination"))


# Callbacks.


async def test_a_callback_expires_and_the_parked_turn_goes_on(limits: Broker) -> None:
    holder = await asking(limits, "c1")
    await look(limits, HOUR - 1)
    assert await fields(limits, holder.session_id, "job") == ["parked"]

    await look(limits, HOUR + 1)

    *_, resolved, updated = await records(limits, holder.session_id)
    assert (resolved["callbackId"], resolved["private"]) == ("c1", {"outcome": "expired"})
    assert kinds([resolved, updated]) == ["callbackResolved", "turnUpdated(running)"]
    assert resolved["at"].partition("-")[2] == updated["at"].partition("-")[2]
    assert len((await queued(limits))[0]) == 1
    again = await hold(limits)
    assert (again.turn, again.attempt) == (holder.turn, 1)


async def test_an_answer_after_the_deadline_is_told_of_it(limits: Broker) -> None:
    holder = await asking(limits, "c1")
    await look(limits, HOUR + 1)

    lost = await answer(limits, holder.session_id, "c1")

    assert isinstance(lost, transitions.Lost)
    assert b'"outcome":"expired"' in lost.record.body


async def test_no_deadline_means_for_ever(broker: Broker) -> None:
    """A week on, the question is still open and takes its answer."""
    holder = await asking(broker, "c1")
    await look(broker, WEEK)

    assert await answer(broker, holder.session_id, "c1") == transitions.Answered()


async def test_the_turn_stays_blocked_while_another_question_is_open(limits: Broker) -> None:
    holder = await asking(limits, "early", parked=False)
    await move_clock(limits, 60_000)
    await holder.append(*called("late"), *ask("late"))
    await holder.park()

    await look(limits, HOUR + 1)

    found = await records(limits, holder.session_id)
    assert [r["callbackId"] for r in found if r["type"] == "callbackResolved"] == ["early"]
    assert "turnUpdated(running)" not in kinds(found)
    assert await fields(limits, holder.session_id, "job") == ["queued"]  # there is something to do: its call fails
    await look(limits, HOUR + 61)
    assert kinds(await records(limits, holder.session_id))[-1] == "turnUpdated(running)"


async def test_the_holder_of_a_running_turn_is_told(limits: Broker) -> None:
    holder = await asking(limits, "c1", parked=False)
    hints = subscribe(limits, [limits.keys.control(0, "w1")])
    assert await anext(hints) is None
    await look(limits, HOUR - 10)
    assert (await holder.append("e", notice("at work")))[0] == "ok"

    await look(limits, HOUR + 1)

    heard = await anext(hints)
    await hints.aclose()
    assert heard is not None
    assert heard[1].decode() == f"news {holder.session_id} {holder.turn}"
    assert await fields(limits, holder.session_id, "job", "fence") == ["running", holder.fence]


@pytest.mark.parametrize("how", ["answer", "interrupt", "cancel", "finish"])
async def test_a_callback_that_is_settled_has_no_deadline(limits: Broker, how: str) -> None:
    holder = await asking(limits, "c1", parked=False)
    assert "callback" in await armed(limits)
    if how == "answer":
        await answer(limits, holder.session_id, "c1")
    elif how == "interrupt":
        assert await verb_interrupt(limits, holder)
    elif how == "cancel":
        await transitions.cancel(limits, holder.session_id)
    else:
        holder.seen = ""
        await holder.finish()

    assert "callback" not in await armed(limits)


# Sessions.


async def test_an_idle_session_is_ended(limits: Broker) -> None:
    session_id = await open_session(limits)
    await look(limits, DAY_S - 1)
    assert await termination(limits, session_id) == ("waiting", None)

    await look(limits, DAY_S + 1)

    assert await termination(limits, session_id) == ("terminated", "idle_limit")
    assert kinds(await records(limits, session_id)) == ["sessionUpdated(terminated)"]
    assert await command(limits, "PTTL", limits.keys.of("session", session_id)) > 0


@pytest.mark.parametrize("state", ["parked", "queued"])
async def test_an_idle_session_s_turn_is_interrupted(limits: Broker, state: str) -> None:
    limits.settings = limits.settings.model_copy(update={"callback_timeout": None})
    holder = await asking(limits, "c1", parked=state == "parked")
    if state == "queued":
        await runs.release(limits, holder.session_id, holder.fence, budget=5)

    await look(limits, DAY_S + 1)

    assert (await end_state(limits, holder.session_id))["cause"] == "idle_limit"
    assert kinds(await records(limits, holder.session_id))[-1] == "sessionUpdated(terminated)"
    assert await termination(limits, holder.session_id) == ("terminated", "idle_limit")
    assert await queued(limits) == ([], [])


@pytest.mark.parametrize("event", ["turn", "title", "write"])
async def test_an_event_puts_the_idle_limit_off(limits: Broker, event: str) -> None:
    session_id = await open_session(limits)
    await move_clock(limits, int((DAY_S - 10) * 1000))
    if event == "title":
        await transitions.retitle(limits, session_id, title=b'"new"')
    else:
        await start(limits, session_id)
        holder = await hold(limits)
        await holder.append(*writing("message", "m", "one"))
        await holder.finish()

    await look(limits, DAY_S + 1)
    assert await termination(limits, session_id) == ("waiting", None)
    await look(limits, 2 * DAY_S - 11)
    assert await termination(limits, session_id) == ("waiting", None)
    await look(limits, 2 * DAY_S - 9)
    assert await termination(limits, session_id) == ("terminated", "idle_limit")


async def test_a_session_whose_turn_runs_is_not_idle(limits: Broker) -> None:
    limits.settings = limits.settings.model_copy(update={"no_progress": None})
    holder = await running(limits)

    await look(limits, 3 * DAY_S)
    assert (await holder.finish())[0] == "finished"
    await look(limits, 4 * DAY_S + 1)
    assert await termination(limits, holder.session_id) == ("terminated", "idle_limit")


async def test_a_turn_that_is_handed_back_after_a_long_silence_is_not_idle(limits: Broker) -> None:
    limits.settings = limits.settings.model_copy(update={"no_progress": None})
    holder = await running(limits)
    await look(limits, DAY_S + 1)
    await move_clock(limits, int(1.9 * DAY_S * 1000))
    await runs.release(limits, holder.session_id, holder.fence, budget=5)

    await look(limits, 2.9 * DAY_S - 1)
    assert await fields(limits, holder.session_id, "job") == ["queued"]
    await look(limits, 2.9 * DAY_S + 1)
    assert await termination(limits, holder.session_id) == ("terminated", "idle_limit")


async def test_without_limits_a_session_lives_for_ever(limits: Broker) -> None:
    none = {"idle_limit": None, "session_lifetime": None, "callback_timeout": None}
    limits.settings = limits.settings.model_copy(update=none)
    holder = await asking(limits, "c1")

    await look(limits, 3650 * DAY_S)

    assert await fields(limits, holder.session_id, "status", "job") == ["running", "parked"]
    assert await armed(limits) == []


@pytest.mark.parametrize("state", ["waiting", "queued", "running", "parked"])
async def test_a_session_s_life_is_limited(limits: Broker, state: str) -> None:
    none = {"idle_limit": None, "no_progress": None, "callback_timeout": None}
    limits.settings = limits.settings.model_copy(update=none)
    if state in ("waiting", "queued"):
        session_id = await open_session(limits)
        if state == "queued":
            await start(limits, session_id)
    else:
        session_id = (await asking(limits, "c1", parked=state == "parked")).session_id
    await look(limits, WEEK - 1)
    assert (await fields(limits, session_id, "status")) != ["terminated"]

    await look(limits, WEEK + 1)

    assert await termination(limits, session_id) == ("terminated", "lifetime_limit")
    if state != "waiting":
        assert (await end_state(limits, session_id))["cause"] == "lifetime_limit"


async def test_how_a_session_ended_is_told_by_what_ended_it(limits: Broker) -> None:
    cancelled, once = await open_session(limits), await open_session(limits, once=True)
    await transitions.cancel(limits, cancelled)
    await start(limits, once)
    await (await hold(limits)).finish()

    await look(limits, WEEK + 1)

    assert await termination(limits, cancelled) == ("terminated", "cancelled")
    assert await termination(limits, once) == ("terminated", None)


async def test_limits_stay_those_of_the_opening(limits: Broker) -> None:
    session_id = await open_session(limits)
    limits.settings = limits.settings.model_copy(update={"idle_limit": None, "session_lifetime": None})

    await look(limits, DAY_S + 1)

    assert await termination(limits, session_id) == ("terminated", "idle_limit")


# What is left.


async def test_an_ended_session_leaves_the_listings_with_its_keys(limits: Broker) -> None:
    session_id = await open_session(limits)
    await transitions.cancel(limits, session_id)
    lists = [f"{limits.keys.base(0)}sessions", f"{limits.keys.base(0)}sessions:agent"]
    await look(limits, WEEK + 2)
    assert [await command(limits, "ZCARD", key) for key in lists] == [1, 1]  # its keys are still there

    await command(limits, "DEL", *(limits.keys.of(kind, session_id) for kind in ("session", "log")))
    await look(limits, WEEK + 70)

    assert [await command(limits, "ZCARD", key) for key in lists] == [0, 0]
    assert await armed(limits) == []


async def test_dead_letters_go_with_their_session(limits: Broker) -> None:
    session_id, other = await open_session(limits, once=True), await running(limits)
    turn = await start(limits, session_id)
    for each in (session_id, other.session_id):
        await command(limits, "HSET", limits.keys.of("session", each), "attempts", limits.settings.max_attempts)
    (job,) = await claim(limits)
    assert await begin(limits, job) == "dead"
    assert await begin(limits, await lost(limits, other.job), fence="w2:1") == "dead"
    dead = f"{limits.keys.base(0)}dead"
    await look(limits, 3600)
    assert await command(limits, "ZSCORE", dead, f"{session_id} {turn}") is not None

    await command(limits, "DEL", *(limits.keys.of(kind, session_id) for kind in ("session", "log", "turns")))
    await look(limits, WEEK - 1)
    await look(limits, WEEK + 10)

    assert await command(limits, "ZRANGE", dead, 0, -1) == [f"{other.session_id} {other.turn}".encode()]


async def test_nothing_is_left_for_ever(limits: Broker) -> None:
    """Sessions in every state, each with all its deadlines: in the end none of them is armed."""
    await open_session(limits)
    await asking(limits, "a1", "a2", parked=True)
    await asking(limits, "b1", parked=False)
    await (await running(limits)).finish()
    await start(limits, await open_session(limits, once=True))
    assert set(await armed(limits)) == {"callback", "session", "turn"}

    await look(limits, WEEK + 100)
    assert set(await armed(limits)) == {"gone"}
    for session_id in await command(limits, "ZRANGE", f"{limits.keys.base(0)}sessions", 0, -1):
        expect_whole(await records(limits, session_id.decode()))
        kept = [limits.keys.of(kind, session_id.decode()) for kind in ("session", "log", "turns", "settled")]
        await command(limits, "DEL", *kept)
    await look(limits, 3 * WEEK)

    assert await armed(limits) == []
    assert await command(limits, "ZCARD", f"{limits.keys.base(0)}sessions") == 0


async def test_a_session_whose_keys_were_lost_is_nobody_s_deadline(limits: Broker) -> None:
    holder = await asking(limits, "c1", parked=False)
    await command(limits, "DEL", limits.keys.of("session", holder.session_id))

    await look(limits, WEEK + 1)

    assert await armed(limits) == []
    await command(
        limits, "DEL", *(limits.keys.of(kind, holder.session_id) for kind in ("log", "turns", "open", "asked"))
    )
    await command(limits, "DEL", f"arq:job:{holder.job.id}")


async def test_a_deadline_that_cannot_be_handled_is_in_nobody_s_way(limits: Broker) -> None:
    session_id = await open_session(limits)
    for broken in ("later x y", "nonsense", "session no-such-session"):
        await command(limits, "ZADD", f"{limits.keys.base(0)}deadlines", 1, broken)

    await look(limits, DAY_S + 1)

    assert await termination(limits, session_id) == ("terminated", "idle_limit")
    assert await armed(limits) == ["gone"]


async def test_many_at_once_are_expired_page_by_page_once(limits: Broker) -> None:
    callbacks = [new_id() for _ in range(120)]
    holder = await running(limits)
    effects: list[Argument] = []
    for callback in callbacks:
        effects += ask(callback)
    await holder.append(*effects)
    await holder.park()
    await move_clock(limits, int((HOUR + 1) * 1000))

    assert (await expire(limits, 0)).wait == 0
    assert (await expire(limits, 0)).wait == 0
    assert (await expire(limits, 0)).wait != 0

    found = await records(limits, holder.session_id)
    assert sorted(r["callbackId"] for r in found if r["type"] == "callbackResolved") == sorted(callbacks)
    assert kinds(found).count("turnUpdated(running)") == 1
    assert await fields(limits, holder.session_id, "wake") == ["2"]


async def test_a_look_says_when_the_next_one_is_due(limits: Broker) -> None:
    assert (await expire(limits, 0)).wait is None
    holder = await asking(limits, "c1")

    seen = await look(limits, HOUR - 10)

    assert 8 < (seen.wait or 0) <= 10
    await transitions.cancel(limits, holder.session_id)


async def test_one_look_a_minute_is_told_to_sweep(broker: Broker) -> None:
    assert [(await expire(broker, 0)).sweep for _ in range(3)] == [True, False, False]
    assert 0 < await command(broker, "PTTL", f"{broker.keys.base(0)}swept") <= 60_000


async def test_a_steer_does_not_save_a_callback(limits: Broker) -> None:
    holder = await asking(limits, "c1")
    await move_clock(limits, int((HOUR - 1) * 1000))
    assert await transitions.steer(limits, holder.session_id, holder.turn, sent("hurry")) is None

    await look(limits, HOUR + 1)

    (job,) = await claim(limits)
    assert isinstance(await begin(limits, job), runs.Begun)
