"""Names of keys and channels, and the ids that stand in them.

All keys of one session share its shard's hash tag `{s<n>}`, so every transition is one script on one node. The scripts build
the same names from `KEYS[1]` (`scripts/include/session.lua`); this module has those that Python needs.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from typing import Final

SESSION_ID: Final = re.compile(r"(0|[1-9][0-9]{0,3})-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")
AGENT_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_KEYED_SESSIONS: Final = uuid.UUID("6f0c1c52-3f53-4b0e-9d6e-2a1b7d1f6a10")


def new_id() -> str:
    """Return a random id for a turn, an entry, a callback or a nonce: UUID text."""
    return str(uuid.uuid4())


def new_session_id(shards: int, agent: str = "", key: str | None = None) -> str:
    """Return a session id, `<shard>-<uuid>`: random, or for an idempotency key always the same one."""
    unique = uuid.uuid4() if key is None else uuid.uuid5(_KEYED_SESSIONS, f"{agent}\n{key}")
    shard = int.from_bytes(hashlib.sha256(unique.bytes).digest()[:4]) % shards
    return f"{shard}-{unique}"


def shard_of(session_id: str) -> int | None:
    """Return the shard that a session id carries, or None when it is no session id."""
    match = SESSION_ID.fullmatch(session_id)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class Keys:
    """Key names of one deployment: its prefix and, for channels, its database number (pub/sub ignores databases)."""

    prefix: str
    database: int

    def base(self, shard: int) -> str:
        """Return what all keys of one shard begin with."""
        return f"{self.prefix}{{s{shard}}}:"

    def of(self, kind: str, session_id: str) -> str:
        """Return the key of one kind (`session`, `log`, `blobs`, …) of a session.

        Raises `KeyError` for an id that no session can have.
        """
        return f"{self.base_of(session_id)}{kind}:{session_id}"

    def base_of(self, session_id: str) -> str:
        """Return what the keys of a session's shard begin with. Raises `KeyError` for an id that no session can have."""
        shard = shard_of(session_id)
        if shard is None:
            raise KeyError(session_id)
        return self.base(shard)

    def live(self, session_id: str) -> str:
        """Return the channel on which a session's events are published."""
        return self.of(f"live:{self.database}", session_id)

    def control(self, shard: int, worker: str) -> str:
        """Return the channel of hints to one worker."""
        return f"{self.base(shard)}control:{self.database}:{worker}"

    def queue(self, shard: int, agent: str) -> str:
        """Return the queue of an agent's turns in one shard."""
        return f"{self.base(shard)}queue:{agent}"
