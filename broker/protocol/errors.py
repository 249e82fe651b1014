"""Errors that users meet.

    AgentsError
    ├── SdkError                          a call breaks a rule of this library; nothing was sent
    ├── SessionNotFoundError
    ├── TurnNotFoundError
    ├── InvalidCursorError                malformed, of another session, or ahead of the log
    ├── ObservationLost                   events cannot be read any more; `.cursor` is where to go on
    ├── OutcomeUnknownError               a send may or may not have arrived; repeat it with `.idempotency_key`
    ├── SessionBusyError                  broker out of memory, or too many subagents run; nothing was applied
    ├── SessionTerminatedError
    ├── SessionIdempotencyConflictError   `.idempotency_key` was used for something else
    ├── UnsupportedSessionProcedureError
    ├── ClientToolAnswerError             an answer was computed and could not be sent; its call stays open
    └── BrokerUnavailableError

Other bad arguments stay `ValueError` and `TypeError`. A message says what happened, to which session and turn, and what
to do next; it never holds a message's content or a secret.
"""

from __future__ import annotations


class AgentsError(Exception):
    """Base of every error of this library."""


class SdkError(AgentsError):
    """A call breaks a rule of this library; nothing was sent."""


class SessionNotFoundError(AgentsError):
    """The session never existed here, or its retention is over."""


class TurnNotFoundError(AgentsError):
    """The session has no turn with this id."""


class InvalidCursorError(AgentsError):
    """A cursor is malformed, of another session, or ahead of the log."""


class ObservationLost(AgentsError):  # noqa: N818 - the specification's name
    """The session's events could not be read; go on after `cursor` (None: from the start)."""

    def __init__(self, message: str, cursor: str | None = None) -> None:
        super().__init__(message)
        self.cursor = cursor


class OutcomeUnknownError(AgentsError):
    """A send may or may not have arrived: repeat it with the same key."""

    def __init__(self, message: str, idempotency_key: str | None = None) -> None:
        super().__init__(message)
        self.idempotency_key = idempotency_key


class SessionBusyError(AgentsError):
    """The session cannot take this now; nothing was applied, try again later."""


class SessionTerminatedError(AgentsError):
    """The session has ended and takes no commands."""


class SessionIdempotencyConflictError(AgentsError):
    """An idempotency key was used for something else before."""

    def __init__(self, message: str, idempotency_key: str | None = None) -> None:
        super().__init__(message)
        self.idempotency_key = idempotency_key


class UnsupportedSessionProcedureError(AgentsError):
    """A subagent's session does not take this command; its root does."""


class ClientToolAnswerError(AgentsError):
    """A client tool's answer was computed and could not be sent; its call stays open."""


class BrokerUnavailableError(AgentsError):
    """The broker is away, or unfit: the message says what to change."""
