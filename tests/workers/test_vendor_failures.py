"""How calls of the vendors' models fail, each with a defined outcome, through their own client libraries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

import pytest
from chat_rules import checks
from chat_server import CUT, DONE, Answer, ChatServer, Piece, chat_server, chunk, event, refusing, saying, usage
from turns import Gate, staged
from vendors import KEY, SAID, TOOLED, Kind, Vendor, deltas, failing

from broker.broker import Broker
from broker.embedded import EmbeddedServer
from broker.settings import Settings
from workers.mistral_model import MistralModel
from workers.models import (
    ModelStop,
    ModelText,
    ModelToolCall,
)
from workers.openai_model import OpenAIModel
from workers.silence import until_silent


@pytest.fixture(params=[OpenAIModel, MistralModel])
def kind(request: pytest.FixtureRequest) -> Kind:
    made: Kind = request.param
    return made


@pytest.fixture
async def server(kind: Kind) -> AsyncIterator[ChatServer]:
    async with chat_server() as chat:
        chat.check = checks(strict=kind is MistralModel)
        yield chat


@pytest.fixture
def model(kind: Kind, server: ChatServer) -> Vendor:
    return kind("m", base_url=server.url, api_key=KEY)


# What goes wrong before a reply.


@pytest.mark.parametrize(
    ("status", "error", "headers", "outcome"),
    [
        (429, {"code": "rate_limit_exceeded"}, {}, ("rate_limited", True, None)),
        (429, {"code": "rate_limit_exceeded"}, {"retry_after": "2"}, ("rate_limited", True, 2.0)),
        (429, {"message": "see your billing"}, {"retry_after_ms": "250"}, ("rate_limited", True, 0.25)),
        (429, {"code": 3505, "type": "service_tier_capacity_exceeded"}, {}, ("rate_limited", True, None)),
        (429, {}, {"retry_after": "3600"}, ("rate_limited", False, None)),
        (429, {}, {"retry_after": "soon"}, ("rate_limited", True, None)),
        (429, {"code": "insufficient_quota"}, {"retry_after": "1"}, ("rate_limited", False, None)),
        (500, {}, {}, ("model_unavailable", True, None)),
        (503, {"type": "overloaded"}, {"retry_after": "4"}, ("model_unavailable", True, 4.0)),
        (529, {}, {}, ("model_unavailable", True, None)),
        (408, {}, {}, ("model_unavailable", True, None)),
        (401, {"message": f"Incorrect API key provided: {KEY}"}, {}, ("auth_failed", False, None)),
        (403, {}, {}, ("auth_failed", False, None)),
        (404, {"code": "model_not_found"}, {}, ("bad_request", False, None)),
        (400, {"message": f"bad: {SAID}", "code": SAID, "param": "temperature"}, {}, ("bad_request", False, None)),
        (422, {}, {}, ("bad_request", False, None)),
        (400, {"code": "context_length_exceeded"}, {}, ("context_overflow", False, None)),
        (400, {"message": "This model's maximum context length is 8 tokens."}, {}, ("context_overflow", False, None)),
        (400, {"type": "exceed_context_size_error", "n_ctx": 256}, {}, ("context_overflow", False, None)),
        (500, {"type": "exceed_context_size_error"}, {}, ("context_overflow", False, None)),
        (
            400,
            {"message": "Prompt contains 9 tokens, too large for model with 8"},
            {},
            ("context_overflow", False, None),
        ),
        (413, {}, {}, ("context_overflow", False, None)),
        (400, {"code": "content_filter"}, {}, ("content_filter", False, None)),
        (400, {"code": "invalid_prompt"}, {}, ("content_filter", False, None)),
    ],
)
async def test_an_error_has_its_outcome(
    model: Vendor,
    server: ChatServer,
    status: int,
    error: dict[str, Any],
    headers: Mapping[str, str],
    outcome: tuple[str, bool, float | None],
) -> None:
    for body in ({"error": {"message": "", **error}}, {"object": "error", "message": "", **error}):
        server.answers.append(refusing(status, body, **headers))
        got, failed = await failing(model)

        assert (failed.code, failed.retryable, failed.retry_after) == outcome
        assert got == []
        assert str(status) in str(failed)
    assert len(server.asked) == 2, "the library tried again by itself"


async def test_an_error_is_named_as_the_server_names_it(model: Vendor, server: ChatServer) -> None:
    error = {
        "message": f"{SAID}, {KEY}",
        "type": "invalid_request_error",
        "code": "unsupported_value",
        "param": "temperature",
    }
    server.answers.append(refusing(400, {"error": error}))

    host = server.url.split("/")[2]
    _, failed = await failing(model)
    named = "unsupported_value, invalid_request_error, parameter temperature"
    assert str(failed) == f"m at {host} refuses the request (400 {named})"


async def test_retry_after_may_be_a_date(model: Vendor, server: ChatServer) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    server.answers += [
        refusing(429, {}, retry_after=later),
        refusing(429, {}, retry_after="Sun, 06 Nov 1994 08:49:37 GMT"),
    ]

    assert 15 < ((await failing(model))[1].retry_after or 0) <= 20
    assert (await failing(model))[1].retry_after == 0


@pytest.mark.parametrize(("status", "code"), [(502, "model_unavailable"), (400, "bad_request")])
async def test_an_error_s_body_may_be_anything(model: Vendor, server: ChatServer, status: int, code: str) -> None:
    for body in ("<html>Bad gateway</html>", "", '"text"', "[1]", "null", '{"error": "text"}', '{"detail": []}'):
        server.answers.append(refusing(status, body))

        assert (await failing(model))[1].code == code


@pytest.mark.parametrize(
    ("media_type", "body"), [("text/html", "<html>Log in</html>"), ("application/json", '{"id": 1}')]
)
async def test_an_answer_that_is_no_stream_says_what_to_look_at(
    model: Vendor, server: ChatServer, media_type: str, body: str
) -> None:
    server.answers.append(Answer([body.encode()], 200, media_type))

    _, failed = await failing(model)
    assert (failed.code, failed.retryable) == ("model_failed", False)
    assert f"answers with {media_type}" in str(failed)
    assert "base_url" in str(failed)


async def test_a_server_that_is_not_there_may_be_tried_again(kind: Kind) -> None:
    async with chat_server() as gone:
        url = gone.url

    _, failed = await failing(kind("m", base_url=url, api_key=KEY))

    assert (failed.code, failed.retryable) == ("model_unavailable", True)


# What goes wrong within a reply.

A: Final = chunk({"role": "assistant", "content": "a"})


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        ([CUT], ("stream_cut", True)),
        ([], ("stream_cut", True)),
        ([DONE], ("stream_cut", True)),
        ([b'data: {"id": "x", "cho', CUT], ("stream_cut", True)),
        ([event(b"{no json")], ("stream_cut", True)),
        ([event(b"\xff\xfe")], ("stream_cut", True)),
        ([event({"error": {"message": SAID, "type": "server_error"}})], ("model_unavailable", True)),
        ([event({"error": {"message": SAID, "code": 502}})], ("model_unavailable", True)),
        ([event({"error": {"message": "x", "code": "rate_limit_exceeded"}})], ("rate_limited", True)),
        ([event({"error": {"message": "x", "code": "context_length_exceeded"}})], ("context_overflow", False)),
        ([event({"error": {"message": "x", "type": "invalid_request_error"}})], ("bad_request", False)),
        ([event({"error": {"message": SAID}})], ("model_failed", True)),
        ([event({"error": SAID})], ("model_failed", True)),
        ([event({"object": "error", "message": SAID, "type": "BadRequestError", "code": 400})], ("bad_request", False)),
        ([chunk({}, "content_filter"), DONE], ("content_filter", False)),
        ([chunk({}, "error"), DONE], ("model_unavailable", True)),
    ],
)
async def test_a_reply_that_fails_midway_has_its_outcome(
    model: Vendor, server: ChatServer, pieces: Sequence[Piece], outcome: tuple[str, bool]
) -> None:
    server.answers.append([A, *pieces])

    got, failed = await failing(model)
    assert (failed.code, failed.retryable) == outcome
    assert got == [ModelText("a")]


async def test_a_reply_without_any_choice_was_cut(model: Vendor, server: ChatServer) -> None:
    for pieces in ([], [DONE], [chunk(), DONE], [chunk(), usage(7, 0), DONE]):
        server.answers.append(pieces)

        got, failed = await failing(model)
        assert (got, failed.code, failed.retryable) == ([], "stream_cut", True)


# Silence (field case F31).


@pytest.mark.parametrize("pieces", [[], [A]])
async def test_silence_longer_than_the_timeout_ends_the_call(
    kind: Kind, server: ChatServer, pieces: Sequence[Piece]
) -> None:
    server.answers.append([*pieces, Gate()])

    _, failed = await failing(kind("m", base_url=server.url, api_key=KEY, timeout=0.15))
    assert (failed.code, failed.retryable) == ("model_timeout", True)
    assert str(failed).endswith("sent nothing for 0.15 s")
    await asyncio.wait_for(server.hung_up.wait(), 5)


async def test_a_slow_stream_is_never_cut(kind: Kind, server: ChatServer) -> None:
    slowly = [piece for letter in "abcdefghij" for piece in (0.1, chunk({"content": letter}))]
    server.answers.append([*slowly, chunk({}, "stop"), DONE])
    loop = asyncio.get_running_loop()
    begun = loop.time()

    said = await deltas(kind("m", base_url=server.url, api_key=KEY, timeout=0.8))

    assert loop.time() - begun > 0.8
    assert said == [*(ModelText(letter) for letter in "abcdefghij"), ModelStop("end")]


async def test_a_server_that_says_only_that_it_lives_is_alive(kind: Kind, server: ChatServer) -> None:
    """As gateways do while a model thinks: comments, which no library hands over."""
    server.answers.append([*[0.1, b": thinking\n\n"] * 10, *saying("done")])

    assert ModelText("done") in await deltas(kind("m", base_url=server.url, api_key=KEY, timeout=0.8))


async def test_the_worker_leaves_silence_to_a_model_with_a_timeout_of_its_own(kind: Kind, server: ChatServer) -> None:
    settings = Settings(prefix="silence:", model_timeout=0.2, model_attempts=1)
    broker = Broker(settings, EmbeddedServer())
    ends = []
    for timeout in (5.0, None):
        server.answers.append([A, 0.6, chunk({}, "stop"), DONE])
        async with staged(broker, kind("m", base_url=server.url, api_key=KEY, timeout=timeout)) as stage:
            await stage.send()
            ends.append(await stage.ended())
    await broker.close()

    patient, cut = ends
    assert (patient["type"], patient["text"]) == ("completed", "a")
    assert (cut["type"], cut["error"]["code"]) == ("failed", "model_timeout")


async def test_long_arguments_are_a_sign_of_life(model: Vendor, server: ChatServer) -> None:
    """Nothing of a call is told before it is whole; its pieces keep the worker's own limit away."""
    piece = {"index": 0, "id": "abcdefgh0", "function": {"name": "", "arguments": " "}}
    first = {"index": 0, "id": "abcdefgh0", "function": {"name": "look", "arguments": "{"}}
    last = {"index": 0, "id": "abcdefgh0", "function": {"name": "", "arguments": "}"}}
    slowly = [each for _ in range(10) for each in (0.1, chunk({"tool_calls": [piece]}))]
    await deltas(model)  # its library is loaded
    server.answers.append([chunk({"tool_calls": [first]}), *slowly, chunk({"tool_calls": [last]}, "tool_calls"), DONE])

    said = [delta async for delta in until_silent(model.stream(TOOLED), 0.8) if delta != ModelText("")]

    assert said == [ModelToolCall("abcdefgh0", "client.look", {}), ModelStop("tool_calls")]
