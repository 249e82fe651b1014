"""An agent's definition: checked whole when it is made, by errors that name the argument."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from pydantic import BaseModel

import api_shim as agents
from broker.protocol.errors import SdkError
from workers.agent import AgentDefinition, SessionAgentCustomization
from workers.client_tools import client_tool
from workers.permissions import PermissionPolicy, PermissionRule
from workers.scripted import ScriptedModel, register_scripted
from workers.tools import tool

ECHO = "scripted:echo"


def define(**options: Any) -> AgentDefinition:
    return AgentDefinition(**{"model": ECHO, **options})


@tool
def look(at: str) -> str:
    """Look at something."""
    return at


@client_tool
def ask(whom: str) -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask somebody."""


def plain(x: int) -> int:
    """Do something plain."""
    return x


class Report(BaseModel):
    """A report."""

    text: str


# What it holds.


def test_an_agent_has_the_signature_of_its_definition() -> None:
    assert inspect.signature(AgentDefinition) == inspect.signature(agents.Agent)
    assert all(item.kind is item.KEYWORD_ONLY for item in inspect.signature(AgentDefinition).parameters.values())


def test_only_the_model_is_needed() -> None:
    made = define()

    assert (made.name, made.tools, made.specs) == ("default_agent", (), ())
    assert (made.permission_mode, made.permission_policy, made.tool_errors) == ("auto", None, "report")
    assert (made.instructions, made.output_type, made.max_iterations) == (None, None, None)
    assert (made.temperature, made.reasoning_effort, made.description) == (None, None, None)


def test_what_is_given_is_kept() -> None:
    policy = PermissionPolicy(rules=[PermissionRule(tools=["*"], decision="ask")])
    given = {
        "name": "support.agent-1", "instructions": "Help.", "permission_mode": "ask", "permission_policy": policy,
        "output_type": Report, "max_iterations": 3, "temperature": 0, "reasoning_effort": "low", "tool_errors": "raise",
        "description": "Helps.",
    }  # fmt: skip
    made = define(**given)

    assert {name: getattr(made, name) for name in given} == given


def test_a_tool_a_stub_and_a_plain_function_are_tools_told_to_the_model_in_order() -> None:
    made = define(tools=[look, ask, plain])

    assert [spec.id for spec in made.specs] == ["client.look", "client.ask", "client.plain"]
    assert made.specs[2].description == "Do something plain."
    assert made.tool("client.look") is look
    assert made.tool("client.ask") is ask


def test_a_tool_is_found_by_the_name_that_a_model_wrote_without_its_prefix() -> None:
    made = define(tools=[look])

    assert made.tool("look") is look
    assert made.tool("client.other") is None
    assert made.tool("") is None


def test_two_stubs_may_share_an_id_and_the_model_is_told_once() -> None:
    other = client_tool(name="ask", input_schema={"type": "object"})

    assert [spec.id for spec in define(tools=[ask, other]).specs] == ["client.ask"]


RUNS_HERE = tool(name="ask")(plain)


@pytest.mark.parametrize(
    ("first", "second"), [(RUNS_HERE, ask), (ask, RUNS_HERE), (RUNS_HERE, tool(name="ask")(plain))]
)
def test_a_tool_that_runs_here_shares_its_id_with_nothing(first: Any, second: Any) -> None:
    with pytest.raises(ValueError, match=r"tools: two tools have the id 'client\.ask'"):
        define(tools=[first, second])


def test_the_same_tool_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tools: two tools have the id 'client\.look'"):
        define(tools=[look, look])


# What is refused.


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("name", "", ValueError),
        ("name", "two words", ValueError),
        ("name", "a:b", ValueError),
        ("name", "{s0}", ValueError),
        ("name", "line\n", ValueError),
        ("name", "x" * 65, ValueError),
        ("name", 5, TypeError),
        ("instructions", ["Help."], TypeError),
        ("description", 5, TypeError),
        ("reasoning_effort", 5, TypeError),
        ("permission_mode", "always", ValueError),
        ("permission_policy", {"default": "ask"}, TypeError),
        ("tool_errors", "ignore", ValueError),
        ("output_type", dict, TypeError),
        ("output_type", Report(text=""), TypeError),
        ("max_iterations", 0, ValueError),
        ("max_iterations", True, TypeError),
        ("max_iterations", "3", TypeError),
        ("temperature", -1, ValueError),
        ("temperature", float("nan"), ValueError),
        ("temperature", "hot", TypeError),
        ("model", 5, TypeError),
        ("model", ScriptedModel, TypeError),
        ("model", "gpt-x", SdkError),
        ("model", "openai:", SdkError),
        ("tools", look, TypeError),
        ("tools", ask, TypeError),
        ("tools", "look", TypeError),
        ("tools", 5, TypeError),
        (r"tools\[1\]", [look, "ask"], TypeError),
        (r"tools\[0\]", [Report], TypeError),
        (r"tools\[0\]", [Report(text="")], TypeError),
    ],
)
def test_a_bad_argument_is_refused_by_name(argument: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{argument} "):
        define(**{argument.partition("\\")[0]: value})


@pytest.mark.parametrize("undecorated", [tool(name="x"), client_tool(name="x", output_schema={"type": "object"})])
def test_a_decorator_that_decorated_nothing_is_no_tool(undecorated: Any) -> None:
    with pytest.raises(TypeError, match="its parameters have no JSON schema"):
        define(tools=[undecorated])


# What a session changes.


def test_a_session_s_instructions_stand_below_the_agent_s() -> None:
    made = define(instructions="Help.")

    assert made.instructions_for({}) == "Help."
    assert made.instructions_for({"additional_instructions": ""}) == "Help."
    assert made.instructions_for({"additional_instructions": "In French."}) == "Help.\n\nIn French."
    assert define().instructions_for({"additional_instructions": "In French."}) == "In French."
    assert define().instructions_for({}) is None


def test_a_session_s_model_goes_before_the_agent_s() -> None:
    own, other = ScriptedModel(), ScriptedModel()
    register_scripted("test_agent_definition", other)
    made = define(model=own)

    assert made.model_for({}) is own
    assert made.model_for({"model": None}) is own
    assert made.model_for({"model": "scripted:test_agent_definition"}) is other


def test_a_script_may_be_registered_after_the_agent_is_defined() -> None:
    made = define(model="scripted:registered_later")
    with pytest.raises(SdkError, match="no such script"):
        made.model_for({})
    later = ScriptedModel()
    register_scripted("registered_later", later)

    assert made.model_for({}) is later


def test_a_customization_changes_nothing_by_itself() -> None:
    assert SessionAgentCustomization() == SessionAgentCustomization(
        additional_instructions="", model=None, reasoning_effort=None
    )
