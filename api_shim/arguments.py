"""Arguments of calls, checked before anything is sent: each refusal names the argument and what it may be."""

from __future__ import annotations

import math
from typing import Any, Final

from broker.protocol.values import clean_text, is_clean

TITLE_LIMIT: Final = 16 * 1024 * 1024
"""Characters of a session's title at most, as many as a message may have bytes. Keep it short all the same: each change of
the session's status writes it again.
"""

KEY_LIMIT: Final = 512


def check_wait(timeout: object, on_event: object) -> None:
    """Check what a wait is given. Raises `TypeError` or `ValueError`."""
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
        if math.isnan(timeout):
            raise ValueError("timeout must be a number of seconds or None, not nan")
    check_callable("on_event", on_event)


def check_callable(name: str, function: object) -> None:
    """Check a function that the caller may leave out. Raises `TypeError`."""
    if function is not None and not callable(function):
        raise TypeError(f"{name} must be a function or None, not {type(function).__name__}")


def check_key(key: object) -> None:
    """Check an idempotency key. Raises `TypeError` or `ValueError`."""
    if key is None:
        return
    if not isinstance(key, str):
        raise TypeError(f"idempotency_key must be a text or None, not {type(key).__name__}")
    if not 1 <= len(key) <= KEY_LIMIT or not is_clean(key):
        raise ValueError(f"idempotency_key must be 1 to {KEY_LIMIT} characters, without halves of surrogate pairs")


def checked_title(title: object) -> str:
    """Return a title as it is stored. Raises `TypeError` or `ValueError`."""
    if not isinstance(title, str):
        raise TypeError(f"title must be a text, not {type(title).__name__}")
    if len(title) > TITLE_LIMIT:
        raise ValueError(f"title: {len(title):,} characters; a title has at most {TITLE_LIMIT:,}")
    return clean_text(title)


def check_limit(limit: Any) -> None:
    """Check a limit of a listing. Raises `TypeError` or `ValueError`."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise TypeError(f"limit must be a whole number or None, not {type(limit).__name__}")
    if limit < 0:
        raise ValueError(f"limit must be 0 or more, not {limit}")
