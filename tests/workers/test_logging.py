from __future__ import annotations

import io
import sys

import pytest
import structlog

from workers.logging import configure_logging


def test_a_line_goes_to_the_stderr_of_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that replaced stderr, and closed the old one, is not stopped by a log line."""
    held = structlog.get_config()
    first, second = io.StringIO(), io.StringIO()
    log = structlog.get_logger("test")
    try:
        monkeypatch.setattr(sys, "stderr", first)
        configure_logging(json=True)
        log.info("one")
        monkeypatch.setattr(sys, "stderr", second)
        written = first.getvalue()
        first.close()
        log.info("two")
    finally:
        structlog.configure(**held)

    assert ("one" in written, "two" in second.getvalue()) == (True, True)
