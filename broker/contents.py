"""Entries on their way in: as the scripts take them, each with the blob that it refers to if its body is large.

A notice about them may stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from broker.keys import new_id
from broker.protocol.values import JsonValue
from broker.protocol.wire import INLINE_LIMIT, entry_tail, tail
from broker.scripting import Argument


@dataclass(frozen=True)
class Blob:
    """A body over the inline limit: stored once beside the log, referred to by a record."""

    id: str
    body: bytes


Completed = bytes | tuple[Blob, bytes]
"""A complete entry as the scripts take it: the tail of its EntryCompleted, with the blob that this refers to."""


@dataclass(frozen=True)
class Note:
    """A notice on its way in, as the tail of its record."""

    tail: bytes


def replaced_record(source: str, what: str) -> dict[str, JsonValue]:
    """Return the notice that halves of characters were replaced in `what`; `source` says where: `entry:<id>`, or `session`."""
    return {
        "type": "notice",
        "level": "warning",
        "message": f"{what} held half characters, which were replaced.",
        "source": source,
        "details": {"reason": "replaced_text"},
    }


def replaced_note(source: str, what: str) -> Note:
    """Return the same as it goes in."""
    return Note(tail(replaced_record(source, what)))


def completed(entry: dict[str, JsonValue]) -> Completed:
    """Return an entry as the scripts take it. Raises `ValueError` for what JSON cannot hold."""
    body = entry_tail("entryCompleted", entry)
    if len(body) <= INLINE_LIMIT:
        return body
    blob = Blob(new_id(), body)
    return blob, tail({"type": "entryCompleted", "blob": blob.id})


def size_of(entry: Completed | Note) -> int:
    """Return the bytes of an entry's stored form, or of a notice."""
    if isinstance(entry, Note):
        return len(entry.tail)
    return len(entry[0].body) if isinstance(entry, tuple) else len(entry)


def contents(entries: Iterable[Completed | Note]) -> Iterator[Argument]:
    """Yield the `...contents` of a script."""
    for entry in entries:
        if isinstance(entry, Note):
            yield from ("note", entry.tail)
        elif isinstance(entry, tuple):
            blob, reference = entry
            yield from ("blob", blob.id, blob.body, reference)
        else:
            yield entry


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as the scripts take it: completed tails, the user's entry first, with the blobs they refer to; then notices."""

    tails: Sequence[Completed | Note]
    digest: str
    preview: bytes = b""

    def values(self) -> list[Argument]:
        """Return the `...contents` of `start` and `steer`."""
        return list(contents(self.tails))
