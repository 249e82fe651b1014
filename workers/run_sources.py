"""The tool sources of one run: asked for before each model call, their tools called, their failures told once.

What has been told is in the log (`workers.source_state`), so another run of the turn does not tell or try it again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from broker.keys import new_id
from broker.protocol.callbacks import SignInRequest, sign_in_to_wire
from broker.protocol.values import clean_text
from workers.effects import Effects, Record
from workers.inputs import InputRejectedError, resolve_inputs
from workers.permissions import away_text
from workers.source_pool import SourcePool
from workers.source_state import SourceStates
from workers.source_tool import SourceTool, tools_of
from workers.sources import Connector, ConnectorContext, Endpoint, MCPServer, Source, SourceError
from workers.threads import Raised, Returned, in_thread
from workers.tools import ToolError

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

    from workers.source_connection import Connection

log = structlog.get_logger("turnstream.sources")


@dataclass(frozen=True)
class _Held:
    """A source that this run has connected, and the tools it takes of that list."""

    endpoint: Endpoint
    connection: Connection
    listing: tuple[Tool, ...]
    tools: tuple[SourceTool, ...]

    @property
    def fresh(self) -> bool:
        return not self.connection.ended and not self.connection.stale and self.listing is self.connection.listing


class RunSources:
    """A run's sources. Holds connections of the pool until `release`."""

    def __init__(
        self, sources: Iterable[Source], pool: SourcePool, context: ConnectorContext, inputs: Mapping[str, Any]
    ) -> None:
        self._sources = {source.id: source for source in sources}
        self._pool = pool
        self._context = context
        self._inputs = inputs
        self._held: dict[str, _Held] = {}
        self._failed: dict[str, SourceError] = {}
        self._told: set[str] = set()
        self._connecting = asyncio.Lock()

    def __bool__(self) -> bool:
        return bool(self._sources)

    @property
    def tools(self) -> tuple[SourceTool, ...]:
        """The tools of the sources that can be used, in the order in which the agent names those."""
        return tuple(tool for source_id in self._sources if (held := self._held.get(source_id)) for tool in held.tools)

    def release(self) -> None:
        """Give every connection back."""
        for source_id in list(self._held):
            self._let_go(source_id)

    def owner_of(self, tool_id: str) -> Source | None:
        """Return the source whose tool has this id, whether it can be used or not."""
        for source in self._sources.values():
            if tool_id.startswith(f"{source.namespace}.{source.name}."):
                return source
        return None

    # Making sure of them.

    async def ready(self, states: SourceStates) -> Effects:
        """Make sure of every source before a model call. Returns what to write: who went, who is back, or a question.

        Cheap when nothing has changed. When a person must be asked to sign in, that is all, and nothing is connected.
        """
        effects = Effects()
        missing = []
        for source in self._sources.values():
            if source.id in states.noticed:
                self._let_go(source.id)
            elif (held := self._held.get(source.id)) is None or not held.fresh:
                missing.append(source)
        if not missing:
            return effects
        endpoints = dict(zip(missing, await asyncio.gather(*map(self._endpoint, missing)), strict=True))
        unasked = [source for source, got in endpoints.items() if got is None and source.id not in states.asked]
        if unasked:
            effects.ask(_question(unasked))
            return effects
        await asyncio.gather(*(self._connect(source, got, states) for source, got in endpoints.items()))
        for source in missing:
            if source.id in states.down and source.id in self._held:
                _tell(effects, source, "up", f"The tools of {_shown(source)} can be used again.")
        self.report(effects, states)
        return effects

    async def reach(self, tool_ids: Iterable[str], states: SourceStates) -> Effects:
        """Connect the sources of these tools, whose calls another run decided on. Returns what to write."""
        owners = {source for tool_id in tool_ids if (source := self.owner_of(tool_id)) is not None}
        for source in owners:
            if source.id not in self._held and source.id not in states.noticed:
                await self._connect(source, await self._endpoint(source), states)
        effects = Effects()
        self.report(effects, states)
        return effects

    def report(self, effects: Effects, states: SourceStates) -> None:
        """Add what nobody was told yet of sources that failed: a notice, and a message to the model when it does not know."""
        failed, self._failed = self._failed, {}
        for source_id, error in failed.items():
            source = self._sources[source_id]
            self._let_go(source_id)
            if source_id in states.noticed or source_id in self._told:
                continue
            self._told.add(source_id)
            kind = "connector" if isinstance(source, Connector) else "server"
            details = {"source_id": source_id, kind: source.name, "status": "unavailable"}
            if error.reason is not None:
                details["reason"] = error.reason
            said = f"The tools of {_shown(source)} cannot be used: {error}."
            effects.notice(said, level="warning", source=source_id, details=details)
            if source_id not in states.down:
                _tell(effects, source, "down", f"The tools of {_shown(source)} cannot be used now.")
            log.warning(
                "source_unavailable",
                session=self._context.session_id,
                turn=self._context.turn_id,
                source=source_id,
                reason=error.reason,
            )

    async def _endpoint(self, source: Source) -> Endpoint | SourceError | None:
        """What to connect to; None when a person must sign in first."""
        held = self._held.get(source.id)
        if held is not None and not held.connection.ended:
            return held.endpoint
        if isinstance(source, MCPServer):
            return source.endpoint
        try:
            given = await credentials_of(source, replace(self._context, source_id=source.id), self._inputs)
            return None if given is None else source.endpoint_for(given)
        except SourceError as failed:
            return failed

    async def _connect(self, source: Source, endpoint: Endpoint | SourceError | None, states: SourceStates) -> None:
        """Have a source's tools, or note why not."""
        if endpoint is None:
            signed_in = source.id in states.connected
            said = "a person signed in, but there are no credentials" if signed_in else "nobody signed in"
            endpoint = SourceError(said, "credential_unavailable")
        if isinstance(endpoint, SourceError):
            self._failed[source.id] = endpoint
            return
        try:
            await self._hold(source, endpoint)
        except SourceError as failed:
            self._failed[source.id] = failed

    async def _hold(self, source: Source, endpoint: Endpoint) -> None:
        held = self._held.get(source.id)
        if held is None or held.connection.ended:
            self._let_go(source.id)
            connection = await self._pool.take(endpoint)
            self._held[source.id] = held = _Held(endpoint, connection, (), ())
        await held.connection.refresh()
        listing = held.connection.listing
        self._held[source.id] = replace(held, listing=listing, tools=tools_of(source, listing, self._call))

    def _let_go(self, source_id: str) -> None:
        if (held := self._held.pop(source_id, None)) is not None:
            self._pool.give_back(held.endpoint, held.connection)

    # Calls.

    async def _call(self, source: Source, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool; once more when nobody ran it: the server was started anew, or it wants newer credentials."""
        for last in (False, True):
            held = self._held.get(source.id)
            if held is None:
                break
            self._pool.keep(held.connection)  # it may be let go for another call's failure
            try:
                return await held.connection.call(name, arguments)
            except SourceError as failed:
                held.connection.broken = True
                error = failed
                if failed.unsent and not last:
                    try:
                        await self._reconnect(source, held, failed)
                    except SourceError as again:
                        error = again
                    else:
                        continue
                self._failed[source.id] = error
                raise ToolError(f"{source.namespace}.{source.name}.{name} failed: {error}.") from None
            except ToolError as failed:
                raise ToolError(f"{source.namespace}.{source.name}.{name} failed: {failed}") from None
            finally:
                self._pool.give_back(held.endpoint, held.connection)
        raise ToolError(away_text(f"{source.namespace}.{source.name}.{name}"))

    async def _reconnect(self, source: Source, lost: _Held, why: SourceError) -> None:
        """Connect anew, with the credentials of now. Raises `SourceError`."""
        async with self._connecting:
            held = self._held.get(source.id)
            if held is not None and held.connection is not lost.connection:
                return  # another call has
            self._let_go(source.id)
            endpoint = await self._endpoint(source)
            if endpoint is None:
                raise SourceError("nobody is signed in any more", "credential_unavailable")
            if isinstance(endpoint, SourceError):
                raise endpoint
            if endpoint == lost.endpoint and why.reason == "credential_rejected":
                raise why  # nor would they be taken now
            await self._hold(source, endpoint)


def _shown(source: Source) -> str:
    return source.id if source.title == source.name else f"{clean_text(source.title)} ({source.id})"


def _question(sources: Iterable[Source]) -> Record:
    requests = tuple(
        SignInRequest(source_id=source.id, title=clean_text(source.title), url=source.sign_in_url)
        for source in sources
        if isinstance(source, Connector)
    )
    return sign_in_to_wire(new_id(), requests, datetime.now(UTC))


def _tell(effects: Effects, source: Source, state: str, text: str) -> None:
    """Tell the model how a source stands."""
    entry: Record = {
        "type": "message",
        "id": new_id(),
        "role": "context",
        "content": [{"type": "text", "text": text}],
        "kind": "capability_source",
        "source": source.id,
    }
    effects.entry(entry, {"source": state})


async def credentials_of(connector: Connector, context: ConnectorContext, inputs: Mapping[str, Any]) -> object:
    """Return what a connector's function gives for a session. Raises `SourceError` when that raises, whatever it is."""
    current = asyncio.current_task()
    cancels = current.cancelling() if current is not None else 0
    try:
        async with asyncio.timeout(connector.timeout):
            ended = await _asked(connector, context, inputs)
            if isinstance(ended, Returned):
                return ended.value
            failed = ended.error
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and (current is None or current.cancelling() > cancels):
            raise
        failed = error
    said = (
        f"failed with {type(failed).__name__}"
        if not isinstance(failed, InputRejectedError)
        else f"has no input: {failed}"
    )
    raise SourceError(f"its credentials function {said}", "credential_unavailable")


async def _asked(connector: Connector, context: ConnectorContext, inputs: Mapping[str, Any]) -> Returned | Raised:
    bound = resolve_inputs(connector.inputs, inputs)
    ended = await in_thread(partial(connector.credentials, context, **bound), connector.id)
    if isinstance(ended, Returned) and inspect.isawaitable(ended.value):
        return Returned(await ended.value)
    return ended
