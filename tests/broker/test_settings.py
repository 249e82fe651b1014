"""Settings: the defaults that the specification names, and what the environment may say instead."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from broker.settings import Settings

NEVER = ("retention", "idle_limit", "session_lifetime", "callback_timeout", "no_progress")


def test_the_defaults_are_the_specification_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TURNSTREAM_{name.upper()}", raising=False)
    days, minutes = 86_400, 60

    settings = Settings()

    assert (settings.message_limit, settings.retention, settings.idle_limit) == (16 * 2**20, 7 * days, 30 * days)
    assert (settings.session_lifetime, settings.callback_timeout) == (None, None)
    assert (settings.no_progress, settings.tool_timeout) == (35 * minutes, 30 * minutes)
    assert (settings.model_attempts, settings.reconnect_budget, settings.lease) == (3, 60, 15)


@pytest.mark.parametrize("name", NEVER)
def test_a_limit_is_a_time_or_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    variable = f"TURNSTREAM_{name.upper()}"
    monkeypatch.setenv(variable, "90.5")
    assert getattr(Settings(), name) == 90.5
    monkeypatch.setenv(variable, "none")
    assert getattr(Settings(), name) is None
    for wrong in ("0", "-1", "soon"):
        monkeypatch.setenv(variable, wrong)
        with pytest.raises(ValidationError, match=name):
            Settings()
