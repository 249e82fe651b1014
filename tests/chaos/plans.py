"""A turn's log against the plan in its message: each step was decided once, none was left out, and the hook counted each call."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from broker.history_check import LogRecord


def text_of(body: Mapping[str, Any]) -> str:
    """Return the text of a message that was sent, by a person or an agent above; "" of any other record."""
    entry = body.get("entry") or {}
    if body.get("type") != "entryCompleted" or entry.get("type") != "message" or entry.get("role") == "assistant":
        return ""
    return "".join(block.get("text", "") for block in entry["content"])


def made_calls(records: Sequence[LogRecord]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each call of a tool that has a key, with its turn, in their order."""
    for each in records:
        entry = each.body.get("entry") or {}
        called = each.body.get("type") == "entryCompleted" and entry.get("type") == "toolCall"
        if called and "key" in (entry.get("arguments") or {}):
            yield each.body.get("turnId", ""), entry


def check_plans(records: Sequence[LogRecord]) -> Iterator[str]:
    """Say of each completed turn what it did else than the one plan it had; of two, the first was broken off."""
    plans: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in records:
        if (text := text_of(each.body)).startswith("plan "):
            plans[each.body.get("turnId", "")].append(json.loads(text.removeprefix("plan ")))
    made: dict[str, list[str]] = defaultdict(list)
    for turn, call in made_calls(records):
        made[turn].append(call["arguments"]["key"])
    for each in records:
        state, turn = each.body.get("state") or {}, each.body.get("turnId", "")
        if each.body.get("type") != "turnEnded" or state.get("type") != "completed":
            continue
        if not state["text"].endswith(f"Done: {plans[turn][-1]['key']}"):
            yield f"turn {turn} is completed and has not done its plan: {state['text'][-60:]!r}"
        if len(plans[turn]) == 1 and made[turn] != _planned(plans[turn][0]):
            yield f"turn {turn} made the calls {made[turn]}, planned were {_planned(plans[turn][0])}"


def _planned(plan: dict[str, Any]) -> list[str]:
    found = []
    for at, (word, *rest) in enumerate(plan["steps"]):
        if word == "say":
            found.append(f"{plan['key']}.{at}.say")
        else:
            found += [f"{plan['key']}.{at}.{place}" for place, (kind, _) in enumerate(rest) if kind != "spawn"]
    return found


def check_counts(records: Sequence[LogRecord]) -> Iterator[str]:
    """The hook's state is kept with what the hook decided: its count in each call is one more than in the call before."""
    counts = [call["arguments"]["seen"] for _, call in made_calls(records) if "seen" in call["arguments"]]
    if counts != list(range(1, len(counts) + 1)):
        yield f"the hook counted its calls as {counts}"
