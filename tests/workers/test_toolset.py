"""The tools of a run: found by their full ids, or by what a model made of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from workers.client_tools import client_tool
from workers.models import ToolSpec
from workers.tools import ToolResult, tool
from workers.toolset import Toolset


@dataclass(frozen=True)
class Elsewhere:
    """A tool of a source."""

    id: str
    name: str = "search"
    description: str = ""
    retry_safe: bool = False
    spec: ToolSpec = field(default_factory=lambda: ToolSpec("", "", {}))

    async def call(self, arguments: Any, inputs: Any, limit: float) -> ToolResult:
        """Find nothing."""
        return ToolResult(f"{arguments} {inputs} {limit}")


@tool
async def search() -> str:
    """Search here."""
    return ""


@client_tool
def ask() -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask."""


def test_a_name_without_its_namespace_is_the_agents_own_tool() -> None:
    own, other = search, Elsewhere("mcp.docs.search")
    tools = Toolset([own, other])
    assert tools.find("client.search") is own
    assert tools.find("search") is own
    assert tools.find("mcp.docs.search") is other
    assert tools.find("docs.search") is other


def test_a_name_that_two_sources_have_is_nobodys() -> None:
    one = Elsewhere("mcp.docs.search")
    tools = Toolset([one])
    assert tools.find("search") is one
    tools.add(Elsewhere("mcp.wiki.search"))
    assert tools.find("search") is None
    assert tools.find("arch") is None


def test_an_id_is_one_tools() -> None:
    tools = Toolset([search, ask])
    tools.add(client_tool(name="ask", input_schema={"type": "object"}))
    with pytest.raises(ValueError, match=r"two tools have the id 'client\.search'"):
        tools.add(Elsewhere("client.search"))
    with pytest.raises(ValueError, match=r"two tools have the id 'client\.ask'"):
        tools.add(Elsewhere("client.ask"))
