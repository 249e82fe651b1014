"""Settings of a deployment, from the environment (`TURNSTREAM_…`) or from code.

Every process of one deployment must agree on `prefix` and `shards`; the rest may differ by process.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

DAY_S = 86_400.0


def _none(value: object) -> object:
    return None if value == "none" else value


_Limit = Annotated[Annotated[float, Field(gt=0)] | None, BeforeValidator(_none)]


class Settings(BaseSettings):
    """All settings with their defaults; durations are in seconds, sizes in bytes, `None` means never or no limit.

    In the environment the word `none` stands for it. Raises `pydantic.ValidationError`, naming the setting, for a value out of
    range.
    """

    model_config = SettingsConfigDict(env_prefix="TURNSTREAM_", frozen=True, extra="ignore")

    redis_url: str | None = None
    """`redis://`, `rediss://`, `unix://`, or `redis+sentinel://host:port,host:port/DB?master=NAME`; unset: embedded."""

    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")] = "ts:"
    """What every key, job id and channel of this deployment begins with (arq's own prefixes are fixed)."""

    shards: Annotated[int, Field(ge=1, le=4096)] = 1
    """Hash tags over which sessions are spread. May grow, never shrink: a session's id carries its shard."""

    lease: Annotated[float, Field(gt=0)] = 15.0
    """How long a worker may hold a turn without renewing; it renews at a quarter of it."""

    slots: Annotated[int, Field(ge=1)] = 100
    """Turns that one worker process runs at once."""

    grace: Annotated[float, Field(ge=0)] = 30.0
    """How long running turns may go on after SIGTERM before they are handed back."""

    max_attempts: Annotated[int, Field(ge=1)] = 5
    """Starts of one turn that may end with a lost worker before it goes to the dead letters."""

    retention: _Limit = 7 * DAY_S
    """How long a session is kept after its end."""

    idle_limit: _Limit = 30 * DAY_S
    """How long a session may have no event, and no turn of it or its subagents run, before it is ended as by cancel.

    As `retention` and `session_lifetime`, that of the process which opens the session.
    """

    session_lifetime: _Limit = None
    """How long after its opening a session is ended, whatever it does."""

    callback_timeout: _Limit = None
    """How long a callback stays open before its call fails as expired and the turn goes on; that of the turn's worker."""

    no_progress: _Limit = 2100.0
    """How long a worker may write nothing for a turn that it runs before the turn ends as failed, `no_progress`.

    Let it be longer than what a tool or a silent model may take (`tool_timeout`, `model_timeout`).
    """

    message_limit: Annotated[int, Field(gt=0)] = 16 * 1024 * 1024
    """Largest message, in bytes of its stored form."""

    tool_timeout: Annotated[float, Field(gt=0)] = 1800.0
    """How long a tool call may take when the tool names no limit of its own."""

    model_attempts: Annotated[int, Field(ge=1)] = 3
    """Tries of one model call, with back-off, while the model's failure says that a retry may help."""

    model_timeout: Annotated[float, Field(gt=0)] = 600.0
    """How long a model may send nothing before its call counts as failed and is tried again."""

    hook_retries: Annotated[int, Field(ge=0)] = 3
    """How often hooks may have one reply of the model written again, before the turn fails with `hook_retry_limit`."""

    reconnect_budget: Annotated[float, Field(gt=0)] = 60.0
    """How long an observer rides out a broker that is away, before `ObservationLost`."""

    command_budget: Annotated[float, Field(gt=0)] = 10.0
    """How long a client's command is retried while the broker is away, before it raises."""

    socket_timeout: Annotated[float, Field(gt=0)] = 4.0
    """How long one reply of the broker may take: less than the 5 s within which work goes on after an outage.

    Blocking commands have a connection and a limit of their own.
    """

    connect_timeout: Annotated[float, Field(gt=0)] = 3.0
    """How long a connection may take to open."""

    max_connections: Annotated[int, Field(ge=4)] = 64
    """Upper bound of one process's connections for commands; each component uses one."""


_OTHERS: Final = ("TURNSTREAM_FAULT", "TURNSTREAM_AGENTS")
"""What else begins so: a fault point, and what the unit in `deploy/` names the agents by."""

_TESTS: Final = re.compile("TURNSTREAM_TEST_.*", re.IGNORECASE)


def unknown_variables(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the variables, of those named, that look like settings and are none, each with the nearest one that is."""
    known = [f"TURNSTREAM_{name.upper()}" for name in Settings.model_fields] + list(_OTHERS)
    unknown = [
        name
        for name in sorted(names)
        if name.upper().startswith("TURNSTREAM_") and name.upper() not in known and not _TESTS.fullmatch(name)
    ]
    return [(name, difflib.get_close_matches(name.upper(), known, n=1, cutoff=0)[0]) for name in unknown]
