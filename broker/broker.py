"""A broker: the connections of one process to one Redis, or to the embedded one.

Every timeout, keepalive and pool size is set here, never inherited from the client library, whose defaults change
between versions. Its own blind retries are off: what is sent again is decided by `Broker.run`, whose scripts are safe to repeat.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import redis.asyncio as aioredis
import redis.exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from broker import fault_points
from broker.embedded import EmbeddedServer
from broker.keys import Keys
from broker.outage import ride_out
from broker.pipeline import TRANSIENT, NotNowError, Pipeline, refusal
from broker.protocol.errors import BrokerUnavailableError, SdkError, SessionBusyError
from broker.scripting import Argument, load_script
from broker.settings import Settings

MINIMUM_VERSION: Final = (6, 2)
_NAMED_BY: Final = "TURNSTREAM_REDIS_URL, or --url"
_LOADING_S: Final = 0.2
_NO_PERMISSION: Final = re.compile("o permissions|The user executing the script can't|ACL failure in script")
"""What an access list's refusal says, of a command or inside a script, as versions word it."""


class Broker:
    """Connections to the broker of one deployment, for one event loop.

    `commands` carries transitions, `reads` catch-up reading of logs: a long replay never stands before a send. Pub/sub and
    blocking pops take connections of their own from `connection()`.
    """

    def __init__(self, settings: Settings, embedded: EmbeddedServer | None = None) -> None:
        self.settings = settings
        self.embedded = embedded
        self._pool = _pool(settings, embedded)
        self.database = int(self._pool.connection_kwargs.get("db") or 0)
        self.keys = Keys(settings.prefix, self.database)
        self.client: aioredis.Redis = aioredis.Redis(connection_pool=self._pool)
        self.suspicions = 0
        """How often a reply did not come in time: whoever has a connection of its own asks whether that one still answers."""
        self.commands, self.reads = (
            Pipeline(lambda: self.connection(timeout=None), settings.socket_timeout, self._suspect) for _ in range(2)
        )

    @property
    def _address(self) -> str:
        """Where it is, as people are told: never with the URL's user and password."""
        told = self._pool.connection_kwargs
        if isinstance(self._pool, SentinelConnectionPool):
            return f"the sentinels' primary {self._pool.service_name}"
        return str(told["path"]) if "path" in told else f"{told.get('host', 'localhost')}:{told.get('port', 6379)}"

    def connection(self, *, timeout: float | None) -> aioredis.Connection:
        """Return a connection of its own, not yet open, whose replies may take `timeout` seconds (None: for ever)."""
        options = {**self._pool.connection_kwargs, "socket_timeout": timeout}
        return cast("aioredis.Connection", self._pool.connection_class(**options))

    def _suspect(self) -> None:
        """One connection was half-open, so that its reply never came; then the others are likely to be, too."""
        self.suspicions += 1
        self.commands.distrust()
        self.reads.distrust()

    async def run(
        self,
        name: str,
        key_name: str,
        rest: Iterable[Argument] = (),
        until: float | None = None,
        /,
        *,
        budget: float | None = None,
        **arguments: Argument,
    ) -> list[Any]:
        """Run a verb and return its reply: words, as the script's contract gives them. Past `until` (monotonic) it is not sent.

        While the broker is away the call is repeated with back-off for `budget` seconds (default: the setting
        `command_budget`); every script is safe to repeat. Raises `BrokerUnavailableError` after that, and
        `SessionBusyError` when the broker is out of memory and refused the command whole, `SdkError` when its access list did.
        """
        script = load_script(name, self.database)
        values = script.values(arguments, rest)
        allowed = self.settings.command_budget if budget is None else budget

        async def attempt() -> list[Any]:
            reply: list[Any] = await self.commands.script(script, key_name, values, until)
            return reply

        if fault_points.armed:
            await fault_points.reach(f"{name}.before")
        try:
            reply = await ride_out(attempt, allowed, _unanswered(name, arguments))
        except redis_errors.ResponseError as refused:
            if _NO_PERMISSION.search(str(refused)):
                raise SdkError(
                    f"{name}: the broker's access list does not allow it to this user, and nothing was changed; let "
                    f"TURNSTREAM_REDIS_URL name a user that may, or load this version's deploy/users.acl"
                ) from refused
            # Redis 6.2 wraps it, so its type does not tell; of newer ones the client library cuts the code off.
            if "command not allowed when used memory" not in str(refused):
                raise
            raise SessionBusyError(
                f"{name}: the broker is out of memory and took nothing; free memory or raise maxmemory, then try again"
            ) from refused
        if fault_points.armed:
            await fault_points.reach(f"{name}.after")
        return reply

    async def read(
        self,
        *commands: tuple[Argument, ...],
        budget: float | None = None,
        said: str = "Reading: the broker did not answer",
    ) -> list[Any]:
        """Send read commands in one round trip, over the catch-up connection, and return their replies.

        While the broker is away they are repeated with back-off for `budget` seconds (default: the setting
        `command_budget`). Raises `BrokerUnavailableError` after that; `said` begins its sentence.
        """

        async def attempt() -> list[Any]:
            return await asyncio.gather(*(self.reads.command(*command) for command in commands))

        return await ride_out(attempt, self.settings.command_budget if budget is None else budget, said)

    async def is_cut_off(self) -> bool:
        """Whether the server is a replica whose primary is away: it answers, and hears of nothing that happens."""
        if self.embedded is not None:
            return False
        try:
            (told,) = await self.read(("INFO", "replication"))
        except redis_errors.ResponseError:
            return False  # an access list may hide it
        return b"role:slave" in told and b"master_link_status:down" in told

    async def check(self, *, writes: bool = True, patience: float | None = None) -> None:
        """Refuse a broker that would lose data: raises `BrokerUnavailableError` with one sentence that says what to change.

        Without `writes`, a user whose access list lets it only read (`deploy/users.acl`: observer) passes too. A server that
        still loads its data is waited for, `patience` seconds (default: the setting `command_budget`).
        """
        if self.embedded is not None:
            return
        clock = asyncio.get_running_loop().time
        until = clock() + (self.settings.command_budget if patience is None else patience)
        while await self._is_loading(writes):
            if clock() >= until:
                raise BrokerUnavailableError(
                    "The broker is still loading its data: wait until it has, its log says how far it is."
                )
            await asyncio.sleep(_LOADING_S)

    async def _is_loading(self, writes: bool) -> bool:
        """Whether the server is not to be judged yet. Raises `BrokerUnavailableError` as `check` does."""
        asked = self.client.client()  # has a connection of its own, which is of no further use
        try:
            await self._check(asked, writes)
        except redis_errors.AuthenticationError as refused:
            raise BrokerUnavailableError(
                f"The broker at {self._address} refuses the user and password of its URL: correct {_NAMED_BY}."
            ) from refused
        except redis_errors.BusyLoadingError:
            return True
        except TRANSIENT as away:
            raise BrokerUnavailableError(
                f"The broker at {self._address} cannot be reached ({type(away).__name__}): start it, or correct {_NAMED_BY}."
            ) from away
        except redis_errors.ResponseError as refused:  # such as a database that it does not have
            told = refusal(refused)
            way = "wait until it takes commands" if isinstance(told, NotNowError) else f"correct {_NAMED_BY}"
            raise BrokerUnavailableError(
                f"The broker at {self._address} refuses ({str(refused)[:120]}): {way}."
            ) from told
        finally:
            if asked.connection is not None:
                await asked.connection.disconnect(nowait=True)
            await asked.aclose()
        return False

    async def _check(self, asked: aioredis.Redis, writes: bool) -> None:
        try:
            server = await asked.info("server")
            replication = await asked.info("replication")
        except redis_errors.NoPermissionError:
            return  # an access list may hide INFO; the first command will say what is wrong
        version = tuple(int(part) for part in str(server["redis_version"]).split(".")[:2])
        if version < MINIMUM_VERSION:
            raise BrokerUnavailableError(
                f"The broker is Redis {server['redis_version']}; Turnstream needs 6.2 or newer: upgrade the server."
            )
        if replication.get("role") != "master":
            raise BrokerUnavailableError(
                "The broker is a read-only replica: let TURNSTREAM_REDIS_URL name the primary, or use redis+sentinel://."
            )
        await self._check_writable(asked, writes)
        policy = await self._eviction_policy(asked)
        if policy not in (None, "noeviction"):
            raise BrokerUnavailableError(
                f"The broker evicts keys when it is full (maxmemory-policy {policy}), which would delete sessions: "
                f"set maxmemory-policy to noeviction."
            )

    async def _check_writable(self, asked: aioredis.Redis, writes: bool) -> None:
        try:
            await asked.set(f"{self.keys.base(0)}check", "1", px=1000)
        except redis_errors.OutOfMemoryError:
            return  # full: new work is refused with its own error, and running work goes on
        except redis_errors.ResponseError as refused:
            if not writes and isinstance(refused, redis_errors.NoPermissionError):
                return  # an observer: reading is all it may do
            raise BrokerUnavailableError(
                f"The broker refuses writes ({str(refused)[:120]}): give this user write access, or mend the server."
            ) from refused

    async def _eviction_policy(self, asked: aioredis.Redis) -> str | None:
        """INFO memory names the policy where CONFIG GET is not allowed, as on managed servers."""
        memory = await asked.info("memory")
        policy = memory.get("maxmemory_policy")
        return str(policy) if policy is not None else None

    async def close(self) -> None:
        """Close every connection. What was issued and not answered is cancelled."""
        await self.commands.close()
        await self.reads.close()
        await self.client.aclose()
        await self._pool.disconnect()
        if self.embedded is not None:
            await self.embedded.end_blocked()
        for sentinel in getattr(getattr(self._pool, "sentinel_manager", None), "sentinels", ()):
            await sentinel.aclose()


def is_away(error: BrokerUnavailableError) -> bool:
    """Whether what `Broker.check` raised says that nobody answers there, and not that the one who does is unfit."""
    cause = error.__cause__
    return isinstance(cause, TRANSIENT) and not isinstance(cause, redis_errors.AuthenticationError)


def _unanswered(name: str, arguments: Mapping[str, Argument]) -> str:
    """Begin the sentence that says of a command that the broker did not answer it."""
    session = arguments.get("sid")
    if session is None:
        return f"{name}: the broker did not answer"
    turn = f", turn {arguments['turn']!s}" if "turn" in arguments and name != "start" else ""
    return f"{name}, session {session!s}{turn}: the broker did not answer"


def _options(settings: Settings) -> dict[str, Any]:
    return {
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": settings.socket_timeout,
        "socket_connect_timeout": settings.connect_timeout,
        "socket_keepalive": True,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
    }


def _pool(settings: Settings, embedded: EmbeddedServer | None) -> aioredis.ConnectionPool:
    if embedded is not None:
        return embedded.pool()
    if settings.redis_url is None:
        raise BrokerUnavailableError(
            "No broker is named: set TURNSTREAM_REDIS_URL, for example redis://127.0.0.1:6379/0."
        )
    try:
        return _pool_at(settings.redis_url, settings)
    except ValueError:  # whose text may hold a part of the password
        raise BrokerUnavailableError(
            f"The broker's URL ({_NAMED_BY}) is not usable: write it as redis://[user:password@]host[:port][/database] "
            "(or rediss, unix, redis+sentinel), its password percent-encoded: / as %2F, # as %23, [ as %5B."
        ) from None


def _pool_at(url: str, settings: Settings) -> aioredis.ConnectionPool:
    scheme = urlsplit(url).scheme
    if scheme == "redis+sentinel":
        return _sentinel_pool(settings)
    options = _options(settings)
    if scheme == "unix":
        options.pop("socket_keepalive")
    else:
        options["socket_keepalive_options"] = _keepalive()
    return aioredis.ConnectionPool.from_url(url, max_connections=settings.max_connections, **options)


def _keepalive() -> dict[int, int]:
    """Probe an idle connection after 15 s, each 5 s, three times: a half-open one is noticed within half a minute."""
    names = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    return {getattr(socket, name): value for name, value in names.items() if hasattr(socket, name)}


def _sentinel_pool(settings: Settings) -> aioredis.ConnectionPool:
    url = urlsplit(settings.redis_url or "")
    master = parse_qs(url.query).get("master", [""])[0]
    if not master:
        raise BrokerUnavailableError("TURNSTREAM_REDIS_URL names sentinels but no primary: add ?master=NAME.")
    credentials, _, hosts = url.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    nodes = []
    for host in hosts.split(","):
        name, _, port = host.rpartition(":")
        nodes.append((name or port, int(port) if name else 26379))
    options = {**_options(settings), "db": int(url.path.strip("/") or 0)}
    if password:
        options |= {"username": unquote(user) or None, "password": unquote(password)}
    timeouts = {"socket_timeout": settings.socket_timeout, "socket_connect_timeout": settings.connect_timeout}
    sentinel = Sentinel(nodes, sentinel_kwargs=timeouts, **options)  # type: ignore[no-untyped-call] # redis-py has no types here
    pool: aioredis.ConnectionPool = sentinel.master_for(master).connection_pool
    return pool
