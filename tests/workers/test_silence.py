"""A model's stream: slow is alive, silent is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from workers.models import ModelDelta, ModelError, ModelText
from workers.silence import until_silent


class Paced:
    """Says one word after each pause; None stays silent. Knows whether it was closed."""

    def __init__(self, *pauses: float | None) -> None:
        self.pauses = pauses
        self.closed = False

    async def stream(self) -> AsyncIterator[ModelDelta]:
        """Speak."""
        try:
            for pause in self.pauses:
                await (asyncio.sleep(pause) if pause is not None else asyncio.get_running_loop().create_future())
                yield ModelText("word")
        finally:
            self.closed = True


async def test_a_slow_stream_is_not_cut_however_long_it_takes() -> None:
    paced = Paced(*[0.02] * 20)
    said = [delta async for delta in until_silent(paced.stream(), 0.2)]
    assert len(said) == 20
    assert paced.closed


async def test_a_silent_model_is_a_failure_that_may_be_retried() -> None:
    paced = Paced(0, None)
    said = until_silent(paced.stream(), 0.05)
    assert await anext(said) == ModelText("word")
    with pytest.raises(ModelError, match=r"sent nothing for 0\.05 s") as failed:
        await anext(said)
    assert (failed.value.code, failed.value.retryable) == ("model_timeout", True)
    assert paced.closed


async def test_a_timeout_of_the_models_own_is_its_own() -> None:
    async def failing() -> AsyncIterator[ModelDelta]:
        yield ModelText("word")
        raise TimeoutError("mine")

    said = until_silent(failing(), 5)
    assert await anext(said) == ModelText("word")
    with pytest.raises(TimeoutError, match="mine"):
        await anext(said)


async def test_time_that_the_reader_takes_is_not_silence() -> None:
    said = until_silent(Paced(0, 0.02).stream(), 0.1)
    assert await anext(said) == ModelText("word")
    await asyncio.sleep(0.25)
    assert await anext(said) == ModelText("word")
    await said.aclose()


async def test_who_is_cancelled_while_a_model_is_silent_is_cancelled() -> None:
    paced = Paced(None)
    waiting = asyncio.create_task(anext(until_silent(paced.stream(), 60)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert paced.closed


async def test_a_wait_that_was_cancelled_by_silence_leaves_its_task_in_order() -> None:
    with pytest.raises(ModelError):
        await anext(until_silent(Paced(None).stream(), 0.02))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_model_that_swallows_its_cut_and_goes_on_is_cut_again() -> None:
    async def swallowing() -> AsyncIterator[ModelDelta]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        yield ModelText("word")
        await asyncio.get_running_loop().create_future()

    said, task = until_silent(swallowing(), 0.02), asyncio.current_task()
    assert task is not None
    assert (await anext(said), task.cancelling()) == (ModelText("word"), 0)
    async with asyncio.timeout(5):
        with pytest.raises(ModelError, match="sent nothing"):
            await anext(said)


async def test_whatever_a_model_answers_its_cut_with_it_was_silent() -> None:
    async def failing() -> AsyncIterator[ModelDelta]:
        try:
            await asyncio.get_running_loop().create_future()
            yield ModelText("word")
        except asyncio.CancelledError:
            raise OSError("its socket was closed already") from None

    with pytest.raises(ModelError) as failed:
        await anext(until_silent(failing(), 0.02))
    task = asyncio.current_task()
    assert task is not None
    assert (failed.value.code, failed.value.retryable, task.cancelling()) == ("model_timeout", True, 0)
