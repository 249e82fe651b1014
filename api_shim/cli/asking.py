"""Asking a person at the terminal what a turn asks: approvals, sign-ins; and running the client tools that are here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from api_shim.cli.lines import Lines
from api_shim.cli.rendering import EventPrinter, question
from api_shim.handlers import Handlers, called
from api_shim.turn import Turn
from broker.protocol.callbacks import (
    AllowApproval,
    DenyApproval,
    OpenApproval,
    OpenCallback,
    OpenClientToolCall,
    OpenSignIn,
    SignInAnswer,
)
from broker.protocol.records import AlreadySettled, Blocked

if TYPE_CHECKING:
    from workers.agent import AgentDefinition


class Asker:
    """Asks one question after another. A question that somebody else settles is taken back."""

    def __init__(
        self, lines: Lines, printer: EventPrinter, definition: AgentDefinition | None, left: asyncio.Event
    ) -> None:
        self._lines = lines
        self._printer = printer
        self._definition = definition
        self._left = left
        self._open: dict[str, OpenCallback] = {}  # still to be asked, the first one is being asked
        self._seen: set[str] = set()
        self._more = asyncio.Event()
        self._asking: asyncio.Task[Any] | None = None
        self._prompt: str | None = None

    async def next_line(self) -> str | None:
        """Return what is typed next; None when there is no more, or the person has left."""
        typed = asyncio.create_task(self._lines.next())
        leaving = asyncio.create_task(self._left.wait())
        try:
            await asyncio.wait({typed, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return typed.result() if typed.done() else None
        finally:
            typed.cancel()
            leaving.cancel()
            await asyncio.gather(typed, leaving, return_exceptions=True)

    async def look(self, turn: Turn) -> None:
        """Take in what the turn asks now, its subagents' questions too."""
        state = await turn.get()
        for callback in state.callbacks if isinstance(state, Blocked) else ():
            if callback.id not in self._seen:
                self._seen.add(callback.id)
                self._open[callback.id] = callback
                self._more.set()

    def settled(self, callback_id: str) -> None:
        """Take a question back: it was answered here or elsewhere."""
        first = next(iter(self._open), None)
        callback = self._open.pop(callback_id, None)
        if callback is not None and callback_id == first and self._asking is not None and self._asking.cancel():
            # Said here, not where it is noticed: the turn's end may come at once, and ends the asking.
            self._printer.line("asks", f"{callback.title} is settled: somebody else has answered", dim=True)

    def repeat(self) -> None:
        """Show the question again that other lines have pushed away."""
        if self._prompt is not None and not self._printer.prompting:
            self._printer.prompt(self._prompt)

    async def ask_all(self, turn: Turn) -> None:
        """Ask whatever comes in, until cancelled; returns when the person has left."""
        try:
            while not self._left.is_set():
                if not self._open:
                    self._more.clear()
                    await self._more.wait()
                    continue
                await self._ask(turn, next(iter(self._open.values())))
        finally:
            if self._asking is not None:
                self._asking.cancel()
            self._open.clear()
            self._seen.clear()

    async def _ask(self, turn: Turn, callback: OpenCallback) -> None:
        self._asking = asyncio.create_task(self._answer(callback))
        try:
            await asyncio.wait({self._asking})
            if self._asking.cancelled():  # settled elsewhere
                return
            answer = self._asking.result()
        finally:
            self._prompt = None
            self._asking.cancel()
            self._asking = None
            self._open.pop(callback.id, None)
        if answer is _NONE:
            return
        sent = await turn.answer(callback.id, answer)
        if isinstance(sent, AlreadySettled):
            self._printer.line("asks", "somebody else was first", dim=True)
        await self.look(turn)

    async def _answer(self, callback: OpenCallback) -> object:
        match callback:
            case OpenApproval(request):
                return await self._approval(callback, scope=not request.from_hook)
            case OpenSignIn(requests):
                sources = tuple(request.source_id for request in requests)
                line = await self._line(callback, "signed in? y/n: ", ("y", "yes", "n", "no"))
                if line is None:
                    return _NONE
                return SignInAnswer(connected=sources) if line.startswith("y") else SignInAnswer(denied=sources)
            case OpenClientToolCall():
                return await self._client_tool(callback)
            case _:
                self._printer.line("asks", "only a newer version can answer this", dim=True)
                return _NONE

    async def _approval(self, callback: OpenCallback, *, scope: bool) -> object:
        words = ("y", "yes", "n", "no") + (("a", "all") if scope else ())
        line = await self._line(callback, f"allow? y{'/a' if scope else ''}/n: ", words)
        if line is None:
            return _NONE
        word, _, reason = line.partition(" ")
        match word[0].lower():
            case "y":
                return AllowApproval()
            case "a":
                return AllowApproval("session")
            case _:
                return DenyApproval(reason.strip() or None)

    async def _line(self, callback: OpenCallback, prompt: str, words: tuple[str, ...]) -> str | None:
        """Return a line whose first word is one of `words`; None, with the callback left open, when no more are typed."""
        self._lines.drop_typed_ahead()
        self._prompt = f"{question(callback)}\n{prompt}" if len(self._open) > 1 else prompt
        while True:
            self._printer.prompt(self._prompt)
            line = await self.next_line()
            if line is None:
                self._prompt = None
                self._printer.line("asks", "left open", dim=True)
                self._left.set()
                return None
            if self._lines.interactive:
                self._printer.typed()
            if line.strip().partition(" ")[0].lower() in words:
                self._prompt = None
                return line.strip()

    async def _client_tool(self, callback: OpenClientToolCall) -> object:
        from workers.tools import ToolError, error_result

        handler = Handlers().client_tool_for(callback.call.name, self._definition)
        if handler is None:
            self._printer.line("asks", "it waits for a client that has this tool", dim=True)
            return _NONE
        try:
            return await called(handler, callback.call)
        except Exception as failed:
            if self._definition is not None and self._definition.tool_errors == "raise":
                raise
            said = str(failed) if isinstance(failed, ToolError) else f"{type(failed).__name__}: {failed}"
            return error_result(said)


_NONE = object()
"""No answer: the callback stays open to others."""
