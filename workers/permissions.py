"""Whether a call may run: decided once, written into the log with the call, never decided again.

policy says     mode auto    mode ask               mode deny
allow           run          ask (run if granted)   refused
ask             ask          ask                    refused      (run if granted)
deny            refused      refused                refused
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

PermissionMode = Literal["auto", "ask", "deny"]
Decision = Literal["allow", "ask", "deny"]


def _check_decision(argument: str, decision: object) -> None:
    if decision not in get_args(Decision):
        raise ValueError(f"{argument} must be 'allow', 'ask' or 'deny', not {decision!r}")


@dataclass(frozen=True, kw_only=True)
class PermissionRule:
    """What is decided for tools whose full id matches one of these globs.

    Raises `TypeError` for globs that are no sequence of texts, `ValueError` for an unknown decision.
    """

    tools: Sequence[str]
    decision: Decision

    def __post_init__(self) -> None:
        # A text is a sequence of texts too: its "*" alone would match every tool.
        if isinstance(self.tools, str) or not all(isinstance(glob, str) for glob in self.tools):
            raise TypeError(f'tools must be a list of globs such as ["client.*"], not {self.tools!r}')
        _check_decision("decision", self.decision)


@dataclass(frozen=True, kw_only=True)
class PermissionPolicy:
    """The first rule that matches wins; `default` where none does.

    Raises `ValueError` for an unknown default, `TypeError` for rules that are none.
    """

    default: Decision = "allow"
    rules: Sequence[PermissionRule] = field(default=())

    def __post_init__(self) -> None:
        _check_decision("default", self.default)
        for at, rule in enumerate(self.rules):
            if not isinstance(rule, PermissionRule):
                raise TypeError(f"rules[{at}] must be a PermissionRule, not {type(rule).__name__}")

    def decision(self, tool_id: str) -> Decision:
        """Return what the policy says of a tool."""
        for rule in self.rules:
            if any(fnmatchcase(tool_id, glob) for glob in rule.tools):
                return rule.decision
        return self.default


def decide(
    tool_id: str, mode: PermissionMode, policy: PermissionPolicy | None, granted: frozenset[str] | set[str]
) -> Literal["run", "ask", "refused"]:
    """Return what to do with a call, by the table above. `granted`: tools allowed for the whole session."""
    said = policy.decision(tool_id) if policy is not None else "allow"
    if said == "deny" or mode == "deny":
        return "refused"
    if said == "ask" or mode == "ask":
        return "run" if tool_id in granted else "ask"
    return "run"


def refused_text(tool_id: str) -> str:
    """What the model reads of a call that the policy refused."""
    return f"{tool_id} was not run: the permission policy refuses it."


def sentence_end(reason: str) -> str:
    """Return a reason as the end of a sentence, whether or not its author set a full stop."""
    return reason if reason.endswith((".", "!", "?")) else f"{reason}."


def skipped_text(tool_id: str, reason: str) -> str:
    """What the model reads of a call that a hook left out."""
    return f"{tool_id} was not run: a hook skipped it: {sentence_end(reason)}"


def denied_text(tool_id: str, reason: str | None) -> str:
    """What the model reads of a call that a person denied."""
    return f"{tool_id} was not run: a person denied it{f': {sentence_end(reason)}' if reason else '.'}"


def expired_text(tool_id: str) -> str:
    """What the model reads of a call whose question nobody answered in time."""
    return f"{tool_id} was not run: nobody answered in time."


def interrupted_text(tool_id: str, *, started: bool) -> str:
    """What the model reads of a call that was cut off."""
    if started:
        return f"{tool_id} was interrupted while it ran; what it did is not known."
    return f"{tool_id} was not run: the turn was interrupted before it started."


def lost_text(tool_id: str) -> str:
    """What the model reads of a call whose worker was lost."""
    return f"{tool_id} had started when its worker was lost (worker_lost); what it did is not known."


def away_text(tool_id: str) -> str:
    """What the model reads of a call whose tool source cannot be used."""
    return f"{tool_id} was not run: its server cannot be used now."


def unknown_text(tool_id: str) -> str:
    """What the model reads of a call of a tool that is not there any more."""
    return f"{tool_id} is not among the tools of the agent that this worker serves."
