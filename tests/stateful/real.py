"""The real side of the state machine: the model's words as commands to a broker, and its log in the model's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import holders
from leaks import keys_of
from verbs import Effect, Stamp, Words

from broker.broker import Broker
from broker.protocol.values import dumps, loads
from broker.protocol.wire import entry_tail, resolved_tail, tail
from broker.scripting import Argument
from broker.transitions import ms_of, words_of

_EVENT_ID: Final = re.compile(r"(\d+)-\d+")
_MESSAGE: Final = {"type": "message", "role": "assistant"}


def _written(entry_id: str, text: str) -> dict[str, Any]:
    return {**_MESSAGE, "id": entry_id, "content": [{"type": "text", "text": text}]}


def _result(call: str, text: str) -> bytes:
    return entry_tail("entryCompleted", holders.result(call, text, entry_id=f"{call}.result"))


def values_of(effect: Effect) -> list[Argument]:  # noqa: PLR0911 - one for each kind
    """An effect as `broker/scripts/include/effects.lua` takes it."""
    name, text = effect.name, effect.text
    before, _, after = entry_tail("entryCompleted", _written(name, "@")).partition(b"@")
    match effect.kind:
        case "ask":
            return holders.ask(name)
        case "more":
            return holders.more(name, text)
        case "open":
            return ["e", entry_tail("entryAdded", _written(name, text)), "w", name, "message", before, after, text]
        case "afresh":
            return ["w", name, "message", before, after, text]
        case "complete":
            done = entry_tail("entryCompleted", _written(name, text))
            return ["e", done, "c", name, "l", dumps(text)]
        case "call":
            entry = {"type": "toolCall", "id": name, "toolCallId": name, "name": "client.t", "arguments": {}}
            added: list[Argument] = [
                "e",
                tail({"type": "entryAdded", "beside": True}),
                "e",
                entry_tail("entryCompleted", entry),
            ]
            return [*added, "o", f"call:{name}", _result(name, "not started")]
        case "tool":
            empty = {**holders.result(name, "", entry_id=f"{name}.result"), "content": []}
            event = entry_tail("entryAdded", empty)
            return ["e", event, "c", f"call:{name}", "o", f"{name}.result", _result(name, "cut")]
        case "result":
            return ["e", _result(name, text), "c", f"{name}.result"]
        case _:
            return ["e", holders.notice("on")]


def label(record: dict[str, Any]) -> str:
    """What a stored record says, in the model's words."""
    kind, turn = record["type"], record.get("turnId")
    said: dict[str, Callable[[], str]] = {
        "entryAdded": lambda: "added",
        "entryCompleted": lambda: f"completed {_entry(record['entry'])}",
        "turnStarted": lambda: f"started {turn}",
        "turnUpdated": lambda: f"turn {record['status']}",
        "turnEnded": lambda: f"ended {turn} {_end(record['state'])}",
        "callbackOpened": lambda: f"opened {record['callback']['id']}",
        "callbackResolved": lambda: f"resolved {record['callbackId']} {record['private']['outcome']}",
        "sessionUpdated": lambda: " ".join(
            ["session", record["status"], dumps(record["title"]).decode(), dumps(record["archived"]).decode()]
        ),
    }
    return said[kind]() if kind in said else str(kind)


def _entry(entry: dict[str, Any]) -> str:
    """An entry's name, and what stands in it if a worker wrote that."""
    text = "".join(block["text"] for block in entry.get("content", ()))
    return str(entry["id"]) if entry["type"] == "toolCall" or entry.get("role") == "user" else f"{entry['id']} {text}"


def _end(state: dict[str, Any]) -> str:
    if state["type"] == "completed":
        return "completed"
    return f"{state['type']}:{state.get('cause') or state['error']['code']} '{state['text']}'"


class Real:
    """Sends verbs to a broker. Positions become the ids of its log, and back."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.ids: dict[str, list[str]] = {}
        """Of each session, the ids of its events that were read."""
        self.events: dict[int, str] = {}
        """The id of each event that ever was."""

    def job_id(self, job: str) -> str:
        """The model's job id as arq knows it."""
        return "{s0}" + self.broker.settings.prefix + job

    def job_of(self, job_id: str) -> str:
        """The same, back."""
        return job_id.removeprefix("{s0}" + self.broker.settings.prefix)

    async def _run(self, verb: str, key: str, rest: Sequence[Argument] = (), /, **arguments: Argument) -> Words:
        reply = words_of(await self.broker.run(verb, key, rest, budget=30, **arguments))
        return [match[1] if (match := _EVENT_ID.fullmatch(word)) else word for word in reply]

    async def _session(self, verb: str, sid: str, rest: Sequence[Argument] = (), /, **arguments: Argument) -> Words:
        return await self._run(verb, self.broker.keys.of("session", sid), rest, sid=sid, **arguments)

    async def open_session(self, sid: str, *, digest: str, once: bool) -> Words:
        settings = self.broker.settings
        empty = dict.fromkeys(("inputs", "customization", "preview", "note", "draft"), "")
        limits: dict[str, Argument] = {
            "retention": ms_of(settings.retention),
            "idle": ms_of(settings.idle_limit),
            "lifetime": ms_of(settings.session_lifetime),
        }
        told: dict[str, Argument] = {**empty, **limits, "digest": digest, "once": int(once), "events": 0, "protocol": 1}
        return await self._session("open_session", sid, agent="agent", queue="agent", title="null", **told)

    async def start(self, sid: str, *, nonce: str, key: str, digest: str, join: bool, turn: str, entry: str) -> Words:
        rest = [holders.message("hello", entry_id=entry)]
        told: dict[str, Argument] = {"nonce": nonce, "key": key, "digest": digest, "join": int(join), "turn": turn}
        return await self._session("start", sid, rest, **told, preview="")

    async def steer(self, sid: str, *, nonce: str, turn: str, entry: str) -> Words:
        return await self._session("steer", sid, [holders.message("more", entry_id=entry)], nonce=nonce, turn=turn)

    async def interrupt(self, sid: str, *, nonce: str, turn: str) -> Words:
        return await self._session("interrupt", sid, nonce=nonce, turn=turn)

    async def cancel(self, sid: str) -> Words:
        return await self._session("cancel", sid)

    async def retitle(self, sid: str, *, title: str, archived: str) -> Words:
        return await self._session("retitle", sid, title=title, archived=archived, note="")

    async def answer(self, sid: str, callback: str, *, nonce: str, call: str = "", result: str = "") -> Words:
        resolved = resolved_tail(callback, "answered", {"type": "allow", "scope": "once"})
        told: dict[str, Argument] = {"callback": callback, "nonce": nonce, "resolved": resolved}
        told |= {"call": call, "result": _result(call.removeprefix("call:"), result) if call else ""}
        words = await self._session("answer", sid, **told)
        return words[:2]

    async def retry(self, sid: str, *, dead: str, turn: str, entry: str) -> Words:
        return await self._session(
            "retry", sid, [holders.message("hello", entry_id=entry)], dead=dead, turn=turn, preview=""
        )

    async def claim(self, *, worker: str, nonce: str, slots: int) -> Words:
        lease = int(self.broker.settings.lease * 1000)
        told: dict[str, Argument] = {"worker": worker, "nonce": nonce, "slots": slots, "lease": lease}
        words = await self._run("claim", self.broker.keys.queue(0, "agent"), **told)
        return [self.job_of(job) for job in words[1::2]]

    async def begin(self, job: str, *, fence: str, worker: str, rung: bool, protocol: int = 1) -> Words:
        settings, (sid, turn, wake) = self.broker.settings, job.split(":")
        told: dict[str, Argument] = {"fence": fence, "worker": worker, "protocol": protocol, "after": "0-0", "page": 1}
        told |= {"turn": turn, "wake": int(wake), "max_attempts": settings.max_attempts}
        told |= {"lease": int(settings.lease * 1000) if rung else "", "progress": ms_of(settings.no_progress)}
        return (await self._session("begin", sid, job=self.job_id(job), **told))[:3]

    async def renew(self, *, worker: str, jobs: Sequence[str], serves: bool) -> Words:
        lease = int(self.broker.settings.lease * 1000)
        told: dict[str, Argument] = {
            "worker": worker,
            "agent": "agent",
            "lease": lease,
            "slots": int(serves),
            "version": "1",
        }
        rest = [self.job_id(job) for job in jobs]
        words = await self._run("renew", self.broker.keys.queue(0, "agent"), rest, **told)
        return [self.job_of(job) for job in words]

    async def release(self, sid: str, fence: str) -> Words:
        return await self._session("release", sid, fence=fence)

    def _stamp(self, stamp: Stamp) -> dict[str, Argument]:
        return {"fence": stamp.fence, "op": stamp.op, "seen": self.events.get(stamp.seen, "1-1")}

    async def append(self, stamp: Stamp, effects: Sequence[Effect]) -> Words:
        rest = [value for effect in effects for value in values_of(effect)]
        expires = ms_of(self.broker.settings.callback_timeout)
        return await self._session("append", stamp.session, rest, **self._stamp(stamp), expires=expires)

    async def park(self, stamp: Stamp) -> Words:
        return await self._session("park", stamp.session, **self._stamp(stamp))

    async def finish(self, stamp: Stamp, effects: Sequence[Effect] = (), *, regardless: bool = False) -> Words:
        rest = [value for effect in effects for value in values_of(effect)]
        told = self._stamp(stamp) | ({"seen": ""} if regardless else {})
        spawned = (await holders.fields(self.broker, stamp.session, "spawn_call"))[0]
        report = _result(spawned, "reported") if spawned else ""
        return await self._session(
            "finish", stamp.session, rest, **told, ended=holders.ENDED, report=report, blob="", body=""
        )

    async def spawn(self, stamp: Stamp, *, call: str, child: str, turn: str, entry: str, limit: int) -> Words:
        effects = values_of(Effect("tool", call))
        told: dict[str, Argument] = {**self._stamp(stamp), "child": child, "turn": turn, "agent": "sub", "path": "sub"}
        told |= {"customization": "", "entry": f"{call}.result", "call": call, "cut": _result(call, "cut")}
        told |= {"limit": limit, "preview": "", "effects": len(effects)}
        return await self._session("spawn", stamp.session, [*effects, holders.message("task", entry_id=entry)], **told)

    # What lies in the broker.

    async def back_up(self) -> dict[str, tuple[int, bytes]]:
        """Everything as it lies in the broker now."""
        client, found = self.broker.client, {}
        for key in await keys_of(client, self.broker.settings.prefix):
            if not key.endswith("}:clock") and (body := await client.dump(key)) is not None:
                found[key] = max(await client.pttl(key), 0), body
        return found

    async def restore(self, backup: dict[str, tuple[int, bytes]], ids: dict[str, list[str]]) -> None:
        """The broker is as it was."""
        client = self.broker.client
        for key in await keys_of(client, self.broker.settings.prefix):
            if not key.endswith("}:clock"):
                await client.delete(key)
        for key, (ttl, body) in backup.items():
            await client.restore(key, ttl, body)
        self.ids = {sid: list(each) for sid, each in ids.items()}

    async def new_events(self, sid: str) -> list[str]:
        """The labels of events that were not read before. Their positions are dense, and their times never go back."""
        ids = self.ids.setdefault(sid, [])
        after = f"({ids[-1]}" if ids else "-"
        labels, beside = [], False
        for stream_id, values in await holders.command(
            self.broker, "XRANGE", self.broker.keys.of("log", sid), after, "+"
        ):
            record = loads(values[b"e"])
            n, ms = map(int, stream_id.decode().split("-"))
            assert n == len(ids) + 1
            assert not ids or ms >= int(ids[-1].partition("-")[2])
            ids.append(stream_id.decode())
            assert not beside or record["type"] == "entryCompleted"
            beside = record.get("beside", False)
            labels.append(label(record))
        return labels
