"""Permissions: what is decided for a call, and what the model reads of one that did not run."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from workers.permissions import (
    Decision,
    PermissionMode,
    PermissionPolicy,
    PermissionRule,
    decide,
    denied_text,
    expired_text,
    interrupted_text,
    lost_text,
    refused_text,
    skipped_text,
)

TOOL = "client.get_alert"


@pytest.mark.parametrize(
    ("said", "mode", "decided", "when_granted"),
    [
        ("allow", "auto", "run", "run"),
        ("allow", "ask", "ask", "run"),
        ("allow", "deny", "refused", "refused"),
        ("ask", "auto", "ask", "run"),
        ("ask", "ask", "ask", "run"),
        ("ask", "deny", "refused", "refused"),
        ("deny", "auto", "refused", "refused"),
        ("deny", "ask", "refused", "refused"),
        ("deny", "deny", "refused", "refused"),
    ],
)
def test_policy_and_mode_decide_and_a_grant_answers_the_question(
    said: Decision, mode: PermissionMode, decided: str, when_granted: str
) -> None:
    policy = PermissionPolicy(default=said)

    assert decide(TOOL, mode, policy, frozenset()) == decided
    assert decide(TOOL, mode, policy, {TOOL}) == when_granted


@pytest.mark.parametrize(("mode", "decided"), [("auto", "run"), ("ask", "ask"), ("deny", "refused")])
def test_no_policy_allows(mode: PermissionMode, decided: str) -> None:
    assert decide(TOOL, mode, None, frozenset()) == decided


def test_a_grant_is_for_its_tool_only() -> None:
    assert decide(TOOL, "ask", None, {"client.get_alerts", "client.get"}) == "ask"


def rule(decision: Decision, *globs: str) -> PermissionRule:
    return PermissionRule(tools=globs, decision=decision)


def test_the_first_rule_that_matches_wins() -> None:
    policy = PermissionPolicy(
        default="deny", rules=[rule("ask", "client.del*"), rule("deny", "client.delete"), rule("allow", "client.*")]
    )

    assert policy.decision("client.delete") == "ask"
    assert policy.decision("client.read") == "allow"
    assert policy.decision("mcp.read") == "deny"


@pytest.mark.parametrize(
    ("glob", "tool_id", "matches"),
    [
        ("client.*", "client.get_alert", True),
        ("client.*", "clients.get_alert", False),
        ("*", "anything.at.all", True),
        ("client.get_?", "client.get_a", True),
        ("client.get_[ab]", "client.get_c", False),
        ("get_alert", "client.get_alert", False),
        ("client.get", "client.get_alert", False),
        ("Client.*", "client.get_alert", False),
    ],
)
def test_a_glob_is_of_the_whole_id_and_of_its_case(glob: str, tool_id: str, matches: bool) -> None:
    policy = PermissionPolicy(default="deny", rules=[rule("allow", "never", glob)])

    assert policy.decision(tool_id) == ("allow" if matches else "deny")


def test_a_policy_without_rules_allows() -> None:
    assert PermissionPolicy().decision(TOOL) == "allow"


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: PermissionRule(tools="client.*", decision="allow"), TypeError, "tools must be a list of globs"),
        (lambda: PermissionRule(tools=[1], decision="allow"), TypeError, "tools must be a list of globs"),  # type: ignore[list-item] # what is tested
        (lambda: PermissionRule(tools=["*"], decision="alow"), ValueError, "decision must be .* not 'alow'"),  # type: ignore[arg-type] # what is tested
        (lambda: PermissionPolicy(default="run"), ValueError, "default must be .* not 'run'"),  # type: ignore[arg-type] # what is tested
        (lambda: PermissionPolicy(rules=[{"tools": ["*"]}]), TypeError, r"rules\[0\] must be a PermissionRule"),  # type: ignore[list-item] # what is tested
    ],
)
def test_a_policy_that_says_nothing_sensible_is_refused(make: Any, error: type[Exception], said: str) -> None:
    """Above all globs as one text, which would be a glob for each of its letters."""
    with pytest.raises(error, match=said):
        make()


def test_the_texts_of_calls_that_did_not_run_are_distinct_and_name_the_tool() -> None:
    texts = [
        refused_text(TOOL),
        denied_text(TOOL, None),
        denied_text(TOOL, "too late at night"),
        expired_text(TOOL),
        interrupted_text(TOOL, started=False),
        interrupted_text(TOOL, started=True),
        lost_text(TOOL),
    ]

    assert all(text.startswith(TOOL) for text in texts)
    assert not any(one.rstrip(".") in other for one, other in itertools.permutations(texts, 2) if one != texts[1])
    assert "policy" in texts[0]
    assert texts[2].endswith(": too late at night.")
    assert "worker_lost" in texts[6]


@pytest.mark.parametrize("text", [interrupted_text(TOOL, started=True), lost_text(TOOL)])
def test_a_call_that_had_started_is_never_told_as_one_that_did_not_run(text: str) -> None:
    assert "not known" in text
    assert "was not run" not in text


@pytest.mark.parametrize(("reason", "read"), [("too dear", "too dear."), ("Too dear.", "Too dear."), ("Why?", "Why?")])
def test_a_reason_ends_in_one_full_stop(reason: str, read: str) -> None:
    assert denied_text(TOOL, reason) == f"{TOOL} was not run: a person denied it: {read}"
    assert skipped_text(TOOL, reason) == f"{TOOL} was not run: a hook skipped it: {read}"
