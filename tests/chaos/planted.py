"""Faults of the engine, planted into HEAD's workers by `CHAOS_PLANT`, to see that the run finds them. Never in the product."""

from __future__ import annotations

import os
from typing import Any, Final

from broker import queue, scripting

PLANTS: Final = {
    # A run whose fence fell writes on, beside the one that followed it; it is told of no lost lease either.
    "fence": (
        "include/fenced.lua",
        "  if not s or s.fence ~= fence or fence == '' then return {'superseded'} end\n",
        "  if not s or fence == '' then return {'superseded'} end\n  if s.fence ~= fence and s.turn ~= '' then return nil end\n",
    ),
    # Now and then an event is counted and published, and not stored.
    "event": (
        "include/emit.lua",
        "  redis.call('XADD', s.log, last_id(s), 'e', body, 'r', s.run or '')\n",
        "  if s.n % 211 ~= 0 then redis.call('XADD', s.log, last_id(s), 'e', body, 'r', s.run or '') end\n",
    ),
    # A tool that must not run twice is taken for one that may (`chaos_agents`).
    "twice": ("", "", ""),
}
"""By name: the script's file, what stands in it, and what stands there in its place."""


def plant() -> None:
    """Plant what `CHAOS_PLANT` names into this process, if anything."""
    name = os.environ.get("CHAOS_PLANT", "")
    if not name:
        return
    file, sound, broken = PLANTS[name]
    read = scripting._file  # the one place through which every script goes

    def planted(path: str) -> str:
        source = read(path)
        if path != file:
            return source
        if sound not in source:
            raise RuntimeError(f"{file} has changed: nothing to plant {name!r} in")
        return source.replace(sound, broken)

    if file:
        scripting._file = planted  # type: ignore[assignment]
    if name == "fence":
        _hear_of_no_lost_lease()


def _hear_of_no_lost_lease() -> None:
    renew = queue.renew

    async def deaf(*arguments: Any, **options: Any) -> Any:
        return type(await renew(*arguments, **options))()

    queue.renew = deaf
