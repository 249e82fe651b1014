"""A worker process that stops each turn at a write of the test's choice: `python doomed.py` says when one stands there.

`TURNSTREAM_TEST_DOOM` maps session ids to `[number of the write, after it]`. It never goes on: the test kills it then.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any, Final

from call_agents import caller

import api_shim as agents
from broker import runs
from broker.broker import Broker
from broker.settings import Settings
from workers.worker import TurnWorker

DOOM: Final[dict[str, tuple[int, bool]]] = json.loads(os.environ["TURNSTREAM_TEST_DOOM"])
_made: Counter[str] = Counter()


def _stopping(name: str) -> None:
    real = getattr(runs, name)

    async def write(broker: Broker, stamp: runs.Write, *rest: Any, **options: Any) -> Any:
        at, after = DOOM.get(stamp.session_id, (0, False))
        _made[stamp.session_id] += 1
        due = _made[stamp.session_id] == at
        result = await real(broker, stamp, *rest, **options) if after or not due else None
        if due:
            print("standing", stamp.session_id, flush=True)
            await asyncio.get_running_loop().create_future()
        return result

    setattr(runs, name, write)


async def main() -> None:
    """Work, until killed."""
    for name in ("append", "park", "finish", "spawn"):
        _stopping(name)
    agent: agents.Agent = caller()
    await TurnWorker(Broker(Settings()), [agent.definition], slots=500).main()


if __name__ == "__main__":
    asyncio.run(main())
