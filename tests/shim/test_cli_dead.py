"""`turnstream dead`, as an operator uses it after a bad release: what died and why, and another chance for it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import holders
import pytest
from commands import called, run

from broker import transitions
from broker.broker import Broker
from broker.keys import new_id

Env = dict[str, str]


@pytest.fixture
def place(env: Env, redis_broker: Broker) -> tuple[Env, Broker]:
    """Return an environment, and a broker there."""
    return env, redis_broker


async def dead_letter(broker: Broker, text: str) -> tuple[str, str]:
    """A turn of `echo` that lost its worker once after it had begun to write, and then each time it was begun."""
    session_id = await holders.open_session(broker, agent="echo")
    turn = await holders.start(broker, session_id, text)
    holder = await holders.hold(broker, agent="echo", worker="abcdef12")
    await holder.append(*holders.writing("message", new_id(), "half a"))
    key = broker.keys.of("session", session_id)
    await holders.command(broker, "HSET", key, "attempts", broker.settings.max_attempts)
    await holders.command(broker, "ZADD", f"{broker.keys.queue(0, 'echo')}:running", 1, holder.job.id)
    (job,) = await holders.claim(broker, agent="echo")
    assert await holders.begin(broker, job) == "dead"
    return session_id, turn


async def test_a_dead_letter_is_listed_shown_and_retried(tmp_path: Path, place: tuple[Env, Broker]) -> None:
    env, broker = place
    none = run(tmp_path, env, "dead", "list")
    assert (none.returncode, none.stdout, none.stderr) == (0, "", "No dead letters.\n")
    session, turn = await dead_letter(broker, "Pay \x1b[31m100\x1b[0m\nnow.")

    (line,) = (await called(env, "dead", "list")).stdout.splitlines()
    assert re.search(rf" 5 attempts  {session}  {turn}  echo  Pay 100 now\.$", line)
    listed = json.loads((await called(env, "dead", "list", "--json")).stdout)
    assert (listed["sessionId"], listed["turnId"], listed["attempts"]) == (session, turn, 5)

    shown = await called(env, "dead", "show", session, turn)
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    for said in (
        "started 5 times and each worker was lost",
        "asked  Pay 100 now.",
        "run    abcdef",
        f"retry {session} {turn}",
    ):
        assert said in shown.stdout
    whole = json.loads((await called(env, "dead", "show", session, turn, "--json")).stdout)
    assert whole["input"][0]["content"] == [{"type": "text", "text": "Pay \x1b[31m100\x1b[0m\nnow."}]
    (lost,) = whole["runs"]
    assert (lost["mark"], lost["lastWrote"]) == ("abcdef", "entryAdded message")
    follow = re.search(r"turnstream (watch \S+ --after \S+)", shown.stdout)
    assert follow is not None

    tries = [await called(env, "dead", "retry", session, turn) for _ in range(2)]
    assert {each.exit_code for each in tries} == {0}
    assert tries[0].stdout == tries[1].stdout, "a repeat is the same turn"
    assert (await called(env, "dead", "list")).stdout == ""
    new = tries[0].stdout.split()[1]
    assert new != turn
    checked = await called(env, "check", session)
    assert "2 turns: in order" in checked.stdout


async def test_what_cannot_be_retried_is_one_line(place: tuple[Env, Broker]) -> None:
    env, broker = place
    session, turn = await dead_letter(broker, "Pay 100.")
    active = await holders.start(broker, session)
    refused = {
        (session, turn): (1, f"is busy with turn {active}"),
        (session, "none"): (2, "turn none is not in the dead letters; `turnstream dead list` says which are"),
        ("nowhere", turn): (2, "There is no session 'nowhere'"),
    }
    for (of, which), (status, says) in refused.items():
        done = await called(env, "dead", "retry", of, which)
        assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (status, "", 1)
        assert says in done.stderr
    assert (await called(env, "dead", "show", session, "none")).exit_code == 2
    for arguments in ((), (session,), (session, turn, "--all")):
        done = await called(env, "dead", "retry", *arguments)
        assert done.exit_code == 2
        assert "Name a SESSION and a TURN, or give --all." in done.stderr


async def test_one_attempt_is_one(place: tuple[Env, Broker]) -> None:
    env, broker = place
    broker.settings = broker.settings.model_copy(update={"max_attempts": 1})
    session, _ = await dead_letter(broker, "Pay.")

    assert f"  1 attempt  {session}  " in (await called(env, "dead", "list")).stdout


async def test_there_are_more_than_are_listed_is_said(place: tuple[Env, Broker]) -> None:
    env, broker = place
    for text in ("one", "two"):
        session, _ = await dead_letter(broker, text)

    part = await called(env, "dead", "list", "--limit", "1")
    whole = await called(env, "dead", "list", "--limit", "2")

    assert (len(part.stdout.splitlines()), part.stderr) == (1, "There are more than these 1: --limit shows more.\n")
    assert session in part.stdout
    assert (len(whole.stdout.splitlines()), whole.stderr) == (2, "")


@pytest.mark.parametrize("command", [["list"], ["show", "0-x", "t"], ["retry", "0-x", "t"], ["retry", "--all"]])
async def test_a_broker_that_is_no_use_is_an_error(command: list[str], place: tuple[Env, Broker]) -> None:
    env, _ = place
    for url, says in (("redis://127.0.0.1:1/0", "at 127.0.0.1:1 cannot be reached"), ("redis://h:x", "not usable")):
        done = await called(env, "dead", *command, "--url", url)

        assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert says in done.stderr


async def test_all_are_retried_but_those_of_subagents_and_busy_ones(place: tuple[Env, Broker]) -> None:
    env, broker = place
    first, second, third, busy = [await dead_letter(broker, text) for text in ("one", "two", "three", "four")]
    await holders.start(broker, busy[0])
    await holders.command(
        broker, "HSET", broker.keys.of("session", third[0]), "parent", first[0], "ancestors", first[0]
    )

    done = await called(env, "dead", "retry", "--all")

    assert done.exit_code == 1
    assert {line.split()[-1] for line in done.stdout.splitlines()} == {first[0], second[0]}
    assert [f"Session {busy[0]} is busy" in line for line in done.stderr.splitlines()] == [True]
    left = (await called(env, "dead", "list")).stdout.splitlines()
    assert [third[1] in left[1], busy[1] in left[0], "(a subagent)" in left[1]] == [True] * 3


async def test_one_whose_session_ended_with_it_says_so_and_is_no_failure_of_all(place: tuple[Env, Broker]) -> None:
    """As after `Agent.run`: there is nowhere to retry it."""
    env, broker = place
    (session, turn), other = await dead_letter(broker, "Pay 100."), await dead_letter(broker, "Pay 200.")
    await transitions.cancel(broker, session)

    assert f"{turn}  echo (its session has ended)  Pay 100." in (await called(env, "dead", "list")).stdout
    shown = (await called(env, "dead", "show", session, turn)).stdout
    assert "retry  not here: its session has ended. Send what it was asked anew" in shown
    assert "turnstream dead retry" not in shown
    one = await called(env, "dead", "retry", session, turn)
    assert (one.exit_code, "has ended" in one.stderr) == (1, True), one.stderr
    done = await called(env, "dead", "retry", "--all")
    assert (done.exit_code, done.stderr) == (0, "")
    left, retried = sorted(done.stdout.splitlines())
    assert left.startswith(f"Left: turn {turn}, whose session {session} has ended.")
    assert retried.endswith(other[0])
