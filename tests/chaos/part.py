"""One part of the chaos run: a deployment of its own, a schedule's turns and faults on it, and the verdict on what is left."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ledger
from crew import HERE, Crew
from faults import Faults
from people import People
from proxy import Proxy
from schedule import LEASE_S, PROXIES, Schedule, SessionPlan
from verdict import Evidence, Verdict
from watchers import Watchers

from api_shim.local import place_of
from broker import transitions
from broker.broker import Broker
from broker.server import LocalServer
from broker.settings import Settings

PREFIX: Final = "chaos:"
ROOT: Final = HERE.parent.parent
SETTLED_S: Final = 60.0
"""How long turns may take to end once the faults are over, on a machine that has other things to do; what they took is told."""


def environment(schedule: Schedule, **more: str) -> dict[str, str]:
    """Return the settings of every process of a part."""
    return {
        "TURNSTREAM_SHARDS": str(schedule.shards),
        "TURNSTREAM_PREFIX": PREFIX,
        "TURNSTREAM_LEASE": f"{LEASE_S:g}",
        "TURNSTREAM_MAX_ATTEMPTS": str(schedule.max_attempts),
        "TURNSTREAM_SOCKET_TIMEOUT": "1",
        "TURNSTREAM_CONNECT_TIMEOUT": "1",
        "TURNSTREAM_RECONNECT_BUDGET": "60",
        **more,
    }


@dataclass
class Part:
    """A schedule, the folder that holds all of this part, and the foundation's code (None: workers of HEAD alone)."""

    schedule: Schedule
    folder: Path
    old: Path | None

    async def run(self) -> dict[str, Any]:
        """Run it; return its report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(environment(self.schedule))
        options = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        async with AsyncExitStack() as stack:
            server = LocalServer(self.folder, *options)
            await asyncio.to_thread(server.start)
            stack.callback(server.stop)
            proxies = {name: await stack.enter_async_context(Proxy(server.port)) for name in PROXIES}
            broker = Broker(Settings(redis_url=server.url))
            stack.push_async_callback(broker.close)
            crew = Crew(self.schedule, self.folder, self._environments(proxies))
            await stack.enter_async_context(crew.working())
            return await self._play(server, proxies, broker, crew)

    def _environments(self, proxies: Mapping[str, Proxy]) -> dict[str, dict[str, str]]:
        trees = {"head": ROOT} if self.old is None else {"head": ROOT, "old": self.old}
        return {
            version: os.environ
            | ({} if version == "head" else {"CHAOS_PLANT": ""})  # what is planted is a fault of HEAD
            | environment(
                self.schedule,
                TURNSTREAM_REDIS_URL=proxies[version].url,
                CHAOS_LEDGER=str(self.folder / "ledger"),
                PYTHONPATH=f"{tree}:{HERE}",
            )
            for version, tree in trees.items()
        }

    async def _play(
        self, server: LocalServer, proxies: Mapping[str, Proxy], broker: Broker, crew: Crew
    ) -> dict[str, Any]:
        begun = time.time()
        urls = [proxies[name].url for name in PROXIES[2:]]
        people, watchers = People(self.schedule, urls), Watchers(self.schedule.seed, urls)
        faults = Faults(self.schedule, crew, server, proxies, lambda: held_by(broker), people.told.keys)

        def opened(session_id: str, plan: SessionPlan) -> None:
            watchers.watch(session_id, plan.watchers)

        working = asyncio.create_task(people.run(opened))
        try:
            await faults.run()
            for proxy in proxies.values():
                proxy.go_on()
            struck = time.time()
            await crew.calm()
            calm = time.time()
            findings = await self._settled(working)
            settled = time.time()
            evidence = Evidence(broker, self.schedule, people.told, ledger.read(self.folder / "ledger"), crew, faults)
            verdict = Verdict(evidence)
            verdict.findings += findings
            await verdict.ghosts()
            for session_id in people.told.sessions:
                await transitions.cancel(broker, session_id)
            await watchers.end(within=30.0)
            watched = time.time()
            await verdict.logs(watchers.seen)
            await verdict.leaks()
            report = verdict.report()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await watchers.close()
            for url in urls:
                await place_of(url).close()
        report["watched_in"] = round(watched - settled, 1)
        report |= {
            "seconds": round(time.time() - begun, 1),
            "settled_in": round(settled - calm, 1),
            "faults_took": round(struck - begun, 1),
        }
        return report

    async def _settled(self, working: asyncio.Task[None]) -> list[str]:
        await asyncio.wait({working}, timeout=SETTLED_S)
        if not working.done():
            return [f"not every accepted turn had ended {SETTLED_S:g} s after the last fault"]
        failed = working.exception()
        return [f"the clients failed: {failed!r}"] if failed is not None else []


async def held_by(broker: Broker) -> list[tuple[str, str, str, int]]:
    """Return who holds which turn: worker, session, turn, and the number of the session's last event.

    Nothing while the broker is away.
    """
    keys, found = broker.keys, []
    try:
        async with asyncio.timeout(0.5), broker.client.pipeline(transaction=False) as asked:
            for shard in range(broker.settings.shards):
                asked.zrange(f"{keys.base(shard)}active", 0, -1)
            sessions = [raw.decode() for page in await asked.execute() for raw in page]
            for session_id in sessions:
                asked.hmget(keys.of("session", session_id), ["holder", "turn", "n"])
            for session_id, (holder, turn, last) in zip(sessions, await asked.execute(), strict=True):
                if holder and turn:
                    found.append((holder.decode(), session_id, turn.decode(), int(last)))
    except Exception:  # noqa: BLE001 - whatever a broker that is away brings about: then nothing is known of this kill
        return []
    return found
