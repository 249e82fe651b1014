"""The scripts' contracts, and the loader that holds callers to them."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest
from holders import fields, open_session

from broker import scripting, transitions
from broker.broker import Broker
from broker.scripting import ScriptContractError, load_script

FOLDER: Final = Path(str(resources.files("broker"))) / "scripts"
VERBS: Final = sorted(path.stem for path in FOLDER.glob("*.lua"))
PIECES: Final = sorted(path.stem for path in FOLDER.glob("include/*.lua"))
CONTRACT: Final = ("KEYS", "ARGV", "RETURN", "EVENTS")


def _read(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _head(source: str) -> list[str]:
    lines = source.splitlines()
    return lines[: next(at for at, line in enumerate(lines) if not line.startswith("-- ") and line != "--")]


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_opens_with_its_contract(verb: str) -> None:
    head = _head(_read(verb))

    assert head[0].startswith(f"-- {verb}: ")
    assert head[1] == "--"
    named = [line.split()[1] for line in head if line.split()[1:2] and line.split()[1] in CONTRACT]
    assert tuple(named) == CONTRACT


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_verb_answers_stands_in_its_contract(verb: str) -> None:
    source = _read(verb)
    head = " ".join(_head(source))
    promised = set(re.findall(r"[a-z]+", head[head.index("RETURN") : head.index("EVENTS")]))
    told = re.findall(r"return \{'([a-z]+)'", source) + re.findall(r"(?:say|accept)\([a-z, ]+'([a-z]+)'", source)

    assert set(told) - promised == set()


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_its_arguments_by_name_only(verb: str) -> None:
    assert re.findall(r"ARGV\[\d", _read(verb)) == []


@pytest.mark.parametrize("piece", PIECES)
def test_a_shared_piece_says_what_it_is(piece: str) -> None:
    assert _read(f"include/{piece}").startswith(f"-- {piece}: ")


@pytest.mark.parametrize("piece", PIECES)
def test_every_shared_piece_is_used(piece: str) -> None:
    assert any(piece in line.split()[1:] for verb in VERBS for line in re.findall(r"--@include .+", _read(verb)))


@pytest.mark.parametrize("verb", VERBS)
async def test_the_broker_compiles_it(verb: str, broker: Broker) -> None:
    script = load_script(verb, broker.database)

    loaded = await broker.commands.command("SCRIPT LOAD", script.source)

    assert loaded in (script.sha, script.sha.encode())


def test_bodies_are_opaque_no_script_reads_or_makes_json() -> None:
    sources = [_read(name) for name in (*VERBS, *(f"include/{piece}" for piece in PIECES))]

    assert [source for source in sources if "cjson" in source] == []


def test_a_script_belongs_to_one_database() -> None:
    """The number stands in its channels' names: pub/sub ignores databases."""
    assert load_script("append", 0).sha != load_script("append", 1).sha
    assert load_script("append", 0) is load_script("append", 0)


def test_an_unknown_verb_is_named() -> None:
    with pytest.raises(ScriptContractError, match=r"script no_such: no such file: .*no_such\.lua"):
        load_script("no_such", 0)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("-- no contract\n", "made.lua has no ARGV line"),
        ("-- ARGV    sid Turn\n", r"made.lua: 'Turn' cannot be the name of an argument"),
        ("-- ARGV    ...all sid\n", "made.lua: only the last argument may take a variable number"),
        ("-- ARGV    sid\n--@include nowhere\n", r"script made: no such file: .*nowhere\.lua"),
    ],
)
def test_a_file_that_breaks_the_rules_is_named(source: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = scripting._file
    monkeypatch.setattr(scripting, "_file", lambda name: source if name == "made.lua" else read(name))

    with pytest.raises(ScriptContractError, match=said):
        load_script.__wrapped__("made", 0)


def test_arguments_go_by_name_in_the_contract_s_order() -> None:
    script = load_script("append", 0)

    values = script.values({"expires": "", "seen": "0-0", "op": 1, "fence": "f", "sid": "s"}, ["e", b"x"])

    assert script.arguments == ("sid", "fence", "op", "seen", "expires")
    assert script.rest == "effects"
    assert values == ["s", "f", 1, "0-0", "", "e", b"x"]


def test_a_verb_may_take_nothing_but_further_values() -> None:
    script = load_script("tails", 0)

    assert (script.arguments, script.rest) == ((), "sids")
    assert script.values({}, ["a", "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "rest", "said"),
    [
        ({}, [], "script cancel: arguments missing or unknown: sid"),
        ({"sid": "s", "why": "x", "how": "y"}, [], "script cancel: arguments missing or unknown: how, why"),
        ({"sid": "s"}, ["more"], "script cancel takes no further values"),
    ],
)
def test_a_call_that_breaks_the_contract_is_refused(given: dict[str, str], rest: list[str], said: str) -> None:
    script = load_script("cancel", 0)
    assert script.values({"sid": "s"}, []) == ["s"]

    with pytest.raises(ScriptContractError, match=said):
        script.values(given, rest)


async def test_a_server_that_forgot_its_scripts_is_told_them_again(redis_broker: Broker) -> None:
    """As after a restart: the whole batch is sent once more, in its order."""
    session_id = await open_session(redis_broker)
    await transitions.retitle(redis_broker, session_id, title=b'"first"')
    await redis_broker.commands.command("SCRIPT FLUSH")

    for title in (b'"second"', b'"third"'):
        await transitions.retitle(redis_broker, session_id, title=title)

    assert await fields(redis_broker, session_id, "title", "n") == ['"third"', "3"]


async def test_a_server_that_forgets_them_again_at_once_is_one_that_is_not_there_now(
    redis_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another server takes the address between the two: the same call is made once more."""
    session_id = await open_session(redis_broker)
    pipeline = redis_broker.commands
    execute, flushed = pipeline._execute, 0

    async def forgetful(commands: list[Any]) -> list[Any]:
        nonlocal flushed
        replies = await execute(commands)
        if commands[0][0] == "SCRIPT LOAD" and not flushed:
            flushed += 1
            await execute([("SCRIPT FLUSH",)])
        return replies

    await pipeline.command("SCRIPT FLUSH")
    monkeypatch.setattr(pipeline, "_execute", forgetful)

    await transitions.retitle(redis_broker, session_id, title=b'"first"')

    assert flushed
    assert await fields(redis_broker, session_id, "title") == ['"first"']
