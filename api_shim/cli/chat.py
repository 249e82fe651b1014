"""`turnstream chat`: talk to an agent at a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Any

import click

from api_shim.agent import Agent
from api_shim.cli.asking import Asker
from api_shim.cli.lines import Lines
from api_shim.cli.loading import NoAgentError, load_agent
from api_shim.cli.place import need_broker, url_option
from api_shim.cli.rendering import EventPrinter, entry_line
from api_shim.cli.terminal import one_line
from api_shim.local import connect, current_host
from api_shim.session import Session
from api_shim.turn import Turn
from broker.protocol.events import CallbackOpened, CallbackResolved, SessionUpdated, TurnUpdated

if TYPE_CHECKING:
    from workers.agent import AgentDefinition


@click.command()
@click.argument("agent", required=False, metavar="[MODULE:AGENT]")
@click.option("--name", help="An agent that workers serve, by its name.")
@click.option("--session", "session_id", metavar="ID", help="Go on with this session instead of a new one.")
@url_option
def chat(agent: str | None, name: str | None, session_id: str | None, url: str | None) -> None:
    """Talk to an agent. Without a broker's URL, MODULE:AGENT runs in this process.

    Approvals are asked here: y allows the call, a allows its tool for the whole session, n denies (what follows it is the
    reason). Ctrl-C stops the turn and keeps the session; Ctrl-D leaves.
    """
    if url is not None:
        connect(url)
    if agent is not None and name is not None:
        raise NoAgentError("Give MODULE:AGENT or --name, and not both.")
    if agent is None and name is None and session_id is None:
        raise NoAgentError("Whom to talk to? Give MODULE:AGENT, --name of an agent that workers serve, or --session.")
    if agent is None:
        need_broker(None)
    asyncio.run(_chat(agent, name, session_id))


async def _chat(agent: str | None, name: str | None, session_id: str | None) -> None:
    known = load_agent(agent) if agent is not None else Agent.load_from(agent_name=name) if name is not None else None
    definition = known.definition if agent is not None and known is not None else None
    printer = EventPrinter()
    if session_id is None:
        if known is None:
            raise AssertionError("a new session has an agent")
        session = await known.start_session()
    else:
        session = known.session(session_id) if known is not None else Session(session_id, host=current_host())
    info = await session.info()
    click.secho(f"Session {session.id} of {one_line(info.agent_name)}.", bold=True)
    if info.status == "terminated":
        click.echo("It has ended; turnstream watch shows it.")
        return
    conversation = _Conversation(session, definition, printer)
    conversation.listen()
    if session_id is not None:
        await conversation.take_up()
    await conversation.talk()
    printer.end_line()
    again = (
        "It ends with this process." if current_host() is None else f"To go on: turnstream chat --session {session.id}"
    )
    click.secho(f"Session {session.id}. {again}", bold=True)


class _Conversation:
    """One person and one session."""

    def __init__(self, session: Session, definition: AgentDefinition | None, printer: EventPrinter) -> None:
        self._session = session
        self._printer = printer
        self._lines = Lines()
        self._left = asyncio.Event()
        self._asker = Asker(self._lines, printer, definition, self._left)
        self._turn: Turn | None = None
        self._stopping: asyncio.Task[Any] | None = None
        self._last: str | None = None  # the cursor of what was shown

    def listen(self) -> None:
        """Take Ctrl-C: it stops the turn; without one, or a second time, it leaves."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupted)

    def _interrupted(self) -> None:
        if self._turn is None or self._stopping is not None:
            self._left.set()
            return
        self._printer.line("you", "stop", fg="yellow")
        self._stopping = asyncio.create_task(self._turn.interrupt())

    async def take_up(self) -> None:
        """Show what was said before, and follow the turn that is active."""
        turns = await self._session.turns()
        turn = turns[-1] if turns else None
        if turn is not None and (await self._session.info()).status != "running":
            turn = None
        async for entry in self._session.history():
            if (turn is None or entry.turn_id != turn.id) and (told := entry_line(entry)) is not None:
                who, text, style = told
                self._printer.line(who, text, **{**style, "dim": True})
        if turn is not None:
            await self._follow(turn)

    async def talk(self) -> None:
        """Send what is typed, and show what comes of it, until the person leaves."""
        while not self._left.is_set() and (text := await self._typed()) is not None:
            if text.strip():
                self._printer.own = text if self._lines.interactive else None
                await self._follow(await self._session.send_message(text))

    async def _typed(self) -> str | None:
        if self._lines.interactive:
            self._printer.prompt("> ")
        line = await self._asker.next_line()
        if line is not None and self._lines.interactive:
            self._printer.typed()
        return line

    async def _follow(self, turn: Turn) -> None:
        """Show a turn until it ends or the person leaves; ask what it asks."""
        self._turn = turn
        tasks = [
            asyncio.create_task(self._show(turn)),
            asyncio.create_task(self._asker.ask_all(turn)),
            asyncio.create_task(self._left.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if tasks[0] not in done:
                self._printer.line("turn", "goes on without you", fg="yellow")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._stopping is not None:
                await asyncio.gather(self._stopping)
            self._turn = self._stopping = None

    async def _show(self, turn: Turn) -> None:
        blocked = False
        events = turn.iter_events(after=self._last)
        async with contextlib.aclosing(events):  # type: ignore[type-var] # an async generator, declared as what it promises
            async for event in events:
                self._last = event.id
                if not isinstance(event, SessionUpdated):
                    self._printer.show(event)
                match event:
                    case TurnUpdated(status):
                        blocked = status == "blocked"
                        if blocked:
                            await self._asker.look(turn)
                    case CallbackOpened() if (
                        blocked
                    ):  # the first ones come before the turn is blocked: one look for all
                        await self._asker.look(turn)
                    case CallbackResolved(callback_id):
                        self._asker.settled(callback_id)
                self._asker.repeat()
