"""What a turn does next: a pure function of its history.

```
            ┌────────────── results, inputs ──────────────┐
            ▼                                             │
   start ─ CallModel ── reply without calls ── Finish     │     OpenTurn before the first CallModel, if hooks want it
                │                                         │
                └─ reply with calls ── RunTools ── all results
                                     ├ FailLost   a started tool lost its worker
                                     ├ Wait       calls of this run are under way
                                     └ Park       only answers and subagents are missing: the job returns
```

A model call before which a person must sign in to a tool source puts that question into the log: then Park, until it is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workers.fold import Call, History

StopReason = Literal["iteration_limit", "skipped"] | None


@dataclass(frozen=True)
class OpenTurn:
    """Ask the hooks, before the first model call, whether there is to be one."""


@dataclass(frozen=True)
class CallModel:
    """Ask the model; its reply enters the log as one append."""


@dataclass(frozen=True)
class RunTools:
    """Run these calls, or write down what was decided or answered about them."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class FailLost:
    """These had started when their worker was lost: nobody knows what they did, so they fail and the model decides."""

    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Wait:
    """Calls of this run are under way; their results, or news, decide."""


@dataclass(frozen=True)
class Park:
    """Only answers and ends of subagents are missing."""


@dataclass(frozen=True)
class Finish:
    """The turn is done."""

    stop_reason: StopReason = None


Step = OpenTurn | CallModel | RunTools | FailLost | Wait | Park | Finish


def next_step(
    history: History,
    running: frozenset[str],
    max_iterations: int | None = None,
    *,
    children: int = 10,
    opening: bool = False,
) -> Step:
    """Return the next step. `running` holds the tool_call_ids that this run has started: empty after begin.

    `children` is how many subagents may run at once. `opening`: the agent has hooks that a turn begins with.
    """
    pending = [call for call in history.calls.values() if not call.done]
    idle = [call for call in pending if call.tool_call_id not in running]
    lost = [call for call in idle if call.started and not call.retry_safe and not call.spawns]
    if lost:
        return FailLost(tuple(lost))
    free = children - sum(call.spawns and (call.started or call.tool_call_id in running) for call in pending)
    ready: list[Call] = []
    for call in idle:
        if call.starts_child:
            free -= 1
        if call.ready and not (call.starts_child and free < 0):
            ready.append(call)
    if ready:
        return RunTools(tuple(ready))
    if pending or history.sources.sign_in is not None:
        return Wait() if running else Park()
    if history.hooks.closed:
        return Finish("skipped")
    if not history.awaits_model:
        return Finish()
    if opening and not history.hooks.opened and not history.replies:
        return OpenTurn()
    if max_iterations is not None and history.replies >= max_iterations:
        return Finish("iteration_limit")
    return CallModel()
