"""Listing: the sessions of a deployment, newest first, with titles, previews and the archive.

    python examples/listing.py

It prints:

    Berlin (waiting): Where is it warm?
    Lisbon (waiting): Where is it warm?
    in the archive: Lisbon
    ended: Berlin (cancelled)
"""

from __future__ import annotations

import asyncio

import api_shim as agents

guide = agents.Agent(name="travel_guide", model="scripted:echo")


async def main() -> None:
    mine: list[str] = []
    for city in ("Lisbon", "Bern"):
        session = await guide.start_session(title=city)
        await session.run("Where is it warm?")
        mine.append(session.id)
    await session.rename("Berlin")

    async for info in agents.list_sessions(agent_name="travel_guide", limit=2):
        print(f"{info.title} ({info.status}): {info.preview}")

    await guide.session(mine[0]).archive()
    async for info in agents.list_sessions(agent_name="travel_guide", archived=True):
        if info.id == mine[0]:
            print("in the archive:", info.title)

    await session.cancel()
    info = await session.info()
    print(f"ended: {info.title} ({info.termination})")
    await guide.session(mine[0]).cancel()


if __name__ == "__main__":
    asyncio.run(main())
