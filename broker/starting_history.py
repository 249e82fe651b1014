"""A session's starting history on its way into the log: checked whole, staged in pages, then there with the session.

The pages lie under names of their own, with a TTL, until `open_session` makes the session exist and gives them its log's
name. So a crash in between leaves nothing that lasts, each try begins anew, and of two tries at once one counts, whole.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.broker import Broker
from broker.contents import Completed, Note, completed, replaced_note, size_of
from broker.keys import new_id
from broker.protocol.entries import MessageEntry, entry_to_wire
from broker.protocol.errors import BrokerUnavailableError
from broker.protocol.history_import import HistoryImportEntry, history_entries, import_to_wire, parse_history
from broker.protocol.sends import preview_of
from broker.protocol.values import dumps, watch_replaced
from broker.transitions import Draft, DraftLostError, SessionOptions, open_session, stage

PAGE_ENTRIES: Final = 250
"""Entries of one page: two events each, so as many as one write of a worker may have."""

PAGE_BYTES: Final = 1024 * 1024
"""Bytes at which a page ends; one entry alone may be larger."""

DRAFT_TTL_S: Final = 600.0
"""How long pages wait for the next one, or for the session."""

_BREATH: Final = 200  # entries after which the event loop has its turn
_TRIES: Final = 3


@dataclass(frozen=True)
class StartingHistory:
    """A checked history: its entries as they are stored, notices among them; the digest that equal ones share; a preview."""

    entries: Sequence[Completed | Note]
    digest: str
    preview: bytes

    def pages(self) -> Iterator[list[Completed | Note]]:
        """Yield the entries in pages of bounded count and bytes."""
        page: list[Completed | Note] = []
        size = 0
        for entry in self.entries:
            page.append(entry)
            size += size_of(entry)
            if len(page) == PAGE_ENTRIES or size >= PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page


async def check_history(items: Iterable[Any], message_limit: int) -> StartingHistory | None:
    """Check what `history=` was given; None for an empty one. Sends nothing; the event loop goes on meanwhile.

    Raises `ValueError` or `TypeError` naming the place, such as `history[3].content[0].text`; also for an entry whose
    stored form has more than `message_limit` bytes.
    """
    checked: list[HistoryImportEntry] = []
    halves: set[int] = set()
    digest = hashlib.sha256()
    for item, replaced in _watched(parse_history(items)):
        if replaced:
            halves.add(len(checked))
        digest.update(dumps(import_to_wire(item), sort_keys=True) + b"\n")
        checked.append(item)
        if len(checked) % _BREATH == 0:
            await asyncio.sleep(0)
    entries: list[Completed | Note] = []
    preview = b""
    for at, entry in enumerate(history_entries(checked)):
        with watch_replaced() as unclean:
            stored = completed(entry_to_wire(entry))
        if (size := size_of(stored)) > message_limit:
            raise ValueError(f"history[{at}]: {size:,} bytes; an entry has at most {message_limit:,}")
        entries.append(stored)
        if unclean or at in halves:
            entries.append(replaced_note(f"entry:{entry.id}", "An entry of the starting history"))
        if not preview and isinstance(entry, MessageEntry) and entry.role == "user":
            preview = preview_of(entry.content)
        if at % _BREATH == 0:
            await asyncio.sleep(0)
    return StartingHistory(entries, digest.hexdigest()[:32], preview) if entries else None


def _watched(items: Iterator[HistoryImportEntry]) -> Iterator[tuple[HistoryImportEntry, bool]]:
    """Yield each item, and whether halves of characters were replaced in it."""
    while True:
        with watch_replaced() as replaced:
            item = next(items, None)
        if item is None:
            return
        yield item, bool(replaced)


async def open_with_history(broker: Broker, session_id: str, options: SessionOptions, history: StartingHistory) -> bool:
    """Open a session that begins with a history; False when it was open already with the same options.

    Raises as `open_session`; `SessionBusyError` when the broker is out of memory, `BrokerUnavailableError`. What was staged
    in vain is gone after a while.
    """
    for _ in range(_TRIES):
        try:
            return await open_session(broker, session_id, options, await _staged(broker, session_id, history))
        except DraftLostError:
            continue
    raise BrokerUnavailableError(
        f"Session {session_id}: the broker lost pages of its starting history {_TRIES} times; it was not opened."
    )


async def _staged(broker: Broker, session_id: str, history: StartingHistory) -> Draft:
    """Stage a history; part of it when the session exists by then."""
    draft = Draft(new_id(), 0)
    for page in history.pages():
        staged = await stage(broker, session_id, draft, page, ttl=DRAFT_TTL_S)
        if staged is None:
            break
        draft = staged
    return draft
