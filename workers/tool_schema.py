"""A function's parameters as a JSON schema, and JSON arguments as its keyword arguments. Pydantic says what fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from broker.protocol.values import JsonValue, dumps


def types_of(function: Callable[..., Any], first: int = 0) -> dict[str, Any]:
    """Return the types of a function's parameters by name, from the `first` on; `Any` for those without an annotation.

    What it returns is not looked at: its name may exist for type checkers only. Raises `TypeError` for an unknown name.
    """
    parameters = list(inspect.signature(function).parameters.values())[first:]
    return {parameter.name: _evaluated(function, parameter.name, parameter.annotation) for parameter in parameters}


def returned_type(function: Callable[..., Any]) -> Any:
    """Return the type that a function returns, `Any` without an annotation. Raises `TypeError` for an unknown name."""
    return _evaluated(function, "return", inspect.signature(function).return_annotation)


def _evaluated(function: Callable[..., Any], name: str, annotation: Any) -> Any:
    if annotation is inspect.Signature.empty:
        return Any
    known = getattr(inspect.unwrap(function), "__globals__", {})
    holder = SimpleNamespace(__annotations__={name: annotation})
    try:
        return get_type_hints(holder, known, include_extras=True)[name]
    except NameError:
        pass  # a type of the function that this one is defined in
    try:
        return get_type_hints(holder, known, _names_around(known), include_extras=True)[name]
    except NameError as unknown:
        raise TypeError(f"{function.__name__}: the annotation of {name!r} is not known here: {unknown}") from None


def _names_around(module: Mapping[str, Any]) -> dict[str, Any]:
    """The local names of the running functions of a module, the innermost ones first."""
    names: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is module:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


class Arguments:
    """The arguments of a function, without the parameters that are `left_out`. `schema` is a JSON schema of an object.

    Raises `TypeError` for parameters that no JSON object can give.
    """

    def __init__(self, function: Callable[..., Any], left_out: Collection[str] = ()) -> None:
        name, types = function.__name__, types_of(function)
        self._parameters: dict[str, str] = {}
        fields: dict[str, Any] = {}
        for at, (parameter_name, parameter) in enumerate(inspect.signature(function).parameters.items()):
            if parameter_name in left_out:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise TypeError(f"tool {name}: parameter {parameter_name} must be passable by keyword")
            if at == 0 and parameter_name == "self" and parameter.annotation is parameter.empty:
                raise TypeError(f"tool {name}: it is a method without its object; make a tool of object.{name}")
            kind, field = types[parameter_name], parameter_name
            if field.startswith("_") or hasattr(BaseModel, field):  # names that a pydantic model keeps for itself
                kind = Annotated[kind, Field(alias=parameter_name)]
                while field in types or hasattr(BaseModel, field):
                    field = f"p{field}"
            self._parameters[field] = parameter_name
            fields[field] = (kind, ... if parameter.default is parameter.empty else parameter.default)
        try:
            self._model: type[BaseModel] = create_model(name, __config__={"extra": "forbid"}, **fields)
            self.schema: dict[str, JsonValue] = self._model.model_json_schema()
        except PydanticUserError as bad:
            raise TypeError(f"tool {name}: its parameters have no JSON schema: {bad.message}") from None

    def bind(self, arguments: JsonValue) -> dict[str, Any]:
        """Return checked keyword arguments. Raises `ValueError` naming the field and saying what is wrong, never its value."""
        try:
            # As JSON, so that strict types take the forms that JSON has for them: a date is text, a tuple is a list.
            model = self._model.model_validate_json(dumps({} if arguments is None else arguments))
        except ValidationError as bad:
            raise ValueError(what_misfits(bad, "arguments")) from None
        return {parameter: getattr(model, field) for field, parameter in self._parameters.items()}


def what_misfits(bad: ValidationError, whole: str) -> str:
    """Return the first five fields that a validator refused, each with what it said. `whole` names the value itself."""
    problems = bad.errors(include_input=False, include_url=False)[:5]
    return "; ".join(f"{'.'.join(str(part) for part in item['loc']) or whole}: {item['msg']}" for item in problems)
