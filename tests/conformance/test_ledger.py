"""docs/conformance.md: every line of the specification names a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LEDGER = ROOT / "docs" / "conformance.md"


def rows() -> list[list[str]]:
    """The table's lines as their four cells."""
    lines = [line for line in LEDGER.read_text().splitlines() if re.match(r"\| [AEFGSC]-\d{3} \|", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@cache
def functions_in(path: str) -> frozenset[str]:
    """The names of a file's functions."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_line_has_an_id_a_statement_a_source_and_its_tests() -> None:
    table = rows()
    ids = [row[0] for row in table]

    assert len(table) > 700
    assert len(set(ids)) == len(ids)
    for row in table:
        assert len(row) == 4, row
        assert all(row), row
        assert re.match(r"00[0-3]|API ", row[2]), row


def test_every_named_test_exists() -> None:
    missing = []
    for line, *_, named in rows():
        for part in named.split("<br>"):
            match = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", part)
            if match is None or not (ROOT / match[1]).is_file() or match[2] not in functions_in(match[1]):
                missing.append(f"{line}: {part}")

    assert missing == []


def test_the_field_cases_name_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", (ROOT / "docs" / "field-cases.md").read_text())

    assert len(named) > 20
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in functions_in(path))
    ]
    assert missing == []
