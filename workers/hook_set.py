"""The hooks of one agent, checked when the agent is made: what each is called, which points it has, what it keeps."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast, get_args

from pydantic import BaseModel, ValidationError

from broker.protocol.values import JsonValue, clean_json, dumps
from workers.hooks import Hook, Point
from workers.inputs import SessionInput, input_parameters
from workers.threads import Raised, in_thread
from workers.tool_schema import what_misfits
from workers.toolset import AnyTool, as_tools

POINTS: Final[tuple[Point, ...]] = get_args(Point)

_SHOWN: Final[Mapping[Point, tuple[str, ...]]] = {
    "post_llm_call": ("reply",),
    "pre_tool_call": ("call",),
    "post_tool_call": ("call", "result"),
}
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class BoundPoint:
    """One point of one hook: its method, and the session inputs that this takes."""

    def __init__(self, place: str, point: Point, method: Callable[..., Any]) -> None:
        self._place = f"{place}.{point}"
        self._method = method
        shown = ("ctx", *_SHOWN.get(point, ()))
        self.inputs: Mapping[str, type[SessionInput]]
        try:
            self.inputs = input_parameters(method)
        except TypeError:
            # The type of what is shown may mean nothing at run time: `HookContext[State]` inside the hook's class.
            self.inputs = input_parameters(method, len(shown))
        try:
            inspect.signature(method).bind(*shown, **self.inputs)
        except TypeError as bad:
            taken = f"({', '.join(shown)})"
            raise TypeError(
                f"{self._place} must take {taken}, and beside them only session inputs, Annotated[T, Depends()]: {bad}"
            ) from None

    async def call(self, *shown: Any, **inputs: Any) -> Any:
        """Call the method; a plain function in a thread. Raises what it raises."""
        if inspect.iscoroutinefunction(self._method):
            return await self._method(*shown, **inputs)
        ended = await in_thread(partial(self._method, *shown, **inputs), self._place)
        if isinstance(ended, Raised):
            raise HookRaised(ended.error)
        return await ended.value if inspect.isawaitable(ended.value) else ended.value


class HookRaised(Exception):  # noqa: N818 - it carries an exception, which may be a StopIteration
    """What a hook raised in its thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


class BoundHook:
    """A hook of an agent. `points` holds the ones that it overrides; `state` is its State class, if it has one.

    Raises `TypeError` or `ValueError` naming the hook for what it must not be.
    """

    def __init__(self, place: str, hook: object) -> None:
        if not isinstance(hook, Hook):
            said = f"the class {hook.__name__}; give an instance" if isinstance(hook, type) else type(hook).__name__
            raise TypeError(f"{place} must be a Hook, not {said}")
        name: object = type(hook).__name__ if hook.name is None else hook.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{place}: a hook's name is 1 to 64 of A-Z a-z 0-9 _ . -, not {name!r}")
        self.name = name
        place = f"hook {self.name}"
        self.points = {
            point: BoundPoint(place, point, getattr(hook, point))
            for point in POINTS
            if getattr(type(hook), point) is not getattr(Hook, point)
        }
        self.state = _state_of(place, hook)
        self.tools: tuple[AnyTool, ...] = as_tools(hook.tools, f"{place}: tools")


def restored(state: type[BaseModel], kept: JsonValue) -> BaseModel:
    """Return a State from what was kept. Raises `ValueError` naming the fields when it does not fit the class any more."""
    try:
        return state.model_validate_json(dumps(kept))
    except ValidationError as bad:
        raise ValueError(what_misfits(bad, "State")) from None


def dump(state: BaseModel) -> JsonValue:
    """What is kept of a State. Raises `ValueError` for what JSON cannot hold."""
    return clean_json(state.model_dump(mode="json", by_alias=True, round_trip=True), "State")


def _state_of(place: str, hook: Hook) -> type[BaseModel] | None:
    state = getattr(hook, "State", None)
    if state is None:
        return None
    if not (isinstance(state, type) and issubclass(state, BaseModel)):
        raise TypeError(f"{place}: State must be a class of pydantic's BaseModel, not {state!r}")
    try:
        state()
    except ValidationError as bad:
        raise TypeError(f"{place}: State starts without arguments: {what_misfits(bad, 'State')}") from None
    return state


class HookSet:
    """An agent's guardrails and hooks, in the order in which they run. Raises as `BoundHook`, and for two of one name."""

    def __init__(self, guardrails: Sequence[Hook] = (), hooks: Sequence[Hook] = ()) -> None:
        given = [*_numbered("guardrails", guardrails), *_numbered("hooks", hooks)]
        self._hooks = tuple(BoundHook(place, hook) for place, hook in given)
        self._at = {point: tuple(hook for hook in self._hooks if point in hook.points) for point in POINTS}
        seen: set[str] = set()
        for hook in self._hooks:
            if hook.name in seen:
                raise ValueError(f"hooks: two hooks have the name {hook.name!r}; give one of them a name of its own")
            seen.add(hook.name)

    def __iter__(self) -> Iterator[BoundHook]:
        return iter(self._hooks)

    def at(self, point: Point) -> tuple[BoundHook, ...]:
        """The hooks that have this point."""
        return self._at[point]


def _numbered(argument: str, given: object) -> list[tuple[str, object]]:
    if isinstance(given, (str, Hook)) or not isinstance(given, Sequence):
        raise TypeError(f"{argument} must be a sequence of hooks, not {type(given).__name__}")
    return [(f"{argument}[{at}]", cast("object", hook)) for at, hook in enumerate(given)]
