"""Records, callbacks, answers and errors: stored form and back, leniently."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from broker.protocol import errors
from broker.protocol.callbacks import (
    AllowApproval,
    Answer,
    ApprovalRequest,
    ApprovalTool,
    ClientToolCall,
    DenyApproval,
    OpenApproval,
    OpenClientToolCall,
    OpenSignIn,
    SignInAnswer,
    SignInRequest,
    UnknownOpenCallback,
    answer_from_wire,
    answer_to_wire,
    approval_to_wire,
    callback_from_wire,
    client_call_to_wire,
    sign_in_to_wire,
    title_line,
)
from broker.protocol.records import (
    Completed,
    Failed,
    Interrupted,
    InvalidOutput,
    ProtocolError,
    Running,
    TokenUsage,
    ToolCall,
    UnknownOutcome,
    completed_to_wire,
    failed_to_wire,
    parse_output,
    state_from_wire,
)
from broker.protocol.values import UnknownValue, dumps, loads

IDS: dict[str, Any] = {"session_id": "0-s", "turn_id": "t", "cursor": "0-s:9-1"}
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def back(wire: Any) -> Any:
    return loads(dumps(wire))


def test_a_completed_turn_survives_the_round_trip() -> None:
    calls = (ToolCall(name="client.a", arguments={"x": [1]}), ToolCall(name="client.b", arguments=None))
    usage = TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3, cached_input_tokens=1)
    wire = completed_to_wire("done", calls, "iteration_limit", usage)

    assert state_from_wire(back(wire), **IDS) == Completed(
        **IDS, text="done", output="done", tool_calls=calls, stop_reason="iteration_limit", usage=usage
    )
    assert not {"session_id", "sessionId", "turnId", "cursor"} & wire.keys()


def test_a_skipped_turn_has_no_output_and_nothing_is_parsed() -> None:
    wire = completed_to_wire("so far", (), "skipped", TokenUsage())
    record = state_from_wire(back(wire), **IDS)

    assert record == Completed(**IDS, text="so far", output=None, stop_reason="skipped")
    assert parse_output(record, City) is record


@pytest.mark.parametrize("cause", ["interrupted", "cancelled", "lifetime_limit", "idle_limit"])
def test_an_interrupted_turn_names_its_cause(cause: Any) -> None:
    assert state_from_wire({"type": "interrupted", "cause": cause, "text": "so far"}, **IDS) == Interrupted(
        **IDS, text="so far", cause=cause
    )


def test_a_failed_turn_survives_the_round_trip() -> None:
    error = ProtocolError(message="no", code="no_progress", details={"a": 1})

    assert state_from_wire(back(failed_to_wire(error, "")), **IDS) == Failed(**IDS, error=error)


def test_what_a_later_version_wrote_is_kept() -> None:
    later = {"type": "paused", "text": "x", "until": "noon"}
    broken = {"type": "failed", "error": "a text"}

    assert state_from_wire(later, **IDS) == UnknownOutcome(**IDS, text="x", outcome="paused", raw=later)
    assert state_from_wire(broken, **IDS) == UnknownOutcome(**IDS, outcome="failed", raw=broken)
    assert state_from_wire({"type": "interrupted", "cause": "storm"}, **IDS) == Interrupted(
        **IDS, cause=UnknownValue("storm")
    )


def test_token_usage_adds_up() -> None:
    one = TokenUsage(input_tokens=1, output_tokens=2, total_tokens=3, cached_input_tokens=4)

    assert one + one == TokenUsage(input_tokens=2, output_tokens=4, total_tokens=6, cached_input_tokens=8)


class City(BaseModel):
    name: str
    people: int

    @field_validator("people")
    @classmethod
    def _some(cls, value: int) -> int:
        return 100 // value  # zero: a fault of the validator's own


def completed(text: str) -> Completed[Any]:
    return Completed(**IDS, text=text, output=text)


def test_output_is_parsed_and_the_record_otherwise_the_same() -> None:
    record = completed('{"name":"Nice","people":2}')
    parsed = parse_output(record, City)

    assert isinstance(parsed, Completed)
    assert parsed.output == City.model_construct(name="Nice", people=50)
    assert dataclasses.replace(parsed, output=record.output) == record


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "City: Invalid JSON"),
        ("hello", "City: Invalid JSON"),
        ('{"name":"Nice"}', "people: Field required"),
        ('{"name":"Nice","people":0}', "City: ZeroDivisionError"),
    ],
)
def test_a_mismatch_is_invalid_output_and_never_raises(text: str, error: str) -> None:
    parsed = parse_output(completed(text), City)

    assert isinstance(parsed, Completed)
    assert isinstance(parsed.output, InvalidOutput)
    assert parsed.output.error.startswith(error)
    assert len(parsed.output.error) <= 500
    assert parsed.output.text == text


def test_only_a_completed_turn_has_output_to_parse() -> None:
    assert parse_output(Running(**IDS), City) == Running(**IDS)
    assert parse_output(completed("x"), None) == completed("x")


def test_records_are_frozen_and_their_repr_is_short() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        completed("x").text = "y"  # type: ignore[misc] # what is refused
    assert len(repr(completed("x" * 100_000))) < 800


# Callbacks and answers.

OPEN: dict[str, Any] = {"id": "c", "session_id": "0-s", "turn_id": "t", "opened_at": AT}


@pytest.mark.parametrize("description", [None, "Opens a case."])
def test_an_approval_survives_the_round_trip(description: str | None) -> None:
    tool = ApprovalTool(id="client.open", name="open", description=description)
    request = ApprovalRequest(tool=tool, tool_call_id="1", arguments={"a": 1}, from_hook=True)
    wire = back(approval_to_wire("c", request, AT))

    assert callback_from_wire(wire, "0-s", "t") == OpenApproval(**OPEN, title="Allow open?", request=request)


def test_a_client_call_and_a_sign_in_survive_the_round_trip() -> None:
    call = ClientToolCall(tool_call_id="1", name="client.pick", arguments=None)
    asked = (SignInRequest(source_id="mcp:a", title="A", url="https://a.example"),)

    assert callback_from_wire(back(client_call_to_wire("c", call, AT)), "0-s", "t") == OpenClientToolCall(
        **OPEN, title="Run client.pick at the client", call=call
    )
    assert callback_from_wire(back(sign_in_to_wire("c", asked, AT)), "0-s", "t") == OpenSignIn(
        **OPEN, title="Sign in to A", requests=asked
    )


@pytest.mark.parametrize("raw", [{"type": "dance"}, {"type": "approval"}, {"type": "signIn", "requests": [1]}, {}])
def test_a_callback_of_a_later_version_is_kept(raw: dict[str, Any]) -> None:
    raw = {**raw, "id": "c", "title": "Dance?", "openedAt": "2026-01-02T03:04:05+00:00"}

    assert callback_from_wire(raw, "0-s", "t") == UnknownOpenCallback(
        **OPEN, title="Dance?", type=raw.get("type", ""), raw=raw
    )


@pytest.mark.parametrize("written", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05", "2026-01-02T04:04:05+01:00"])
def test_opened_at_always_has_its_time_zone(written: str) -> None:
    assert callback_from_wire({"openedAt": written}, "0-s", "t").opened_at == AT


@pytest.mark.parametrize("written", [None, 5, "noon"])
def test_a_time_that_cannot_be_read_is_no_reason_to_fail(written: object) -> None:
    assert callback_from_wire({"openedAt": written}, "0-s", None).opened_at.tzinfo is UTC


def test_a_title_is_one_short_line() -> None:
    assert title_line("Allow\n  this \u2028 now?") == "Allow this now?"
    assert len(title_line("x" * 999)) == 200


@pytest.mark.parametrize(
    ("answer", "wire", "counted"),
    [
        (AllowApproval(), {"type": "allow", "scope": "once"}, AllowApproval()),
        (AllowApproval("session"), {"type": "allow", "scope": "session"}, AllowApproval("session")),
        (DenyApproval("no"), {"type": "deny", "reason": "no"}, DenyApproval("no")),
        (SignInAnswer(("a",), ("b",)), {"type": "signIn", "connected": ["a"], "denied": ["b"]}, None),
    ],
)
def test_answers_have_a_stored_form(answer: Answer, wire: dict[str, Any], counted: Answer | None) -> None:
    assert answer_to_wire(answer) == wire
    assert answer_from_wire(back(wire)) == counted


def test_an_answer_that_is_none_of_an_approval_reads_as_none() -> None:
    assert answer_from_wire(None) is None
    assert answer_from_wire({"type": "clientTool", "result": {}}) is None
    with pytest.raises(ValueError, match="scope"):
        AllowApproval("forever")  # type: ignore[arg-type] # what is refused


# Errors.


def test_every_error_is_drawn_in_the_tree_and_has_the_one_base() -> None:
    made = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}

    assert errors.__doc__ is not None
    for kind in made:
        assert issubclass(kind, errors.AgentsError)
        assert kind.__name__ in errors.__doc__
        assert not issubclass(kind, ValueError | TypeError)


def test_errors_carry_what_helps_to_go_on() -> None:
    assert errors.ObservationLost("gone", cursor="0-s:1-1").cursor == "0-s:1-1"
    assert errors.OutcomeUnknownError("maybe", idempotency_key="k").idempotency_key == "k"
    assert errors.SessionIdempotencyConflictError("other", idempotency_key="k").idempotency_key == "k"
    assert str(errors.ObservationLost("gone")) == "gone"
