"""What a turn does next: a table, and rules that hold for every history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from histories import Told
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.fold import Call, History
from workers.steps import CallModel, FailLost, Finish, OpenTurn, Park, RunTools, Step, Wait, next_step

ASK: Final = {"decision": "ask", "callback": "q"}
CLIENT: Final = {"decision": "client", "callback": "q"}
REFUSED: Final = {"decision": "refused", "text": "no"}
SAFE: Final = {"retrySafe": True}
ALLOW: Final = {"type": "allow", "scope": "once"}

Tell = Callable[[Told], Told]
Case = tuple[str, Tell, set[str], object]

CASES: Final[list[Case]] = [
    # what happened, the log, calls of this run, the next step: its class, or its calls
    ("a message came", lambda t: t.user("hi"), set(), CallModel),
    ("the model replied", lambda t: t.user("hi").reply("hello"), set(), Finish),
    ("nothing came", lambda t: t, set(), Finish),
    ("only a system message", lambda t: t.user("be kind", role="system"), set(), CallModel),
    ("a call to run", lambda t: t.user("hi").reply("", "a"), set(), RunTools),
    ("one under way, one to run", lambda t: t.user("hi").reply("", "a", "b").started("a"), {"a"}, RunTools),
    ("all under way", lambda t: t.user("hi").reply("", "a", "b").started("a"), {"a", "b"}, Wait),
    ("one done, one under way", lambda t: t.user("hi").reply("", "a", "b").result("a"), {"b"}, Wait),
    ("all done", lambda t: t.user("hi").reply("", "a", "b").result("a").result("b"), set(), CallModel),
    ("replied to the results", lambda t: t.user("hi").reply("", "a").result("a").reply("so"), set(), Finish),
    ("a question", lambda t: t.user("hi").reply("", "a", a=ASK).asked("a", "q"), set(), Park),
    ("a question, and a call under way", lambda t: t.user("x").reply("", "a", "b", a=ASK).asked("a", "q"), {"b"}, Wait),
    (
        "a question, and a call to run",
        lambda t: t.user("x").reply("", "a", "b", a=ASK).asked("a", "q"),
        set(),
        RunTools,
    ),
    ("a question that is answered", lambda t: t.user("x").reply("", "a", a=ASK).answered("q", ALLOW), set(), RunTools),
    (
        "a question that expired",
        lambda t: t.user("x").reply("", "a", a=ASK).answered("q", None, "expired"),
        set(),
        RunTools,
    ),
    ("a client's call", lambda t: t.user("hi").reply("", "a", a=CLIENT).asked("a", "q", "clientTool"), set(), Park),
    ("a client's answer", lambda t: t.user("x").reply("", "a", a=CLIENT).answered("q", {"type": "x"}), set(), RunTools),
    (
        "an approved client's call is asked of the client",
        lambda t: t.user("x").reply("", "a", a=ASK).answered("q", ALLOW).asked("a", "q2", "clientTool"),
        set(),
        Park,
    ),
    (
        "and is answered by it",
        lambda t: (
            t.user("x").reply("", "a", a=ASK).answered("q", ALLOW).asked("a", "p", "clientTool").answered("p", {})
        ),
        set(),
        RunTools,
    ),
    ("a refused call is written down", lambda t: t.user("hi").reply("", "a", a=REFUSED), set(), RunTools),
    ("a tool lost its worker", lambda t: t.user("hi").reply("", "a").started("a"), set(), FailLost),
    ("one lost, another to run", lambda t: t.user("hi").reply("", "a", "b").started("a"), set(), FailLost),
    ("a tool that may run again", lambda t: t.user("hi").reply("", "a", a=SAFE).started("a"), set(), RunTools),
    ("a message beside a question", lambda t: t.user("x").reply("", "a", a=ASK).asked("a", "q").user("y"), set(), Park),
    ("a message after the reply", lambda t: t.user("hi").reply("hello").user("and"), set(), CallModel),
    ("a message during the reply", lambda t: t.user("hi").user("and").reply("hello", read=2), set(), CallModel),
    ("an open message is written anew", lambda t: t.user("hi").added({"type": "message", "id": "m"}), set(), CallModel),
    ("the next turn", lambda t: t.user("hi").reply("hello").next_turn().user("again"), set(), CallModel),
]


def _names(step: Step) -> set[str]:
    return {call.tool_call_id for call in step.calls} if isinstance(step, (RunTools, FailLost)) else set()


@pytest.mark.parametrize(("tell", "running", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_next_step(tell: Tell, running: set[str], wanted: type[Step]) -> None:
    assert type(next_step(tell(Told()).history, frozenset(running))) is wanted


def test_all_calls_that_can_be_acted_on_are_one_step() -> None:
    """So they run side by side; the one that waits for an answer is left out."""
    told = Told().user("hi").reply("", "a", "b", "c", "d", b=ASK, c=REFUSED).asked("b", "q").result("d")

    assert _names(next_step(told.history, frozenset())) == {"a", "c"}
    assert _names(next_step(told.history, frozenset({"a"}))) == {"c"}


def test_lost_calls_fail_together_and_before_anything_else() -> None:
    told = Told().user("hi").reply("", "a", "b", "c", c=SAFE).started("a").started("b").started("c")

    assert _names(next_step(told.history, frozenset())) == {"a", "b"}
    told.result("a").result("b")
    assert _names(next_step(told.history, frozenset())) == {"c"}


@pytest.mark.parametrize(("limit", "wanted"), [(1, Finish("iteration_limit")), (2, CallModel()), (None, CallModel())])
def test_the_limit_counts_replies_of_the_turn(limit: int | None, wanted: Step) -> None:
    told = Told().user("hi").reply("", "a").result("a")

    assert next_step(told.history, frozenset(), limit) == wanted
    assert next_step(told.next_turn().user("x").history, frozenset(), limit) == CallModel()


def test_a_turn_that_is_done_at_its_limit_was_not_cut() -> None:
    assert next_step(Told().user("hi").reply("hello").history, frozenset(), 1) == Finish(None)


def test_a_model_with_nothing_to_say_is_not_asked_again() -> None:
    history = Told().user("hi").history
    history.note_silence(history.n, history.usage)
    assert next_step(history, frozenset()) == Finish()

    told = Told().user("hi")
    told.history.note_silence(told.history.n, told.history.usage)
    assert next_step(told.user("hello?").history, frozenset()) == CallModel()


# Hooks.


def test_a_turn_is_opened_once_before_its_first_model_call() -> None:
    told = Told().user("hi")
    assert next_step(told.history, frozenset(), opening=True) == OpenTurn()
    assert next_step(told.history, frozenset()) == CallModel()

    told.checkpoint("pre_agent_turn")
    assert next_step(told.history, frozenset(), opening=True) == CallModel()
    told.next_turn().user("again")
    assert next_step(told.history, frozenset(), opening=True) == OpenTurn()


def test_a_turn_that_has_begun_without_such_a_hook_is_not_opened_later() -> None:
    """The agent was deployed anew while the turn was parked."""
    told = Told().user("hi").reply("", "a").result("a")

    assert next_step(told.history, frozenset(), opening=True) == CallModel()


@pytest.mark.parametrize("said", [{"skip": "no"}, {"reject": "no"}])
def test_a_turn_that_a_hook_closed_only_ends(said: dict[str, Any]) -> None:
    told = Told().user("hi").checkpoint("pre_llm_call", **said).user("more")

    assert next_step(told.history, frozenset(), 1, opening=True) == Finish("skipped")


def test_a_draft_is_written_again() -> None:
    told = Told().user("hi").reply("", "a").result("a").draft("bad", "do better")

    assert next_step(told.history, frozenset(), 2) == CallModel()


# Rules for every history.

CALL_IDS: Final = ("a", "b", "c")


@st.composite
def told_histories(draw: st.DrawFn) -> tuple[History, frozenset[str]]:
    """A log that a turn could have written: what may follow is drawn from what has happened."""
    told, fresh = Told().user("hi"), list(CALL_IDS)
    running: set[str] = set()
    for _ in range(draw(st.integers(0, 12))):
        calls = told.history.calls.values()
        open_ = [call for call in calls if not call.done]
        moves: list[Callable[[], object]] = [lambda: told.user("more")]
        if not open_:
            moves += [lambda: told.reply("said"), lambda: _draw_reply(draw, told, fresh)]
            moves += [lambda: told.draft("bad", "do better", read=draw(st.integers(0, len(told.records))))]
            moves += [lambda: told.checkpoint(draw(st.sampled_from(["pre_agent_turn", "pre_llm_call"])))]
        for call in open_:
            moves += _moves(told, call, running)
        draw(st.sampled_from(moves))()
    running -= {call.tool_call_id for call in told.history.calls.values() if call.done}
    if draw(st.booleans()):
        running = set()  # a crash: another run goes on
    return told.history, frozenset(running)


def _draw_reply(draw: st.DrawFn, told: Told, fresh: list[str]) -> None:
    calls = [fresh.pop() for _ in range(draw(st.integers(0, len(fresh))))]
    decided = {}
    for call in calls:
        kind = draw(st.sampled_from(["run", "ask", "client", "refused"]))
        decided[call] = {"decision": kind, "retrySafe": draw(st.booleans())}
        if kind in ("ask", "client"):
            decided[call]["callback"] = f"q{call}"
    told.reply("x", *calls, read=len(told.records), **decided)
    for call in calls:
        if decided[call]["decision"] in ("ask", "client"):
            told.asked(call, f"q{call}", "clientTool" if decided[call]["decision"] == "client" else "approval")


def _moves(told: Told, call: Call, running: set[str]) -> list[Callable[[], object]]:
    call_id = call.tool_call_id
    if not call.ready:
        callback = call.callback or ""
        return [lambda: told.answered(callback, ALLOW), lambda: told.answered(callback, None, "expired")]
    moves: list[Callable[[], object]] = [lambda: running.add(call_id), lambda: told.result(call_id)]
    if not call.started:
        moves.append(lambda: _start(told, call_id, running))
    return moves


def _start(told: Told, call_id: str, running: set[str]) -> None:
    told.started(call_id)
    running.add(call_id)


@given(told_histories())
@settings(max_examples=400, deadline=None)
def test_rules_that_hold_for_every_history(drawn: tuple[History, frozenset[str]]) -> None:
    history, running = drawn
    step = next_step(history, running)
    pending = {call.tool_call_id for call in history.calls.values() if not call.done}

    match step:
        case CallModel() | Finish():
            assert not pending  # a provider never sees a call without its result, and no turn ends over one
        case RunTools(calls):
            assert calls
            assert not {call.tool_call_id for call in calls} & running  # nothing is started twice by one run
            assert not [call for call in calls if call.done]
            assert not [call for call in calls if call.started and not call.retry_safe]  # nor run again after a crash
            assert not [call for call in calls if call.decision in ("ask", "client") and call.outcome is None]
        case FailLost(calls):
            assert all(call.started and not call.done and not call.retry_safe for call in calls)
            assert not {call.tool_call_id for call in calls} & running
        case Wait():
            assert running
        case Park():
            assert not running
            assert pending
            assert all(history.calls[call_id].outcome is None for call_id in pending)
    assert next_step(history, running) == step  # the same history, the same step


@given(told_histories())
@settings(max_examples=200, deadline=None)
def test_every_turn_comes_to_an_end(drawn: tuple[History, frozenset[str]]) -> None:
    """Doing what each step says leads to Finish: no step is said again and again without getting on."""
    history, running = drawn
    told = Told()
    told.history, told.turn = history, history.turn
    told.records = [{}] * history.n
    for _ in range(40):
        match next_step(history, running, 10):
            case CallModel():
                told.reply("said")
            case RunTools(calls) | FailLost(calls):
                for call in calls:
                    told.result(call.tool_call_id)
            case Wait():
                for call_id in running:
                    told.result(call_id)
                running = frozenset()
            case Park():
                for call in [call for call in history.calls.values() if not call.done]:
                    told.answered(call.callback or "", ALLOW)
            case Finish():
                return
    raise AssertionError("it goes on for ever")
