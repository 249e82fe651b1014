"""Every public name is there and looks as the reference pages show it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from signature_table import (
    AT_LEAST,
    AWAITED,
    DEFAULTS,
    ERRORS,
    FIELDS,
    MATCH_ARGS,
    OTHER_NAMES,
    SIGNATURES,
    TYPES,
)

import api_shim as agents


def named(path: str) -> Any:
    value: Any = agents
    for name in path.split("."):
        value = getattr(value, name)
    return value


def parameters(path: str) -> list[inspect.Parameter]:
    value = named(path)
    found = [item.replace(annotation=item.empty) for item in inspect.signature(value).parameters.values()]
    return found[1:] if found and found[0].name == "self" else found


@pytest.mark.parametrize("path", SIGNATURES)
def test_a_signature_is_the_reference_s(path: str) -> None:
    assert str(inspect.Signature(parameters(path))) == SIGNATURES[path]


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_has_the_reference_s_fields_in_order(name: str) -> None:
    shown = {item.name: item.default for item in parameters(name)}

    assert list(shown) == FIELDS[name].split()
    for field, default in DEFAULTS.get(name, {}).items():
        assert shown[field] == default, field


@pytest.mark.parametrize("name", AT_LEAST)
def test_a_signature_has_at_least_the_reference_s_parameters(name: str) -> None:
    shown = {item.name: item.default for item in parameters(name)}

    for field, default in AT_LEAST[name].items():
        assert field in shown
        assert default is ... or shown[field] == default, field


@pytest.mark.parametrize("name", MATCH_ARGS)
def test_a_class_is_matched_by_its_own_fields(name: str) -> None:
    assert named(name).__match_args__ == tuple(MATCH_ARGS[name].split())


@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_an_attribute_and_no_parameter(name: str) -> None:
    assert named(name).type == TYPES[name]
    assert "type" not in {item.name for item in parameters(name)}


def test_a_context_message_is_a_message_whose_role_cannot_be_set() -> None:
    assert issubclass(agents.ContextMessage, agents.MessageEntry)
    message = agents.ContextMessage(id="e", turn_id=None, content=(), kind="input", source=None)
    assert message.role == "context"
    assert message.text == ""
    for name in ("role", "text", "id"):
        with pytest.raises(AttributeError):
            setattr(message, name, "user")


@pytest.mark.parametrize("owner", AWAITED)
def test_what_is_awaited_is_a_coroutine_function_and_nothing_else_is(owner: str) -> None:
    methods = {path.partition(".")[2] for path in SIGNATURES if path.startswith(f"{owner}.")}
    awaited = {name for name in methods if inspect.iscoroutinefunction(named(f"{owner}.{name}"))}

    assert awaited == set(AWAITED[owner].split())


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_an_agents_error(name: str) -> None:
    assert issubclass(named(name), agents.AgentsError)
    assert not issubclass(named(name), ValueError | TypeError)


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_every_other_name_is_there(name: str) -> None:
    assert named(name) is not None


@pytest.mark.parametrize("path", sorted({*SIGNATURES, *FIELDS, *AT_LEAST, *ERRORS, "Session", "Turn", "SessionInput"}))
def test_every_public_class_and_method_is_documented(path: str) -> None:
    text = inspect.getdoc(named(path))

    assert text
    assert not text.startswith(f"{path}("), "a dataclass wrote this docstring itself"
    assert text.rstrip()[-1] in ".`:)\"'"


def test_every_public_name_is_listed() -> None:
    listed = {path.partition(".")[0] for path in (*SIGNATURES, *FIELDS, *AT_LEAST, *ERRORS, *OTHER_NAMES)}

    assert listed <= set(agents.__all__)
    assert agents.__all__ == sorted(agents.__all__)
