"""What tests of tool sources share: calls of their tools, what the log says of them, and connectors' credentials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tool_servers import Case

from broker.protocol.content import content_text
from workers.models import ContextNote, ModelRequest, ModelToolCall
from workers.sources import Connector, ConnectorContext


def use(tool: str, call_id: str = "c1", **arguments: Any) -> ModelToolCall:
    """A call of a tool by its full id."""
    return ModelToolCall(call_id, tool, arguments)


def notices(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        record for record in records if record["type"] == "notice" and record["source"].startswith(("mcp:", "conn"))
    ]


def told(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What the model was told of sources: about which one, and what."""
    entries = [record["entry"] for record in records if record["type"] == "entryCompleted"]
    return [(e["source"], e["content"][0]["text"]) for e in entries if e.get("kind") == "capability_source"]


def notes(request: ModelRequest) -> list[str]:
    return [content_text(each.content) for each in request.messages if isinstance(each, ContextNote)]


def ids(request: ModelRequest) -> set[str]:
    return {spec.id for spec in request.tools}


class Vault:
    """Where users' credentials are kept: what each call gives, in order; the last one stays."""

    def __init__(self, *given: Any) -> None:
        self.given = list(given)
        self.asked: list[ConnectorContext] = []

    async def credentials(self, ctx: ConnectorContext) -> Any:
        self.asked.append(ctx)
        given = self.given.pop(0) if len(self.given) > 1 else self.given[0]
        if isinstance(given, BaseException):
            raise given
        return given


def connector(case: Case, credentials: Callable[..., Any], name: str = "notion", **options: Any) -> Connector:
    """A connector of the running server. The case is in the address, since its headers are its credentials."""
    url = f"{case.url}?case={case.path}"
    return Connector(
        name, url=url, sign_in_url=f"https://{name}.example/login", credentials=credentials, timeout=10.0, **options
    )
