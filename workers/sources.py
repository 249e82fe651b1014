"""Tool sources as an agent declares them: MCP servers, and connectors, which are servers that a person may sign in to.

Nothing here connects: `workers.source_pool` does, when a turn needs the tools.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import metadata
from os import PathLike, fspath
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from broker.protocol.errors import SdkError
from workers.inputs import input_parameters

TIMEOUT_S: Final = 30.0
"""Seconds in which a server must be connected and have told its tools, unless it is given others."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

FailureReason = Literal[
    "credential_rejected", "credential_unavailable", "unreachable", "timeout", "invalid_catalog", "request_failed"
]


class SourceError(Exception):
    """A source cannot be used now. The message says why and holds nothing that the server or a credential said.

    `unsent`: the request reached no server that took it, so that it may be sent again.
    """

    def __init__(self, message: str, reason: FailureReason | None = None, *, unsent: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.unsent = unsent


@dataclass(frozen=True)
class Endpoint:
    """What a connection is made to, with the credentials it is made with: equal ones may share it. Never shown whole."""

    url: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    command: str | None = field(default=None, repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    cwd: str | None = field(default=None, repr=False)
    timeout: float = TIMEOUT_S


@dataclass(frozen=True)
class ConnectorContext:
    """For whom a connector's credentials are asked: the session's turn, and the source."""

    session_id: str
    turn_id: str
    agent_name: str
    source_id: str = ""


Credentials = str | Mapping[str, str] | None
"""A bearer token, or headers; None when a person must sign in first."""


class MCPServer:
    """An MCP server: over HTTP at `url`, or a program that the worker starts and talks to over its stdin and stdout.

    Its tools have the ids `mcp.<name>.<tool>`. `headers` go with each HTTP request; `args`, `env` (added to the few variables
    that a server inherits) and `cwd` are the program's, whose stderr is the worker's. `tools`: globs of the tools to take, by
    their own names; None is all. `timeout`: seconds to connect and to tell its tools; `call_timeout`: seconds of one call, None
    is the deployment's `tool_timeout`. Sessions share a connection. Raises `TypeError` and `ValueError` naming the argument.
    """

    namespace = "mcp"

    def __init__(  # noqa: PLR0913 - each is a setting of a server
        self,
        name: str,
        *,
        url: str | None = None,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        headers: Mapping[str, str] | None = None,
        title: str | None = None,
        timeout: float = TIMEOUT_S,
        call_timeout: float | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        _set_common(self, name, title, timeout, call_timeout, tools)
        if (url is None) == (command is None):
            raise ValueError(f"MCPServer {name!r}: give url or command, and not both")
        if url is not None:
            _check_url(self, "url", url)
            if args or env is not None or cwd is not None:
                raise ValueError(f"MCPServer {name!r}: args, env and cwd are for a command, not for a url")
        elif not isinstance(command, str) or not command:
            raise TypeError(f"MCPServer {name!r}: command must be a program's name, not {command!r}")
        if command is not None and headers is not None:
            raise ValueError(f"MCPServer {name!r}: headers are for a url, not for a command")
        self.endpoint = Endpoint(
            url=url,
            headers=checked_headers(f"MCPServer {name!r}: headers", headers or {}),
            command=command,
            args=_texts(self, "args", args),
            env=_env(self, env or {}),
            cwd=None if cwd is None else fspath(cwd),
            timeout=self.timeout,
        )

    id: str
    name: str
    title: str
    timeout: float
    call_timeout: float | None
    tools: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"<MCP server {self.id}>"


class Connector:
    """An MCP server over HTTP that wants a user's own credentials, and may need that user to sign in.

    Its tools have the ids `connectors.<name>.<tool>`. `credentials(ctx)`, sync or async, is asked when a turn connects: it
    returns a bearer token or headers, or None when the person must sign in at `sign_in_url` first; then the turn asks for it
    (`OpenSignIn`) and goes on when that is answered. It may take session inputs, as a tool may. The other arguments are those of
    `MCPServer`. Raises `TypeError` and `ValueError` naming the argument.
    """

    namespace = "connectors"

    def __init__(
        self,
        name: str,
        *,
        url: str,
        sign_in_url: str,
        credentials: Callable[..., Credentials | Awaitable[Credentials]],
        title: str | None = None,
        timeout: float = TIMEOUT_S,
        call_timeout: float | None = None,
        tools: Sequence[str] | None = None,
    ) -> None:
        _set_common(self, name, title, timeout, call_timeout, tools)
        _check_url(self, "url", url)
        _check_url(self, "sign_in_url", sign_in_url)
        if not callable(credentials):
            raise TypeError(
                f"Connector {name!r}: credentials must be a function of a context, not {type(credentials).__name__}"
            )
        self.url = url
        self.sign_in_url = sign_in_url
        self.credentials = credentials
        self.inputs = input_parameters(credentials)

    id: str
    name: str
    title: str
    timeout: float
    call_timeout: float | None
    tools: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"<connector {self.id}>"

    def endpoint_for(self, credentials: object) -> Endpoint:
        """Return what to connect to with these credentials. Raises `SourceError` for what are none."""
        if isinstance(credentials, str) and credentials:
            credentials = {"Authorization": f"Bearer {credentials}"}
        try:
            headers = checked_headers("its headers", credentials)
        except (TypeError, ValueError) as bad:
            raise SourceError(
                f"what its credentials function returned is none: {bad}", "credential_unavailable"
            ) from None
        return Endpoint(url=self.url, headers=headers, timeout=self.timeout)


Source = MCPServer | Connector


def takes(source: Source, tool: str) -> bool:
    """Whether a source's globs take a tool of this name."""
    return source.tools is None or any(fnmatchcase(tool, glob) for glob in source.tools)


def as_sources(mcps: object, connectors: object) -> tuple[Source, ...]:
    """Return an agent's sources, checked. Raises `TypeError`, `ValueError`, and `SdkError` when the MCP client is missing."""
    found: list[Source] = []
    for argument, given, kind in (("mcps", mcps, MCPServer), ("connectors", connectors, Connector)):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise TypeError(f"{argument} must be a sequence of {kind.__name__}, not {type(given).__name__}")
        for at, source in enumerate(given):
            if not isinstance(source, kind):
                raise TypeError(f"{argument}[{at}] must be a {kind.__name__}, not {type(source).__name__}")
            if any(source.id == other.id for other in found):
                raise ValueError(f"{argument}: two of them have the name {source.name!r}; their tools would share ids")
            found.append(source)
    if found:
        _check_extra()
    return tuple(found)


def _check_extra() -> None:
    try:
        version = metadata.version("mcp")
    except metadata.PackageNotFoundError:
        said = "is not installed"
    else:
        if int(version.partition(".")[0]) >= 2:
            return
        said = f"is installed in version {version}, which is too old"
    raise SdkError(f"tool sources need the MCP client, which {said}: pip install 'turnstream[mcp]'")


def _set_common(
    source: Any,
    name: object,
    title: object,
    timeout: object,
    call_timeout: object,
    tools: object,
) -> None:
    kind = type(source).__name__
    if not isinstance(name, str):
        raise TypeError(f"{kind}: name must be a text, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{kind}: name must be 1 to 64 of the characters A-Z a-z 0-9 _ -, not {name!r}")
    if title is not None and not isinstance(title, str):
        raise TypeError(f"{kind} {name!r}: title must be a text or None, not {type(title).__name__}")
    source.name = name
    source.id = f"{source.namespace}:{name}"
    source.title = title or name
    source.timeout = _seconds(source, "timeout", timeout)
    source.call_timeout = None if call_timeout is None else _seconds(source, "call_timeout", call_timeout)
    source.tools = None if tools is None else _texts(source, "tools", tools)


def _named(source: Any) -> str:
    return f"{type(source).__name__} {source.name!r}"


def _seconds(source: Any, argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{_named(source)}: {argument} must be a number of seconds, not {type(value).__name__}")
    if not 0 < value < math.inf:
        raise ValueError(f"{_named(source)}: {argument} must be more than 0 seconds, not {value}")
    return float(value)


def _texts(source: Any, argument: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{_named(source)}: {argument} must be a sequence of texts, not {type(value).__name__}")
    texts = tuple(value)
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{_named(source)}: {argument}[{at}] must be a text, not {type(text).__name__}")
    return texts


def _env(source: Any, env: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(env, Mapping):
        raise TypeError(f"{_named(source)}: env must be a mapping of names to texts, not {type(env).__name__}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"{_named(source)}: env holds texts by name; {name!r} is {type(value).__name__}")
    return tuple(sorted(env.items()))


def _check_url(source: Any, argument: str, url: object) -> None:
    """Check an address, without showing it: it may hold a secret."""
    if not isinstance(url, str):
        raise TypeError(f"{_named(source)}: {argument} must be a text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        good = False
    if not good:
        raise ValueError(f"{_named(source)}: {argument} must be an address that starts with http:// or https://")


def checked_headers(place: str, headers: object) -> tuple[tuple[str, str], ...]:
    """Return headers in order of their names. Raises `TypeError`, `ValueError` naming one, never with its value."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"{place} must be a mapping of names to texts, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise ValueError(f"{place}: {name!r} is no header's name")
        if not isinstance(value, str):
            raise TypeError(f"{place}: {name} must be a text, not {type(value).__name__}")
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"{place}: {name} holds characters that no header may have")
    return tuple(sorted(headers.items()))
