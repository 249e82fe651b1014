"""The scripted model: which reply it gives is a function of the request alone, so every process gives the same."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.content import TextContentBlock
from broker.protocol.errors import SdkError
from broker.protocol.records import TokenUsage
from workers.models import (
    AssistantMessage,
    ContextNote,
    Model,
    ModelDelta,
    ModelError,
    ModelMessage,
    ModelReasoning,
    ModelRequest,
    ModelStop,
    ModelText,
    ModelToolCall,
    ModelUsage,
    RequestedCall,
    SystemMessage,
    ToolMessage,
    UserMessage,
    resolve_model,
)
from workers.scripted import (
    Script,
    ScriptedCall,
    ScriptedModel,
    ScriptedReply,
    register_scripted,
    replies_so_far,
    scripted_model,
)


def block(text: str) -> tuple[TextContentBlock, ...]:
    return (TextContentBlock(text=text),)


def user(text: str) -> UserMessage:
    return UserMessage(block(text))


async def deltas(model: Model, *messages: ModelMessage) -> list[ModelDelta]:
    return [delta async for delta in model.stream(ModelRequest(tuple(messages)))]


async def said(model: Model, *messages: ModelMessage) -> str:
    return "".join(delta.text for delta in await deltas(model, *messages) if isinstance(delta, ModelText))


CALL = AssistantMessage("", (RequestedCall("c1", "client.a", {}),))
RESULT = ToolMessage("c1", "client.a", block("r"), is_error=False)
THREE = ScriptedModel([ScriptedReply("one"), ScriptedReply("two"), ScriptedReply("three")])


@pytest.mark.parametrize(
    ("messages", "reply"),
    [
        ([user("hi")], "one"),
        ([SystemMessage(block("s")), ContextNote(block("n")), user("hi"), user("more")], "one"),
        ([user("hi"), AssistantMessage("one")], "two"),
        ([user("hi"), CALL, RESULT], "two"),
        ([user("hi"), CALL, RESULT, AssistantMessage("two"), user("again")], "three"),
    ],
)
async def test_the_reply_is_the_one_after_those_that_the_conversation_holds(
    messages: Sequence[ModelMessage], reply: str
) -> None:
    assert await said(THREE, *messages) == reply


async def test_a_call_that_is_made_again_gets_the_same_reply() -> None:
    model = ScriptedModel([ScriptedReply("text", calls=[ScriptedCall("client.a", {"x": 1}), ScriptedCall("client.a")])])

    assert await deltas(model, user("hi")) == await deltas(model, user("hi"))
    same = ScriptedModel([ScriptedReply("text", calls=[ScriptedCall("client.a", {"x": 1}), ScriptedCall("client.a")])])
    assert await deltas(model, user("hi")) == await deltas(same, user("hi"))


async def test_past_its_end_a_script_gives_its_otherwise_or_what_the_person_said_last() -> None:
    past: list[ModelMessage] = [user("first"), AssistantMessage("one"), user("last"), CALL, RESULT]

    assert await said(ScriptedModel([ScriptedReply("one")]), *past) == "last"
    assert await said(ScriptedModel([ScriptedReply("one")], otherwise=ScriptedReply("enough")), *past) == "enough"
    assert await said(ScriptedModel(), AssistantMessage("imported")) == ""


async def test_a_script_may_be_a_function_of_the_request() -> None:
    script: Script = lambda request: ScriptedReply(f"{len(request.messages)} messages")  # noqa: E731 - a script is a value

    assert await said(ScriptedModel(script), user("a"), user("b")) == "2 messages"


async def test_a_reply_is_streamed_in_the_order_of_a_model() -> None:
    usage = TokenUsage(input_tokens=3, output_tokens=2, total_tokens=5)
    reply = ScriptedReply("two words", reasoning="so be", calls=[ScriptedCall("client.a", {"x": 1})], usage=usage)

    assert await deltas(ScriptedModel([reply]), user("hi")) == [
        ModelReasoning("so "),
        ModelReasoning("be"),
        ModelText("two "),
        ModelText("words"),
        ModelToolCall("call_1_1", "client.a", {"x": 1}),
        ModelUsage(usage),
        ModelStop("tool_calls"),
    ]


async def test_chunks_are_streamed_as_they_are_cut() -> None:
    reply = ScriptedReply(chunks=["a b", "", "c"])

    assert await deltas(ScriptedModel([reply]), user("hi")) == [
        ModelText("a b"), ModelText(""), ModelText("c"), ModelStop("end")
    ]  # fmt: skip


@given(st.text())
def test_the_pieces_of_a_text_are_the_text(text: str) -> None:
    async def check() -> None:
        assert await said(ScriptedModel([ScriptedReply(text)]), user("hi")) == text
        assert await said(scripted_model("echo"), user(text)) == text

    asyncio.run(check())


async def test_call_ids_are_unique_in_a_conversation_unless_they_are_given() -> None:
    calls = [ScriptedCall("client.a"), ScriptedCall("client.a")]
    model = ScriptedModel([ScriptedReply(calls=calls)], otherwise=ScriptedReply(calls=calls))
    conversation: list[ModelMessage] = [user("hi")]
    ids: list[str] = []
    for _ in range(3):
        ids += [delta.id for delta in await deltas(model, *conversation) if isinstance(delta, ModelToolCall)]
        conversation.append(AssistantMessage("", (RequestedCall(ids[-1], "client.a", None),)))

    assert len(set(ids)) == 6
    given_id = ScriptedModel([ScriptedReply(calls=[ScriptedCall("client.a", id="mine")])])
    assert ModelToolCall("mine", "client.a", None) in await deltas(given_id, user("hi"))


async def test_an_error_comes_after_the_text_and_in_place_of_everything_else() -> None:
    reply = ScriptedReply("cut off", calls=[ScriptedCall("client.a")], error=ModelError("gone", code="cut"))
    got: list[ModelDelta] = []

    async def read() -> None:
        async for delta in ScriptedModel([reply]).stream(ModelRequest((user("hi"),))):
            got.append(delta)  # noqa: PERF401 - what came before the error is wanted

    with pytest.raises(ModelError, match="gone") as failed:
        await read()

    assert got == [ModelText("cut "), ModelText("off")]
    assert (failed.value.code, failed.value.retryable, failed.value.retry_after) == ("cut", False, None)


async def test_an_error_that_is_raised_again_and_again_does_not_grow() -> None:
    model = ScriptedModel([ScriptedReply(error=ModelError("gone"))])
    depths = []
    for _ in range(3):
        with pytest.raises(ModelError) as failed:
            await deltas(model, user("hi"))
        depths.append(len(traceback.extract_tb(failed.value.__traceback__)))

    assert len(set(depths)) == 1


async def test_a_delay_passes_before_each_piece() -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    await deltas(ScriptedModel([ScriptedReply("a b", reasoning="c", delay=0.02)]), user("hi"))

    assert loop.time() - begun >= 0.06


def test_every_reply_of_the_model_counts_and_nothing_else_does() -> None:
    request = ModelRequest((user("a"), CALL, RESULT, AssistantMessage("b"), ContextNote(block("n")), user("c")))

    assert replies_so_far(request) == 2


# Which model a name means.


async def test_echo_is_built_in_and_answers_word_by_word() -> None:
    assert await deltas(resolve_model("scripted:echo"), user("hello  world")) == [
        ModelText("hello  "), ModelText("world"), ModelStop("end")
    ]  # fmt: skip


def test_a_registered_name_means_its_model() -> None:
    register_scripted("test_scripted_model", THREE)

    assert resolve_model("scripted:test_scripted_model") is THREE


def test_an_object_that_streams_is_used_as_it_is() -> None:
    assert resolve_model(THREE) is THREE


@pytest.mark.parametrize("model", ["gpt-x", "scripted", "scripted:", "openai:", "mistral", "", "other:name"])
def test_an_unknown_kind_of_name_is_refused_and_says_which_there_are(model: str) -> None:
    with pytest.raises(SdkError, match=f"'{model}': no such model; names are scripted:NAME"):
        resolve_model(model)


def test_an_unknown_script_is_refused_and_says_which_there_are() -> None:
    with pytest.raises(SdkError, match=r"'scripted:nowhere': no such script; known: .*echo"):
        resolve_model("scripted:nowhere")


@pytest.mark.parametrize(("model", "shown"), [(5, "int"), (None, "NoneType"), (ScriptedModel, "class ScriptedModel")])
def test_what_is_no_model_is_refused(model: object, shown: str) -> None:
    with pytest.raises(TypeError, match=f"model must be .* not .*{shown}"):
        resolve_model(model)  # type: ignore[arg-type] # what is tested


def test_what_is_no_reply_and_no_call_is_refused_when_the_script_is_made() -> None:
    with pytest.raises(TypeError, match=r"script\[0\] must be a ScriptedReply, not str"):
        ScriptedModel(["hello"])  # type: ignore[list-item] # the mistake
    with pytest.raises(TypeError, match=r"script\[0\]\.calls are made of ScriptedCall, not tuple"):
        ScriptedModel([ScriptedReply(calls=[("client.x", {})])])  # type: ignore[list-item] # the mistake
