"""What the strictest provider asks of a request, whatever happened before in the session."""

from __future__ import annotations

from collections.abc import Sequence

from workers.models import AssistantMessage, ModelMessage, ToolMessage


def expect_wellformed(told: Sequence[ModelMessage]) -> None:
    """Each call is followed by its one result, in the calls' order; no id comes twice; nothing is empty but a result."""
    seen: set[str] = set()
    waiting: list[tuple[str, str]] = []
    for message in told:
        if isinstance(message, ToolMessage):
            assert waiting[:1] == [(message.call_id, message.name)]
            waiting.pop(0)
            continue
        assert waiting == []
        if not isinstance(message, AssistantMessage):
            assert message.content
            continue
        assert message.text or message.calls
        waiting = [(call.id, call.name) for call in message.calls]
        asked = {call.id for call in message.calls}
        assert len(asked) == len(waiting)
        assert not asked & seen
        seen |= asked
    assert waiting == []
