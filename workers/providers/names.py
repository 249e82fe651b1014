"""Tool ids as names that providers take: letters, digits, `_` and `-`, at most 64 of them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

_LIMIT: Final = 64
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_-]")


def _plain(text: str) -> str:
    return _REFUSED.sub("_", text)


def _marked(tool_id: str) -> str:
    """A name that differs for ids which look alike once plain, or once cut."""
    digest = hashlib.sha256(tool_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_plain(tool_id)[: _LIMIT - 9]}_{digest}"


class WireNames:
    """The names of one request's tools, of those its history speaks of too, and the way back.

    An id goes without its namespace (`client.search` is `search`) unless that would be another's name as well. The names depend
    on the set of ids alone, so they are the same in every request about the same tools.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        known = sorted(set(ids))
        short = {tool_id: _plain(tool_id.partition(".")[2] or tool_id) for tool_id in known}
        whole = {tool_id: _plain(tool_id) for tool_id in known}
        taken = Counter(name for tool_id in known for name in {short[tool_id], whole[tool_id]})
        self._names: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        for tool_id in known:
            free = (name for name in (short[tool_id], whole[tool_id]) if taken[name] == 1 and 0 < len(name) <= _LIMIT)
            name = next(free, None) or _marked(tool_id)
            self._names[tool_id] = name
            self._ids[name] = tool_id

    def wire(self, tool_id: str) -> str:
        """Return the name of an id that the request speaks of."""
        return self._names[tool_id]

    def tool_id(self, name: str) -> str:
        """Return the id of a name that the model wrote, or the name itself when it made it up."""
        return self._ids.get(name, name)
