"""Nothing lives for ever: every key of the code is on a list, and goes as the list says."""

from __future__ import annotations

import re
from pathlib import Path

import holders
import pytest
from holders import (
    Holder,
    answer,
    ask,
    begin,
    called,
    command,
    hold,
    message,
    writing,
)
from leaks import FATES, KEPT, PERMANENT, keys_of, kind_of, leaked_keys
from limits import (
    WEEK,
    limits_fixture,  # noqa: F401 - pytest finds the fixture `limits` here
    look,
)
from test_spawn import child_of, end_of, finish, spawn

from broker import contents, queue, transitions
from broker.broker import Broker
from broker.contents import Message
from broker.deadlines import expire
from broker.keys import new_session_id
from broker.transitions import Draft, SessionOptions

ROOT = Path(__file__).parents[2]
CHANNELS = {"live", "control"}
NAMES = {
    "lua": r"base \.\. '([a-z]+)|(?:queue|KEYS\[1\]) \.\. '(:[a-z]+)|'(arq:[a-z]+)|base, '([a-z]+)",
    "py": r"keys\.of\(\s*\"([a-z]+)|\.base\(\w+\)(?:\}| \+ \")([a-z]+)|\{key\}(:[a-z]+)",
}
"""How the code names keys, by language; what begins with a colon is a queue's."""


def named() -> set[str]:
    """The kinds of all keys that the code names."""
    found = set()
    for language, pattern in NAMES.items():
        for path in (
            path for layer in ("broker", "workers", "api_shim") for path in (ROOT / layer).rglob(f"*.{language}")
        ):
            for groups in re.findall(pattern, path.read_text(encoding="utf-8")):
                name = next(filter(None, groups))
                found.add(f"queue{name}" if name.startswith(":") else name)
    return found - CHANNELS


def test_the_list_holds_every_key_that_the_code_names() -> None:
    assert named() == FATES.keys() - {"draft"}  # which is a log, and blobs, of another name


class Watch:
    """What kinds of keys there were; at no time one that would live for ever."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.kinds: set[str] = set()

    async def look(self) -> None:
        keys = await keys_of(self.broker.client, self.broker.settings.prefix)
        self.kinds |= {kind_of(key) for key in keys}
        assert await leaked_keys(self.broker.client, self.broker.settings.prefix) == []

    async def lasting(self) -> set[str]:
        """The kinds of the keys without a TTL."""
        keys = await keys_of(self.broker.client, self.broker.settings.prefix)
        return {kind_of(key) for key in keys if await self.broker.client.pttl(key) == -1}


async def let_expire(broker: Broker) -> None:
    """Let the time of every key that has a TTL be over: the clock that tests set is not the one that expires keys."""
    for key in await keys_of(broker.client, broker.settings.prefix):
        if await broker.client.pttl(key) > 0:
            await broker.client.delete(key)


def large(text: str) -> Message:
    """A message with a body that is stored apart."""
    return Message(tails=[(contents.Blob("b", message(text)), b'"type":"entryCompleted","blob":"b"}')], digest="d")


async def lived(broker: Broker, watch: Watch) -> tuple[str, Holder]:
    """A session whose turn did all that a turn can do, up to where it is to end; its subagent is done."""
    session_id = new_session_id(1)
    options = SessionOptions(agent="agent", queue="agent", digest="-")
    draft = await transitions.stage(broker, session_id, Draft("d", 0), large("before").tails, ttl=60)
    await watch.look()
    await transitions.open_session(broker, session_id, options, draft)
    await transitions.start(broker, session_id, large("hello"), key="k", join=False)
    await watch.look()
    parent = await hold(broker)
    key = broker.keys.queue(0, "agent")
    await queue.renew(broker, key, [parent.job.id], worker="w1", agent="agent", slots=1, version="1", budget=5)
    await parent.append(*writing("message", "said", "one"), "e", message("one", entry_id="said"), "c", "said")
    assert await holders.keys_of(broker, "text") == []
    await parent.append(*writing("message", "m", "one"), *called("c"), *called("d"), *ask("q", call="d"))
    await watch.look()
    child = child_of()
    await spawn(parent, child)
    await watch.look()
    await parent.park()
    below = broker.keys.of("session", child.session_id)
    await command(broker, "HSET", below, "attempts", broker.settings.max_attempts - 1)
    held = await hold(broker, worker="w2")  # on its last attempt
    await held.append(*ask("below"))
    await watch.look()
    await answer(broker, child.session_id, "below")
    await answer(broker, session_id, "q")
    assert await finish(held, end_of(child))
    await watch.look()
    return session_id, await hold(broker)


@pytest.mark.parametrize("how", ["finished", "interrupted", "cancelled", "worker_lost"])
async def test_every_key_goes_as_the_list_says(limits: Broker, how: str) -> None:
    watch = Watch(limits)
    await limits.check()
    session_id, holder = await lived(limits, watch)
    await expire(limits, 0)
    if how == "finished":
        await holder.finish()
    elif how == "interrupted":
        await transitions.interrupt(limits, session_id, holder.turn)
    elif how == "worker_lost":
        key, most = limits.keys.of("session", session_id), limits.settings.max_attempts
        await command(limits, "HSET", key, "attempts", most, "fence", "")
        assert await begin(limits, holder.job, fence="w2:1") == "dead"
    else:
        await transitions.cancel(limits, session_id)
    await watch.look()
    fates = {FATES[kind] for kind in await watch.lasting()}
    assert fates == ({PERMANENT} if how == "cancelled" else {PERMANENT, KEPT})

    await look(limits, WEEK + 1)
    await watch.look()
    assert await watch.lasting() <= {"sessions", "deadlines", "dead", "clock"}
    await let_expire(limits)
    await look(limits, 3 * WEEK)
    assert await watch.lasting() <= {"clock"}

    unseen = {"check"} if limits.embedded else set()
    assert FATES.keys() - watch.kinds == unseen | ({"dead"} if how != "worker_lost" else set())
