"""The tools of one run: the agent's own, and what else its turn may call."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from workers.client_tools import ClientTool
from workers.models import ToolSpec
from workers.subagents import SpawnTool
from workers.tools import RunnableTool, Tool, tool

AnyTool = RunnableTool | ClientTool | SpawnTool


def as_tools(tools: Any, place: str) -> tuple[AnyTool, ...]:
    """Return tools and functions as tools. Raises `TypeError` naming the place for what is neither."""
    if isinstance(tools, (Tool, ClientTool, str)) or not isinstance(tools, Iterable):
        raise TypeError(f"{place} must be a sequence of tools, not {type(tools).__name__}")
    made: list[AnyTool] = []
    for at, item in enumerate(tools):
        if isinstance(item, (Tool, ClientTool)):
            made.append(item)
        elif inspect.isroutine(item):
            made.append(tool(item))
        else:
            raise TypeError(f"{place}[{at}] must be a tool, a client tool or a function, not {type(item).__name__}")
    return tuple(made)


class Toolset:
    """Tools by their full ids, in the order in which the model is told of them."""

    def __init__(self, tools: Iterable[AnyTool] = ()) -> None:
        self._by_id: dict[str, AnyTool] = {}
        for item in tools:
            self.add(item)

    def __iter__(self) -> Iterator[AnyTool]:
        return iter(self._by_id.values())

    def add(self, item: AnyTool) -> None:
        """Add a tool. Two stubs may share an id, and their answers are then unchecked; what runs here shares its with none.

        Raises `ValueError` for an id that is taken.
        """
        other = self._by_id.get(item.id)
        if other is not None and not (isinstance(item, ClientTool) and isinstance(other, ClientTool)):
            raise ValueError(f"tools: two tools have the id {item.id!r}; give one of them name=")
        self._by_id[item.id] = item

    def has(self, tool_id: str) -> bool:
        """Whether there is a tool of this full id."""
        return tool_id in self._by_id

    def find(self, tool_id: str) -> AnyTool | None:
        """Return the tool of a full id, or of a name that the model wrote without its namespace; None if there is none.

        A name that tools of several namespaces have is the agent's own tool's, or nobody's.
        """
        found = self._by_id.get(tool_id) or self._by_id.get(f"client.{tool_id}")
        if found is not None:
            return found
        ending = [item for item_id, item in self._by_id.items() if item_id.endswith(f".{tool_id}")]
        return ending[0] if len(ending) == 1 else None

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told about the tools."""
        return tuple(item.spec for item in self)
