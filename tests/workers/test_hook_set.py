"""The hooks of an agent: what is refused when it is made, by name, and what it has through them."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel, Field, field_validator

from workers.agent import AgentDefinition
from workers.client_tools import client_tool
from workers.hook_set import HookSet, dump, restored
from workers.hooks import Hook, HookCall, HookContext, HookReply, Skip, reject, request_approval, retry, skip
from workers.inputs import Depends, SessionInput
from workers.scripted import ScriptedModel
from workers.tools import ToolResult, tool


def define(*hooks: Any, guardrails: Any = (), **options: Any) -> AgentDefinition:
    return AgentDefinition(model=ScriptedModel(), hooks=hooks, guardrails=guardrails, **options)


class Repo(SessionInput):
    input_id: ClassVar[str] = "repo"


class Audit(Hook):
    async def pre_llm_call(self, ctx: HookContext[Any]) -> None:
        pass


@tool
def look() -> str:
    """Look."""
    return ""


@client_tool
def ask_color(of: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask the person for a color."""


# What a hook is.


def test_only_overridden_points_run() -> None:
    class More(Audit):
        def post_agent_turn(self, ctx: HookContext[Any]) -> None:
            pass

    hooks = define(Hook(), More()).hooks

    assert [set(hook.points) for hook in hooks] == [set(), {"pre_llm_call", "post_agent_turn"}]
    assert [hook.name for hook in hooks.at("post_agent_turn")] == ["More"]
    assert hooks.at("pre_tool_call") == ()


def test_guardrails_come_first_and_each_in_their_order() -> None:
    class Named(Audit):
        def __init__(self, name: str) -> None:
            self.name = name

    hooks = define(Named("c"), Named("d"), guardrails=[Named("a"), Named("b")]).hooks

    assert [hook.name for hook in hooks] == ["a", "b", "c", "d"]
    assert [hook.name for hook in hooks.at("pre_llm_call")] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("argument", ["hooks", "guardrails"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([Audit], r"\[0\] must be a Hook, not the class Audit; give an instance"),
        ([Audit(), print], r"\[1\] must be a Hook, not builtin_function_or_method"),
        (Audit(), " must be a sequence of hooks, not Audit"),
        ("audit", " must be a sequence of hooks, not str"),
    ],
)
def test_what_is_no_hook(argument: str, given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{argument}{said}$"):
        AgentDefinition(model=ScriptedModel(), **{argument: given})


def test_two_hooks_of_one_name() -> None:
    with pytest.raises(ValueError, match=r"^hooks: two hooks have the name 'Audit'; give one of them"):
        define(Audit(), guardrails=[Audit()])


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 65, 7])
def test_a_name_that_the_log_could_not_hold(name: Any) -> None:
    hook = Audit()
    hook.name = name

    with pytest.raises(ValueError, match=r"^hooks\[0\]: a hook's name is 1 to 64 of A-Z a-z 0-9 _ \. -, not"):
        define(hook)


# Points.


def test_points_take_what_they_are_shown_and_session_inputs() -> None:
    class Good(Hook):
        def pre_agent_turn(self, context: HookContext[Any], repo: Annotated[Repo, Depends()]) -> None:
            pass

        async def pre_llm_call(self, ctx: HookContext[Any], *, repo: Annotated[Repo, Depends()]) -> Skip | None:
            pass

        async def post_llm_call(self, _: HookContext[Any], reply: HookReply, limit: int = 3) -> None:
            pass

        def pre_tool_call(self, *args: Any, **inputs: Any) -> None:
            pass

        @staticmethod
        def post_tool_call(ctx: HookContext[Any], call: HookCall, result: ToolResult) -> Any:
            pass

    (hook,) = define(Good()).hooks

    assert {point: list(bound.inputs) for point, bound in hook.points.items()} == {
        "pre_agent_turn": ["repo"],
        "pre_llm_call": ["repo"],
        "post_llm_call": [],
        "pre_tool_call": [],
        "post_tool_call": [],
    }


def _takes_nothing(self: Any) -> None:
    pass


def _takes_too_much(self: Any, ctx: Any, call: Any, more: Any) -> None:
    pass


def _takes_an_input_first(self: Any, repo: Annotated[Repo, Depends()], ctx: Any) -> None:
    pass


def _depends_on_no_input(self: Any, ctx: Any, call: Any, limit: Annotated[int, Depends()]) -> None:
    pass


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (_takes_nothing, "hook Bad.pre_tool_call must take (ctx, call), and beside them only session inputs"),
        (_takes_too_much, "missing a required argument: 'more'"),
        (_takes_an_input_first, "hook Bad.pre_tool_call must take (ctx, call)"),
        (_depends_on_no_input, "limit depends on <class 'int'>, which is no SessionInput"),
    ],
)
def test_a_point_with_wrong_parameters(method: Any, said: str) -> None:
    bad = type("Bad", (Hook,), {"pre_tool_call": method})()

    with pytest.raises(TypeError, match=re.escape(said)):
        define(bad)


# State.


@pytest.mark.parametrize("state", [dict, int, {"a": 1}, SessionInput.model_construct()])
def test_a_state_that_is_no_model(state: Any) -> None:
    bad = type("Bad", (Hook,), {"State": state})()

    with pytest.raises(TypeError, match=r"^hook Bad: State must be a class of pydantic's BaseModel, not "):
        define(bad)


def test_a_state_that_cannot_start() -> None:
    class Bad(Hook):
        class State(BaseModel):
            seen: int
            limit: int = 1

    with pytest.raises(TypeError, match=r"^hook Bad: State starts without arguments: seen: Field required$"):
        define(Bad())


def test_a_state_comes_back_as_it_was() -> None:
    class State(BaseModel):
        seen: set[str] = Field(default_factory=set, alias="seenBy")
        pair: tuple[int, float] = (1, 0.5)
        raw: bytes = b""

    state = State(seenBy={"a"}, pair=(2, 1.5), raw=b"x")

    assert restored(State, dump(state)) == state


def test_what_was_kept_and_does_not_fit_any_more_is_named_without_its_value() -> None:
    class State(BaseModel):
        limit: int = 0

        @field_validator("limit")
        @classmethod
        def small(cls, value: int) -> int:
            """Refuse large ones."""
            if value > 9:
                raise ValueError("must be small")
            return value

    with pytest.raises(ValueError, match=r"^limit: Value error, must be small$"):
        restored(State, {"limit": 99})


# Tools.


def test_a_hook_s_tools_are_the_agent_s_too() -> None:
    def search(text: str) -> str:
        """Search."""
        return text

    class Tools(Hook):
        tools = (look, search, ask_color)

    made = define(Tools(), tools=[])

    assert [spec.id for spec in made.toolset().specs] == ["client.look", "client.search", "client.ask_color"]
    assert made.tools == ()


def test_a_hook_s_tool_may_be_a_method_of_the_hook() -> None:
    class Notes(Hook):
        def __init__(self) -> None:
            self.said: list[str] = []
            self.tools = [self.note]

        def note(self, text: str) -> str:
            """Note."""
            self.said.append(text)
            return "noted"

    (spec,) = define(Notes()).specs
    assert (spec.id, list(spec.parameters["properties"])) == ("client.note", ["text"])


@pytest.mark.parametrize("own", [look, ask_color])
def test_tools_that_clash_by_id(own: Any) -> None:
    class Tools(Hook):
        tools = (look, ask_color)

    with pytest.raises(ValueError, match=rf"^hook Tools: tools: there is a tool with the id '{own.id}' already"):
        define(Tools(), tools=[own])


def test_a_hook_s_tools_are_a_sequence_of_tools() -> None:
    bad = Hook()
    bad.tools = [7]

    with pytest.raises(TypeError, match=r"^hook Hook: tools\[0\] must be a tool, a client tool or a function, not int"):
        define(bad)


# What it may decide.


@pytest.mark.parametrize("make", [skip, retry, reject, request_approval])
def test_a_reason_is_a_text(make: Any) -> None:
    with pytest.raises(TypeError, match="must be a text, not int"):
        make(7)


def test_the_points_of_a_hook_do_nothing_by_themselves() -> None:
    ctx = HookContext(session_id="s", turn_id="t", agent_name="a", state=None)
    call = HookCall("c", "client.look", {})
    hook = Hook()

    assert [hook.pre_agent_turn(ctx), hook.pre_llm_call(ctx), hook.post_agent_turn(ctx)] == [None] * 3
    assert [hook.post_llm_call(ctx, HookReply("hi")), hook.pre_tool_call(ctx, call)] == [None] * 2
    assert hook.post_tool_call(ctx, call, ToolResult()) is None
    assert (ctx.messages, ctx.text) == ((), "")


def test_an_agent_without_hooks_has_none() -> None:
    assert list(HookSet()) == list(define().hooks) == []
