"""Logs: what happened to which session and turn. Ids only; never contents, arguments or results."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import structlog


def configure_logging(*, json: bool = False, level: int = logging.INFO) -> None:
    """Log to stderr, for a person or (`json`) for programs, from `level` on."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Asked for at each line: a program may have put another stderr in place, and closed the one of now.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def fault(error: BaseException) -> dict[str, Any]:
    """Return what a log may hold of an exception: its type, and the places it passed. Its message may hold contents."""
    places = traceback.extract_tb(error.__traceback__)[-8:]
    return {"error": type(error).__name__, "at": [f"{place.filename}:{place.lineno} {place.name}" for place in places]}


def quiet_by_default() -> None:
    """Log warnings and errors only, unless the program has set structlog up itself: an embedded worker is a guest."""
    if not structlog.is_configured():
        configure_logging(level=logging.WARNING)
