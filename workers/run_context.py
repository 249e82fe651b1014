"""What a run of a turn has besides the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.broker import Broker
from broker.runs import SpawnCall
from workers.agent import AgentDefinition
from workers.leases import Lease
from workers.source_pool import SourcePool


@dataclass(frozen=True)
class RunContext:
    """What a run has besides the log: whose turn it is, on which broker, under which fence."""

    broker: Broker
    definition: AgentDefinition
    session_id: str
    turn_id: str
    fence: str
    inputs: Mapping[str, Any]
    customization: Mapping[str, Any]
    path: tuple[str, ...] = ()
    """Names of subagents, from below the root down to this one; empty for a root."""
    spawned: SpawnCall | None = None
    """The call in the parent's log that this turn answers."""
    pool: SourcePool = field(default_factory=SourcePool)
    lease: Lease = field(default_factory=Lease)
    """For how long the run may go on; by default for ever."""
