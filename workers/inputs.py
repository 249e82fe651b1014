"""Session inputs: values given at a session's start that tools and hooks read and the model never sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError


class SessionInput(BaseModel):
    """A value that tools and hooks may read; subclass it and set `input_id`, the name a session finds it by."""

    input_id: ClassVar[str]


class Depends:
    """Marks an `Annotated` parameter as a session input: `Annotated[T, agents.Depends()]`."""

    def __repr__(self) -> str:
        return "Depends()"


class InputRejectedError(ValueError):
    """A session input is missing or its class refused it. The message names the field and never holds the value."""


def input_parameters(function: Callable[..., Any]) -> dict[str, type[SessionInput]]:
    """Return a function's parameters that are session inputs. Raises `TypeError` for one that is no SessionInput."""
    found: dict[str, type[SessionInput]] = {}
    for name, hint in get_type_hints(function, include_extras=True).items():
        if get_origin(hint) is Annotated and any(
            isinstance(mark, Depends) or mark is Depends for mark in get_args(hint)[1:]
        ):
            kind = get_args(hint)[0]
            if not (isinstance(kind, type) and issubclass(kind, SessionInput)):
                raise TypeError(f"{function.__qualname__}: {name} depends on {kind!r}, which is no SessionInput")
            found[name] = kind
    return found


def resolve_inputs(wanted: Mapping[str, type[SessionInput]], given: Mapping[str, Any]) -> dict[str, SessionInput]:
    """Return the inputs that a function wants, validated now. Raises `InputRejectedError`."""
    resolved: dict[str, SessionInput] = {}
    for name, kind in wanted.items():
        if kind.input_id not in given:
            raise InputRejectedError(f"session input {kind.input_id!r} was not given when the session started")
        try:
            resolved[name] = kind.model_validate(given[kind.input_id])
        except ValidationError as bad:
            first = bad.errors(include_input=False, include_url=False)[0]
            place = ".".join([kind.input_id, *(str(part) for part in first["loc"])])
            raise InputRejectedError(f"session input {place}: {first['msg']}") from None
    return resolved
