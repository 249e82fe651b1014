"""`turnstream demo`: one session, live, in one process. Nothing to install, no server, no key."""

from __future__ import annotations

import asyncio
import contextlib
import os

import click

import api_shim as agents
from api_shim.cli.rendering import EventPrinter, Screen, record_lines

QUESTION = "Order 1042 came broken. Can I have my money back?"


@agents.tool
def find_order(order: str) -> dict[str, object]:
    """Find an order."""
    return {"order": order, "item": "Teapot, blue", "euros": 42, "delivered": "yesterday"}


@agents.tool
def refund(order: str, euros: int) -> str:
    """Give an order's money back."""
    return f"{euros} EUR refunded for order {order}"


shop = agents.Agent(
    name="demo_shop",
    tools=[find_order, refund],
    permission_policy=agents.PermissionPolicy(rules=[agents.PermissionRule(tools=["client.refund"], decision="ask")]),
    model=agents.ScriptedModel(
        [
            agents.ScriptedReply(
                text="I am sorry to hear that. Let me look at the order.",
                calls=[agents.ScriptedCall("client.find_order", {"order": "1042"})],
                delay=0.03,
                usage=agents.TokenUsage(input_tokens=61, output_tokens=24, total_tokens=85),
            ),
            agents.ScriptedReply(calls=[agents.ScriptedCall("client.refund", {"order": "1042", "euros": 42})]),
            agents.ScriptedReply(
                text="Done: 42 EUR for the blue teapot are on their way back to you. They arrive within two working days.",
                delay=0.05,
                usage=agents.TokenUsage(input_tokens=140, output_tokens=22, total_tokens=162),
            ),
        ]
    ),
)


class _Observer:
    """Somebody who reads the session: prints what it sees, and keeps it."""

    def __init__(self, session_id: str, screen: Screen, label: str, colour: str, *, streaming: bool) -> None:
        self._session = agents.session(session_id)
        self._printer = EventPrinter(label=f"{label:<8}", colour=colour, streaming=streaming, screen=screen)
        self.events: list[agents.Event] = []

    async def follow(self, until: type[agents.Event]) -> None:
        """Read on from the last event seen, until one of this type."""
        after = self.events[-1].id if self.events else None
        async with contextlib.aclosing(self._session.iter_events(after=after)) as events:  # type: ignore[type-var] # an async generator, declared as what it promises
            async for event in events:
                self._printer.show(event)
                if not isinstance(event, agents.TextDelta):  # live only: the completed entry has the text
                    self.events.append(event)
                if isinstance(event, until):
                    return


async def _approve(session_id: str) -> None:
    """Somebody else, who knows the session's id and no more: waits for a question, and allows it."""
    session = agents.session(session_id)
    async for event in session.iter_events():
        if isinstance(event, agents.CallbackOpened) and event.turn_id is not None:
            await asyncio.sleep(0.9)
            click.secho("approver  another handle, in another task, answers: allowed", fg="magenta")
            await session.turn(event.turn_id).answer(event.callback.id, agents.AllowApproval())
            return


async def _running_tasks() -> int:
    """Return how many tasks of this process's worker hold a turn, once the one that asked has had time to leave."""
    for _ in range(40):
        if not (held := _held()):
            break
        await asyncio.sleep(0.01)
    return held


def _held() -> int:
    return sum(task.get_name().startswith("turn ") for task in asyncio.all_tasks())


async def _demonstrate() -> bool:
    session = await shop.start_session(title="Order 1042")
    _chapter(f"One process: an embedded broker, a worker, two observers of session {session.id}.")
    screen = Screen()
    browser = _Observer(session.id, screen, "browser", "cyan", streaming=True)
    phone = _Observer(session.id, screen, "phone", "blue", streaming=False)
    watching = [
        asyncio.create_task(browser.follow(agents.TurnEnded)),
        asyncio.create_task(phone.follow(agents.CallbackOpened)),
        asyncio.create_task(_approve(session.id)),
    ]
    turn = await session.start_turn(QUESTION)
    if isinstance(turn, agents.Busy):
        raise TypeError("a new session has no active turn")
    state = await turn.result()
    await watching[1]
    held = await _running_tasks()
    screen.end_line()
    _chapter(
        f"The turn is parked: {held} tasks of the worker hold it. It would wait so for days. The phone goes offline."
    )
    state = await turn.result(after=state)
    await asyncio.gather(*watching)
    _chapter(f"The phone is back, and reads on after its cursor {phone.events[-1].id.rpartition(':')[2]}.")
    await phone.follow(agents.TurnEnded)
    same = browser.events == phone.events
    _chapter(
        f"Both have {len(phone.events)} events, {'the same ones in the same order' if same else 'and they DIFFER'}."
    )
    click.echo()
    click.echo("The turn's record:")
    for line in record_lines(state):
        click.echo(f"  {line}")
    await session.cancel()
    return same and not held and isinstance(state, agents.Completed)


def _chapter(text: str) -> None:
    click.secho(f"── {text}", bold=True)


@click.command()
def demo() -> None:
    """Show one session live, in this process alone.

    A question, a tool call, an approval that parks the turn, an answer from elsewhere, the reply as it is written; two
    observers, one of which drops and resumes from its cursor.
    """
    os.environ.pop("TURNSTREAM_REDIS_URL", None)  # whatever broker this shell uses, the demo brings its own
    if not asyncio.run(_demonstrate()):
        raise click.ClickException("The demo did not go as it should.")
