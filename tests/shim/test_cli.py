"""The command line, as people and programs run it: real processes, on a real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import Terminal, folder_of_agents, read_until, run, session_of, start, worker
from real_server import serving


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with a module of agents."""
    return folder_of_agents(tmp_path)


# demo


def test_the_demo_ends_with_the_turns_record(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(tmp_path, {"TURNSTREAM_REDIS_URL": "redis://127.0.0.1:1/0"})  # no command
    assert done.returncode == 2
    done = run(tmp_path, {"TURNSTREAM_REDIS_URL": "redis://127.0.0.1:1/0"}, "demo")
    took = time.monotonic() - began

    assert done.stderr == ""
    assert done.returncode == 0
    assert "parked: 0 tasks of the worker hold it" in done.stdout
    assert "the same ones in the same order" in done.stdout
    record = done.stdout.partition("The turn's record:\n")[2].splitlines()
    assert record[0].strip() == "Completed"
    assert record[-1].split()[0] == "cursor"
    assert "\x1b" not in done.stdout  # no colours where no terminal is
    assert took < 20


# MODULE:AGENT, and other mistakes


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("nowhere:agent", "There is no module 'nowhere' here"),
        ("cli_agents:other", "has no 'other'; its agents: payer, echo, slow, twin"),
        ("cli_agents:model", "'model' is of type ScriptedModel, not an Agent"),
        ("cli_agents", "'cli_agents' is no MODULE:AGENT"),
        ("cli agents:echo", "'cli agents:echo' is no MODULE:AGENT"),
    ],
)
def test_an_agent_that_is_not_there_is_one_sentence(home: Path, place: str, says: str) -> None:
    for command in (["worker", "--url", "redis://127.0.0.1:1/0"], ["chat"], ["up"]):
        done = run(home, {}, *command, place)

        assert done.returncode == 2
        assert says in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_two_agents_of_one_name_are_refused(home: Path) -> None:
    done = run(home, {}, "worker", "--url", "redis://127.0.0.1:1/0", "cli_agents:echo", "cli_agents:twin")

    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "named 'echo' too" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "env", "status", "says"),
    [
        (["sessions"], {}, 2, "No broker is named"),
        (["watch", "0-x"], {}, 2, "No broker is named"),
        (["chat"], {}, 2, "Whom to talk to?"),
        (["chat", "--name", "x"], {}, 2, "No broker is named"),
        (["sessions"], {"TURNSTREAM_REDIS_URL": "redis://127.0.0.1:1/0"}, 1, "cannot be reached"),
        (["worker", "cli_agents:echo", "--url", "redis://x"], {"TURNSTREAM_SLOTS": "0"}, 2, "TURNSTREAM_SLOTS"),
        (
            ["worker", "cli_agents:echo", "--url", "redis://x", "--ready-file", "no/ready"],
            {},
            2,
            "--ready-file no/ready cannot be written (No such file or directory): make the folder, or name another file.",
        ),
    ],
)
def test_a_mistake_is_one_line_and_no_traceback(
    home: Path, arguments: list[str], env: dict[str, str], status: int, says: str
) -> None:
    done = run(home, env, *arguments)

    assert done.returncode == status
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_worker_refuses_an_unfit_broker_in_one_sentence(home: Path, tmp_path: Path) -> None:
    with serving(tmp_path, "--maxmemory-policy", "allkeys-lru") as server:
        done = run(home, {"TURNSTREAM_REDIS_URL": server.url}, "worker", "cli_agents:echo")

    assert done.returncode == 1
    assert "set maxmemory-policy to noeviction" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_listing_of_commands_cuts_no_line(home: Path) -> None:
    said = run(home, {"COLUMNS": "80"}, "--help").stdout

    _, _, commands = said.partition("Commands:\n")
    assert len(commands.splitlines()) == 9
    assert "..." not in commands


# worker


def test_a_worker_warns_of_a_setting_that_is_mistyped(home: Path, env: dict[str, str]) -> None:
    told = {**env, "TURNSTREAM_MAX_ATEMPTS": "2", "TURNSTREAM_TEST_X": "1", "TURNSTREAM_AGENTS": "x"}
    process = start(home, told, "worker", "cli_agents:echo", "--json")
    assert process.stderr is not None
    first, second = [json.loads(process.stderr.readline()) for _ in range(2)]
    process.terminate()
    process.communicate(timeout=10)

    assert (first["event"], first["level"]) == ("unknown_setting", "warning")
    assert (first["variable"], first["nearest"]) == ("TURNSTREAM_MAX_ATEMPTS", "TURNSTREAM_MAX_ATTEMPTS")
    assert second["event"] == "worker_started"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_told_to_stop_drains_and_says_what_it_did(
    home: Path, env: dict[str, str], number: signal.Signals
) -> None:
    with worker(home, env, "cli_agents:echo", "--json") as process:
        assert run(home, env, "chat", "--name", "echo", typed="secret words\n").returncode == 0
        process.send_signal(number)
        _, err = process.communicate(timeout=10)

    last = json.loads(err.splitlines()[-1])
    assert (process.returncode, last["event"], last["turns"], last["handed_back"]) == (0, "worker_stopped", 1, [])
    assert "secret" not in err


def test_a_second_signal_hands_running_turns_back_at_once(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:slow", "--json", "--grace", "60") as process:
        chat = start(home, env, "chat", "--name", "slow", stdin=subprocess.PIPE)
        assert chat.stdin is not None
        chat.stdin.write("Write.\n")
        chat.stdin.flush()
        read_until(chat, "turn    started")
        assert process.stderr is not None
        while "turn_begun" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)  # its turn may go on
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=10)
        chat.kill()
        chat.communicate()

    last = json.loads(err.splitlines()[-1])
    assert process.returncode == 0
    assert len(last["handed_back"]) == 1


# watch and sessions


def test_watch_prints_one_event_a_line_for_programs(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:payer", "cli_agents:echo"):
        chatted = run(home, env, "chat", "--name", "payer", typed="Pay \x1b[31m100.\u2028\x9b2J\na\n")
        session_id = session_of(chatted.stdout)
        watching = start(home, env, "watch", session_id, "--json")
        lines = read_until(watching, '"type":"turnEnded"').split("\n")[:-1]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=10)
    events = [json.loads(line) for line in lines]

    assert watching.returncode == 130
    assert [event["type"] for event in events if event["type"] != "textDelta"] == [
        *("entryAdded", "entryCompleted", "turnStarted", "sessionUpdated"),
        *("entryAdded", "entryCompleted", "callbackOpened", "turnUpdated"),  # the call and its question
        *("callbackResolved", "turnUpdated", "entryAdded", "entryCompleted"),  # the answer, the result
        *("entryAdded", "entryCompleted", "turnUpdated", "turnEnded"),
    ]
    assert {event["sessionId"] for event in events} == {session_id}
    assert all(event["id"].startswith(f"{session_id}:") for event in events)
    assert events[1]["entry"]["content"][0]["text"] == "Pay \x1b[31m100.\u2028\x9b2J"
    assert all(line.isprintable() for line in lines)
    opened = next(event for event in events if event["type"] == "callbackOpened")
    assert opened["callback"]["request"]["arguments"] == {"amount": 100}
    ended = events[-1]
    assert (ended["state"]["type"], ended["state"]["text"]) == ("completed", "Done.")


def test_watch_goes_on_after_a_cursor_and_says_where_it_left(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:echo"):
        session_id = session_of(run(home, env, "chat", "--name", "echo", typed="Hello.\n").stdout)
    watching = start(home, env, "watch", session_id)
    shown = read_until(watching, "session waiting")
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=10)
    cursor = re.findall(r"--after (\S+)", err)[0]

    assert re.search(r"^\d\d:\d\d:\d\d agent   Hello\.$", shown, re.MULTILINE)
    assert cursor.startswith(session_id)
    rest = start(home, env, "watch", session_id, "--after", cursor.rpartition(":")[0] + ":3-0", "--json")
    out, err = rest.communicate(timeout=10)
    assert (rest.returncode, out, len(err.splitlines())) == (1, "", 1)  # a cursor that was never given


def test_what_is_shown_to_a_person_holds_no_escape_sequences(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:echo"):
        bad = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\u202ee\rf\x00g\n"
        done = run(home, env, "chat", "--name", "echo", typed=bad)
        listed = run(home, env, "sessions")

    assert done.returncode == listed.returncode == 0
    for shown in (done.stdout, listed.stdout):
        assert not set(shown) & {"\x1b", "\x07", "\x9b", "\x00", "\u202e", "\r"}
    assert re.search(r"agent   abcde\n +fg", done.stdout)


def test_sessions_are_listed_for_people_and_programs(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:echo", "cli_agents:payer"):
        first = session_of(run(home, env, "chat", "--name", "echo", typed="First.\n").stdout)
        second = session_of(run(home, env, "chat", "--name", "payer", typed="Second.\n").stdout)
    shown = run(home, env, "sessions").stdout.splitlines()
    listed = [json.loads(line) for line in run(home, env, "sessions", "--json", "--agent", "payer").stdout.splitlines()]

    assert [line.split()[0] for line in shown] == [second, first]
    assert "First." in shown[1]
    assert [(one["id"], one["agentName"], one["status"]) for one in listed] == [(second, "payer", "running")]
    assert run(home, env, "sessions", "--status", "waiting", "--limit", "5").stdout.split()[0] == first


# chat


def test_chat_asks_for_approvals_and_an_allowance_holds_for_the_session(home: Path) -> None:
    done = run(home, {"TURNSTREAM_REDIS_URL": ""}, "chat", "cli_agents:payer", typed="One.\nwhat\na\nTwo.\n")

    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.count("allow? y/a/n: ") == 2  # the answer that was none is asked again
    assert done.stdout.count("client.pay: paid 100") == 2
    assert done.stdout.splitlines()[-1].startswith(f"Session {session_of(done.stdout)}.")


def test_chat_gives_the_reason_of_a_denial_to_the_agent(home: Path) -> None:
    done = run(home, {"TURNSTREAM_REDIS_URL": ""}, "chat", "cli_agents:payer", typed="One.\nn too much\n")

    assert re.search("← client.pay: .*too much", done.stdout)


def test_a_question_that_nobody_answers_stays_open_and_can_be_taken_up(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:payer"):
        left = run(home, env, "chat", "--name", "payer", typed="One.\n")
        session_id = session_of(left.stdout)
        taken = run(home, env, "chat", "--session", session_id, typed="y\n")

    assert "left open" in left.stdout
    assert "paid 100" not in left.stdout
    assert "paid 100" in taken.stdout
    assert "completed" in taken.stdout


def test_ctrl_c_stops_the_turn_and_keeps_the_session(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:slow"):
        chat = Terminal(home, env, "chat", "--name", "slow")
        chat.until("> ")
        chat.types("Write a lot.\n")
        chat.until("and so on")
        chat.types("\x03")
        chat.until("stopped: interrupted")
        chat.until("> ")
        chat.types("Again.\n")
        chat.until("and so on")
        chat.types("\x03")
        chat.until("> ")
        chat.types("\x04")
        assert chat.ends() == 0

    assert "\x1b[" in chat.shown  # colours at a terminal
    assert re.search(r"To go on: turnstream chat --session 0-[0-9a-f-]{36}", chat.shown)


def test_a_question_that_somebody_else_answers_is_taken_back(home: Path, env: dict[str, str]) -> None:
    with worker(home, env, "cli_agents:payer"):
        chat = Terminal(home, env, "chat", "--name", "payer")
        chat.until("> ")
        chat.types("Pay.\n")
        chat.until("allow. y/a/n: ")
        elsewhere = run(home, env, "chat", "--session", session_of(re.sub(r"\x1b\[\d*m", "", chat.shown)), typed="y\n")
        chat.until("somebody else has answered")
        chat.until("completed")
        chat.until("> ")
        chat.types("\x04")
        assert chat.ends() == 0

    assert "paid 100" in elsewhere.stdout


def test_no_color_is_respected_and_ctrl_c_at_the_prompt_leaves(home: Path) -> None:
    chat = Terminal(home, {"NO_COLOR": "1", "TURNSTREAM_REDIS_URL": ""}, "chat", "cli_agents:payer")
    chat.until("> ")
    chat.types("Pay.\n")
    chat.until("allow. y/a/n: ")
    chat.types("y\n")
    chat.until("completed")
    chat.until("> ")
    chat.types("\x03")

    assert chat.ends() == 0
    assert "\x1b" not in chat.shown
