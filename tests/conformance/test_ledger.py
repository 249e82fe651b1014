"""docs/conformance.md: every line of the specification names a test that exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from broker.settings import Settings

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


@pytest.mark.parametrize("page", ["field-cases.md", "promises.md"])
def test_a_page_names_tests_that_exist(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", (ROOT / "docs" / page).read_text())

    assert len(named) > 20
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in functions_in(path))
    ]
    assert missing == []


def test_each_field_case_stands_once_and_in_order() -> None:
    """The page is merged line by line, which keeps both of two lines that differ."""
    page = (ROOT / "docs" / "field-cases.md").read_text()
    cases = re.findall(r"^\| (F\d\d) \|", page, re.MULTILINE)

    assert len(cases) == page.count("\n| F")
    assert cases == sorted(set(cases))


def test_each_decision_is_a_paragraph_of_its_own() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text()

    assert re.findall(r"(?<!\n)\n(\*\*[A-Z`].*)", page) == []
    named = re.findall(r"^\*\*(.+?)\*\*", page, re.MULTILINE)
    assert sorted(named) == sorted(set(named))


def test_each_promise_says_what_it_needs_what_it_costs_and_what_holds_it() -> None:
    page = (ROOT / "docs" / "promises.md").read_text()
    promises = re.findall(r"^### (\d+)\. .+\n\n((?:.+\n)+)\n((?:.+\n)+)", page, re.MULTILINE)
    known = {
        *Settings.model_fields,
        *re.findall(r"^(?:# (?=min-))?([a-z-]+) \S", (ROOT / "deploy" / "redis.conf").read_text(), re.MULTILINE),
    }

    assert [int(number) for number, _, _ in promises] == list(range(1, len(promises) + 1))
    assert len(promises) == page.count("\n### ")
    for number, _, kept in promises:
        assert re.match(r"- Needs: (?s:.+)^- Loss budget: (?s:.+)^- Held by: `tests/", kept, re.MULTILINE), number
        needs = kept.partition("\n- Loss budget")[0]
        assert {name.split()[0] for name in re.findall(r"`([^`]+)`", needs)} <= known, number
