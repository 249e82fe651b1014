"""Session inputs: values given at a session's start that tools and hooks read and the model never sees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from broker.protocol.values import dumps
from workers.tool_schema import types_of


class SessionInput(BaseModel):
    """A value that tools and hooks may read; subclass it and set `input_id`, the name a session finds it by."""

    input_id: ClassVar[str]


class Depends:
    """Marks an `Annotated` parameter as a session input: `Annotated[T, agents.Depends()]`."""

    def __repr__(self) -> str:
        return "Depends()"


class InputRejectedError(ValueError):
    """A session input is missing or its class refused it. The message names the field and never holds the value."""


def input_parameters(function: Callable[..., Any], first: int = 0) -> dict[str, type[SessionInput]]:
    """Return a function's parameters, from the `first` on, that are session inputs.

    Raises `TypeError` for one that is no SessionInput, and for one that is written so that the model would be asked for it.
    """
    found: dict[str, type[SessionInput]] = {}
    defaults = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    for name, hint in types_of(function, first).items():
        if isinstance(defaults.get(name), Depends) or (isinstance(hint, type) and issubclass(hint, SessionInput)):
            shown = getattr(hint, "__name__", "T")
            raise TypeError(
                f"{function.__qualname__}: {name} would be the model's to give; write {name}: Annotated[{shown}, Depends()]"
            )
        if get_origin(hint) is Annotated and any(
            isinstance(mark, Depends) or mark is Depends for mark in get_args(hint)[1:]
        ):
            kind = get_args(hint)[0]
            if not (isinstance(kind, type) and issubclass(kind, SessionInput)):
                raise TypeError(f"{function.__qualname__}: {name} depends on {kind!r}, which is no SessionInput")
            if not isinstance(getattr(kind, "input_id", None), str):
                raise TypeError(f"{kind.__qualname__} has no input_id; set it to the name that a session finds it by")
            found[name] = kind
    return found


def resolve_inputs(wanted: Mapping[str, type[SessionInput]], given: Mapping[str, Any]) -> dict[str, SessionInput]:
    """Return the inputs that a function wants, validated now. Raises `InputRejectedError`."""
    resolved: dict[str, SessionInput] = {}
    for name, kind in wanted.items():
        if kind.input_id not in given:
            raise InputRejectedError(f"session input {kind.input_id!r} was not given when the session started")
        try:
            resolved[name] = kind.model_validate_json(dumps(given[kind.input_id]))
        except ValidationError as bad:
            raise InputRejectedError(f"session input {_rejection(kind, bad)}") from None
    return resolved


def _rejection(kind: type[SessionInput], bad: ValidationError) -> str:
    """The field and the validator's own message. Deeper places and unknown fields are keys of the value: left out."""
    first = bad.errors(include_input=False, include_url=False)[0]
    declared = {*kind.model_fields, *(field.alias for field in kind.model_fields.values())}
    field = f".{first['loc'][0]}" if first["loc"] and first["loc"][0] in declared else ""
    # These two messages of pydantic's own quote the value.
    said = {
        "union_tag_invalid": "Input is of none of the expected kinds",
        "uuid_parsing": "Input should be a valid UUID",
    }
    return f"{kind.input_id}{field}: {said.get(first['type'], first['msg'])}"
