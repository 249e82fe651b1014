"""The scripts in `scripts/`, with their contracts.

One verb, one file. A file opens with its contract; the loader reads two of its lines. `-- ARGV` names the arguments, each of
which becomes a Lua local; a last one written `...name` is the index in ARGV at which a variable number of values begins.
`--@include a b` pulls in the shared pieces of `scripts/include/`. Callers pass arguments by name, so an order is never wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

Argument = str | bytes | int | float
_ARGV: Final = re.compile(r"^-- ARGV\s+(.+)$", re.MULTILINE)
_INCLUDE: Final = re.compile(r"^--@include (.+)$", re.MULTILINE)
_NAME: Final = re.compile(r"^(\.\.\.)?[a-z_]+$")


class ScriptContractError(Exception):
    """A script file breaks the rules above, or a call breaks its script's contract. Always a fault of this package."""


@dataclass(frozen=True)
class Script:
    """One verb: its source as the server gets it, and the names of its arguments."""

    name: str
    source: str
    sha: str
    arguments: tuple[str, ...]
    rest: str | None

    def values(self, arguments: Mapping[str, Argument], rest: Iterable[Argument]) -> list[Argument]:
        """Return ARGV for these named arguments. Raises `ScriptContractError` naming what is missing or too much."""
        if arguments.keys() != set(self.arguments):
            off = sorted(arguments.keys() ^ set(self.arguments))
            raise ScriptContractError(f"script {self.name}: arguments missing or unknown: {', '.join(off)}")
        values = [arguments[name] for name in self.arguments]
        tail = list(rest)
        if tail and self.rest is None:
            raise ScriptContractError(f"script {self.name} takes no further values")
        values.extend(tail)
        return values


@cache
def _file(name: str) -> str:
    return resources.files("broker").joinpath("scripts", name).read_text(encoding="utf-8")


def _contract(name: str, source: str) -> tuple[tuple[str, ...], str | None]:
    line = _ARGV.search(source)
    if line is None:
        raise ScriptContractError(f"{name}.lua has no ARGV line in its contract")
    # The names end at the first two spaces: what follows them on the line is a remark.
    names = re.split(r"\s{2,}", line[1])[0].split()
    for argument in names:
        if not _NAME.match(argument):
            raise ScriptContractError(f"{name}.lua: {argument!r} cannot be the name of an argument")
    if any(argument.startswith("...") for argument in names[:-1]):
        raise ScriptContractError(f"{name}.lua: only the last argument may take a variable number of values")
    rest = names[-1].removeprefix("...") if names[-1].startswith("...") else None
    return tuple(names[:-1] if rest else names), rest


@cache
def load_script(name: str, database: int) -> Script:
    """Return the script of a verb, made for one database number (which stands in its channels' names).

    Raises `ScriptContractError` when its file or an include is missing or has no contract.
    """
    try:
        source = _file(f"{name}.lua")
        arguments, rest = _contract(name, source)
        preamble = [f"local DB = '{database}'"]
        if arguments:
            slots = ", ".join(f"ARGV[{place}]" for place in range(1, len(arguments) + 1))
            preamble.append(f"local {', '.join(arguments)} = {slots}")
        if rest:
            preamble.append(f"local {rest} = {len(arguments) + 1}")
        source = _INCLUDE.sub(lambda line: "\n".join(_file(f"include/{part}.lua") for part in line[1].split()), source)
    except FileNotFoundError as missing:
        raise ScriptContractError(f"script {name}: no such file: {missing.filename}") from missing
    text = "\n".join([*preamble, source])
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), arguments, rest)
