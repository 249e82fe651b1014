"""A tool runs in a task of its own: what it does to that is its call's affair."""

from __future__ import annotations

import asyncio

import pytest
from turns import Steps, add, call, staged

from broker.broker import Broker
from broker.protocol.content import content_text
from workers.tools import tool


@tool
async def cancels_itself() -> str:
    """Cancel the task that it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)
    return ""


@tool
async def leaves() -> str:
    """Raise what ends a generator."""
    raise GeneratorExit


@tool
async def exits() -> str:
    """Raise what ends a program."""
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("made", "said"), [(cancels_itself, "CancelledError"), (leaves, "GeneratorExit"), (exits, "SystemExit: 3")]
)
async def test_what_a_tool_does_to_its_task_is_its_failure(made: object, said: str) -> None:
    result = await made.call({}, {}, 5)  # type: ignore[attr-defined] # a tool
    assert result.is_error
    assert content_text(result.content) == said


async def test_the_calls_beside_it_and_the_turn_go_on(broker: Broker) -> None:
    model = Steps([call("cancels_itself", "a"), call("leaves", "b"), call("exits", "c"), call("add", "d", a=1, b=2)])
    async with staged(broker, model, cancels_itself, leaves, exits, add) as stage:
        await stage.send()
        assert (await stage.ended())["type"] == "completed"
        assert await stage.results() == {
            "a": "CancelledError",
            "b": "GeneratorExit",
            "c": "SystemExit: 3",
            "d": "3",
        }
        assert stage.worker.turns.handed_back == []
