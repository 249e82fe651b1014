# ruff: noqa: I001 - the guide's own lines
# fmt: off
# mypy: disable-error-code="union-attr, arg-type"
# (The guide does not look at Busy, which a session of its own never gives.)
# The guide's "Read events again and follow them", unchanged but for its import line, inside the first sample's main.
import asyncio

import api_shim as agents

from reviewer import payment_reviewer


def show(event: agents.Event) -> None:
    match event:
        case agents.TurnStarted():
            print(event.id, "turn started")
        case agents.CallbackOpened(callback):
            print(event.id, "waits for:", callback.title)
        case agents.CallbackResolved(callback_id):
            print(event.id, "answered:", callback_id)
        case agents.EntryAdded(entry=entry):
            print(event.id, "entry added:", type(entry).__name__)
        case agents.TextDelta(text=text):
            print(event.id, "text:", repr(text))
        case agents.EntryCompleted(entry=entry):
            print(event.id, "entry completed:", type(entry).__name__)
        case agents.TurnEnded(state):
            print(event.id, "turn ended:", type(state).__name__)
        case agents.SessionUpdated(status):
            print(event.id, "session:", status)
        case agents.UnknownEvent(kind):
            print(event.id, "other event:", kind)


async def main() -> None:
    session = await payment_reviewer.start_session()
    state = await session.run("Review transaction monitoring alert 4711.", on_event=show)

    async for event in session.turn(state.turn_id).iter_events():
        show(event)
    print("---")  # the border between the two samples: the test's own line
    await session.start_turn("Which case did you open? Reply with the case id only.")
    async for event in session.iter_events(after=state):
        show(event)
        if isinstance(event, agents.TurnEnded):
            print(event.state.text)
            break
    await session.cancel()


asyncio.run(main())
