"""The engine in nine chapters: read the files in their order. Every test runs on the embedded broker and on a real server.

`home.agent(model, …)` makes an agent that is served there: embedded, by this process; on the server, by a worker of its own.
What an application writes is only what stands in the tests: `import api_shim as agents`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import homes
import pytest
from homes import Home


@pytest.fixture(params=["embedded", "redis"])
async def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """Each of the two brokers in turn."""
    async for opened in homes.opened(Home, request, monkeypatch):
        yield opened
