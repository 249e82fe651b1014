"""How a session stands with its tool sources, from its log alone."""

from __future__ import annotations

from typing import Any

from histories import Told, text

from broker.protocol.content import content_text
from workers.fold import History, Input, Reply
from workers.models import ContextNote
from workers.prompt import messages
from workers.steps import CallModel, Finish, Park, next_step


def about(told: Told, source: str, state: str) -> Told:
    """A message to the model about a source."""
    entry = {
        "type": "message",
        "id": f"s{len(told.records)}",
        "role": "context",
        "content": text(f"{source} is {state}"),
    }
    return told.entry({**entry, "kind": "capability_source", "source": source}, source=state)


def failed(told: Told, source: str, **more: Any) -> Told:
    """A notice that a source cannot be used."""
    details = {"source_id": source, "status": "unavailable", **more}
    return told.record(type="notice", level="warning", message="", source=source, details=details)


def sign_in(told: Told, *sources: str) -> Told:
    """A person is asked to sign in."""
    requests = [{"sourceId": source, "title": source, "url": "https://a.example"} for source in sources]
    return told.record(type="callbackOpened", callback={"type": "signIn", "id": "q", "requests": requests})


def test_a_source_is_down_until_it_is_up_over_turns_and_failed_for_its_turn() -> None:
    told = about(failed(Told().user("hi"), "mcp:a"), "mcp:a", "down")
    assert (told.history.sources.down, told.history.sources.noticed) == ({"mcp:a"}, {"mcp:a"})

    told.reply("done").next_turn().user("again")
    assert (told.history.sources.down, told.history.sources.noticed) == ({"mcp:a"}, set())

    about(told, "mcp:a", "up")
    assert told.history.sources.down == set()


def test_other_notices_and_a_person_s_context_say_nothing_of_sources() -> None:
    told = Told().user("hi").user("mcp:a is down", role="context")
    told.record(type="notice", level="info", message="", source="model", details={"reason": "length"})
    told.record(type="notice", level="info", message="", source=None, details=None)

    assert told.history.sources == History().sources


def test_a_message_about_a_source_stands_before_the_input_that_waits_and_after_results_that_do() -> None:
    told = about(Told().user("hi"), "mcp:a", "down").reply("", "c").result("c")
    about(about(told, "mcp:b", "down"), "mcp:c", "down")

    kinds = [type(message).__name__ for message in messages(told.history)]
    assert kinds == ["ContextNote", "UserMessage", "AssistantMessage", "ToolMessage", "ContextNote", "ContextNote"]
    notes = [content_text(each.content) for each in messages(told.history) if isinstance(each, ContextNote)]
    assert notes == ["mcp:a is down", "mcp:b is down", "mcp:c is down"]
    assert next_step(told.history, frozenset()) == CallModel()
    told.reply("done")
    assert [type(item).__name__ for item in told.history.timeline] == ["Input", "Reply", "Input", "Input", "Reply"]


def test_a_message_about_a_source_asks_the_model_for_nothing() -> None:
    told = about(Told().user("hi").reply("done", read=3), "mcp:a", "down")

    assert isinstance(told.history.timeline[-1], Input)
    assert not told.history.awaits_model
    assert next_step(told.history, frozenset()) == Finish()
    assert next_step(about(Told(), "mcp:a", "down").history, frozenset()) == Finish()


def test_what_a_person_sends_after_it_is_an_input_of_its_own() -> None:
    told = (
        about(Told().user("hi").reply("", "c").result("c"), "mcp:a", "down").user("wait").user("note", role="context")
    )

    *_, about_a, wait = told.history.timeline
    assert isinstance(wait, Input)
    assert [content_text(each) for each in wait.context] == ["note"]
    assert isinstance(about_a, Input)
    assert about_a.context == []
    assert not any(isinstance(item, Reply) for item in (about_a, wait))


def test_a_turn_parks_while_a_person_is_asked_to_sign_in() -> None:
    told = sign_in(Told().user("hi"), "connectors:a", "connectors:b")
    assert next_step(told.history, frozenset()) == Park()
    assert next_step(told.user("hurry").history, frozenset()) == Park()

    told.answered("q", {"type": "signIn", "connected": ["connectors:a"], "denied": ["connectors:b"]})
    sources = told.history.sources
    assert next_step(told.history, frozenset()) == CallModel()
    assert (sources.asked, sources.connected) == ({"connectors:a", "connectors:b"}, {"connectors:a"})


def test_a_sign_in_that_expired_or_was_closed_connected_nothing() -> None:
    for outcome in ("expired", "closed"):
        told = sign_in(Told().user("hi"), "connectors:a")
        told.record(type="callbackResolved", callbackId="q", private={"outcome": outcome})
        assert (told.history.sources.sign_in, told.history.sources.connected) == (None, set())
        assert told.history.sources.asked == {"connectors:a"}

    told.next_turn().user("again")
    assert told.history.sources.asked == set()
