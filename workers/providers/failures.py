"""What can go wrong with a model's server, each as a `ModelError` with a code.

| code | what happened | may be retried |
|---|---|---|
| `context_overflow` | the conversation is longer than the model takes | no |
| `rate_limited` | 429 | yes, after its Retry-After; not when the quota is used up, nor when the wait would be over 5 minutes |
| `model_unavailable` | 5xx, 408, 409, 425, or no connection | yes |
| `model_timeout` | silence for longer than the timeout | yes |
| `stream_cut` | a reply without an end | yes |
| `auth_failed` | 401, 403, or no key at all | no |
| `bad_request` | any other 4xx | no |
| `content_filter` | the request or the reply was withheld | no |
| `model_failed` | an error within the reply that is none of these; an answer that is no stream | as the server says |

A message names the model, the server, and what the server calls the error; never the request's contents, a header or the key.
That is why the server's own message, where any of these may stand, is read and not repeated.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from broker.protocol.values import loads
from workers.models import ModelError

LONGEST_WAIT_S: Final = 300.0

_OVERFLOW: Final = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (?:length|window|size)"
    r"|prompt (?:is )?too long|too large for model|input (?:is )?too long|reduce the length of the|input token count"
    r"|maximum number of (?:input )?tokens|max_model_len",
    re.IGNORECASE,
)
_FILTERED: Final = re.compile(
    r"content_filter|content_policy|ResponsibleAIPolicyViolation|invalid_prompt", re.IGNORECASE
)
_QUOTA: Final = re.compile(r"insufficient_quota|billing|quota_exceeded", re.IGNORECASE)  # of a code, not of a message
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z_.\[\]0-9-]{0,63}")
_TRANSIENT: Final = {408, 409, 425}


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a response asks to wait, None when it does not say."""
    text = headers.get("retry-after-ms")
    if text is not None and (seconds := _number(text)) is not None:
        return seconds / 1000
    text = headers.get("retry-after")
    if text is None or (seconds := _number(text)) is not None:
        return None if text is None else seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _error_of(body: Any) -> Mapping[str, Any]:
    """The error object of an answer's body, whatever it is."""
    if isinstance(body, (str, bytes)):
        try:
            body = loads(body)
        except ValueError:
            return {"message": body if isinstance(body, str) else ""}
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error", body.get("detail"))
    if isinstance(inner, Mapping):
        return inner
    return {**body, "message": inner} if isinstance(inner, str) else body


def _says(error: Mapping[str, Any], *fields: str) -> str:
    return " ".join(str(error[key]) for key in fields or ("code", "type", "message") if error.get(key) is not None)


def _named(error: Mapping[str, Any]) -> str:
    """What the server calls an error, of identifiers only."""
    names = [error.get("code"), error.get("type")]
    shown = [name for name in names if isinstance(name, str) and _IDENTIFIER.fullmatch(name)]
    param = error.get("param")
    if isinstance(param, str) and _IDENTIFIER.fullmatch(param):
        shown.append(f"parameter {param}")
    return ", ".join(dict.fromkeys(shown))


@dataclass(frozen=True)
class Failures:
    """The failures of one model. `who` names it and its server."""

    who: str

    def refused(self, status: int, body: Any, headers: Mapping[str, str]) -> ModelError:
        """An answer whose status is no success."""
        error = _error_of(body)
        named = _named(error)
        return self._classified(status, error, f"{status}{f' {named}' if named else ''}", retry_after(headers))

    def within(self, error: Any) -> ModelError:
        """An error that the server sent in place of more of the reply."""
        found = _error_of(error) if isinstance(error, Mapping) else {"message": str(error)}
        code, says, named = str(found.get("code")), _says(found).lower(), _named(found)
        shown = f"error in the stream{f': {named}' if named else ''}"
        if code.isdecimal() and int(code) in range(400, 600):
            return self._classified(int(code), found, f"{shown} {code}", None)
        if "rate_limit" in says:
            return self._classified(429, found, shown, None)
        if "invalid_request" in says or "badrequest" in says:
            return self._classified(400, found, shown, None)
        if _OVERFLOW.search(says) or _FILTERED.search(says):
            return self._classified(400, found, shown, None)
        if "server_error" in says or "overloaded" in says or "unavailable" in says:
            return self._classified(503, found, shown, None)
        return ModelError(f"{self.who}: {shown}", code="model_failed", retryable=True)

    def _classified(self, status: int, error: Mapping[str, Any], shown: str, wait: float | None) -> ModelError:
        said, who = _says(error), self.who
        if status in (401, 403):
            return ModelError(f"{who} refuses the API key ({shown})", code="auth_failed")
        if status == 429:
            if _QUOTA.search(_says(error, "code", "type")):
                return ModelError(f"{who}: the quota is used up ({shown})", code="rate_limited")
            if wait is not None and wait > LONGEST_WAIT_S:
                return ModelError(f"{who} is rate limited for another {wait:.0f} s ({shown})", code="rate_limited")
            return ModelError(f"{who} is rate limited ({shown})", code="rate_limited", retryable=True, retry_after=wait)
        if status == 413 or _OVERFLOW.search(said):
            return ModelError(f"{who}: the conversation is too long for it ({shown})", code="context_overflow")
        if _FILTERED.search(said):
            return ModelError(f"{who} withholds this for its contents ({shown})", code="content_filter")
        if status >= 500 or status in _TRANSIENT:
            wait = wait if wait is not None and wait <= LONGEST_WAIT_S else None
            return ModelError(
                f"{who} is unavailable ({shown})", code="model_unavailable", retryable=True, retry_after=wait
            )
        return ModelError(f"{who} refuses the request ({shown})", code="bad_request")

    def no_key(self, how: str) -> ModelError:
        """No key was found to call the server with."""
        return ModelError(f"{self.who} needs an API key: {how}", code="auth_failed")

    def wrong(self, said: str) -> ModelError:
        """The vendor's library refuses the request before it is sent."""
        return ModelError(f"{self.who}: {said}", code="bad_request")

    def unavailable(self) -> ModelError:
        """The server could not be reached, or gave up."""
        return ModelError(f"{self.who} is unavailable", code="model_unavailable", retryable=True)

    def silent(self, limit: float | None) -> ModelError:
        """Nothing came for as long as the timeout."""
        waited = "too long" if limit is None else f"{limit:g} s"
        return ModelError(f"{self.who} sent nothing for {waited}", code="model_timeout", retryable=True)

    def cut(self) -> ModelError:
        """The reply ended before its end."""
        return ModelError(f"{self.who}: the reply was cut off", code="stream_cut", retryable=True)

    def filtered(self) -> ModelError:
        """The rest of the reply is withheld."""
        return ModelError(f"{self.who} withheld its reply for its contents", code="content_filter")

    def no_stream(self, media_type: str) -> ModelError:
        """The answer is no stream of events."""
        shown = media_type.partition(";")[0].strip()
        of_type = shown if re.fullmatch(r"[\w.+-]{1,40}/[\w.+-]{1,40}", shown) else "something else"
        return ModelError(
            f"{self.who} answers with {of_type}, not with a stream of events: is base_url its chat-completions API?",
            code="model_failed",
        )
