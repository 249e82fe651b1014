"""Connectors in a turn: whose credentials their servers get, and what becomes of a turn without any."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar

import holders
import pytest
from sourcing import Vault, connector, ids, notices, told, use
from tool_servers import Case
from turns import Gate, Stage, Steps, staged, working

from broker import transitions
from broker.broker import Broker
from broker.keys import new_session_id
from broker.protocol.values import dumps
from workers.agent import AgentDefinition
from workers.inputs import Depends, SessionInput
from workers.sources import Connector, ConnectorContext


async def test_a_connector_takes_the_credentials_of_its_session(broker: Broker, case: Case) -> None:
    case.say(token="t0p-s3cret")  # noqa: S106 - of a test
    vault = Vault("t0p-s3cret")
    model = Steps([use("connectors.notion.add", a=1, b=2)])
    async with staged(broker, model, connectors=[connector(case, vault.credentials)]) as stage:
        await stage.send()
        await stage.ended()

        assert (await stage.results())["c1"] == '{"sum": 3}'
        assert vault.asked == [
            ConnectorContext(stage.session_id, stage.turn, agent_name="agent", source_id="connectors:notion")
        ]
        assert b"t0p-s3cret" not in dumps(await stage.records())


class User(SessionInput):
    """Who uses the session."""

    input_id: ClassVar[str] = "user"
    name: str


async def test_a_connector_s_function_may_be_sync_return_headers_and_take_session_inputs(
    embedded_broker: Broker, case: Case
) -> None:
    def credentials(_ctx: ConnectorContext, user: Annotated[User, Depends()]) -> dict[str, str]:
        return {"Authorization": f"Basic {user.name}"}

    model = Steps([use("connectors.notion.whoami")])
    definition = AgentDefinition(model=model, name="agent", connectors=[connector(case, credentials)])
    async with working(embedded_broker, definition) as worker:
        for inputs, reads in ((b'{"user": {"name": "ann"}}', "Basic ann"), (b"", "There is no tool")):
            session_id = await opened_with(embedded_broker, inputs)
            stage = Stage(embedded_broker, worker, session_id)
            await stage.send()
            await stage.ended()
            assert (await stage.results())["c1"].startswith(reads)
        (notice,) = notices(await stage.records())
        assert notice["details"]["reason"] == "credential_unavailable"
        assert "session input 'user' was not given" in notice["message"]


async def opened_with(broker: Broker, inputs: bytes) -> str:
    session_id = new_session_id(1)
    options = transitions.SessionOptions(agent="agent", queue="agent", digest="-", inputs=inputs)
    await transitions.open_session(broker, session_id, options)
    return session_id


async def test_sessions_with_their_own_credentials_never_share_a_connection(broker: Broker, case: Case) -> None:
    vault = Vault("ann", "bob", "bob")
    model = Steps([use("connectors.notion.whoami")])
    definition = AgentDefinition(model=model, name="agent", connectors=[connector(case, vault.credentials)])
    async with working(broker, definition) as worker:
        seen = []
        for _ in range(2):
            stage = Stage(broker, worker, await holders.open_session(broker))
            await stage.send()
            await stage.ended()
            seen.append((await stage.results())["c1"])
        assert seen == ["Bearer ann", "Bearer bob"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LookupError("t0p-s3cret"), "its credentials function failed with LookupError"),
        (asyncio.CancelledError(), "its credentials function failed with CancelledError"),
        (7, "what its credentials function returned is none: its headers must be a mapping of names to texts, not int"),
        ("", "what its credentials function returned is none: its headers must be a mapping"),
        (
            {"Authorization": 7},
            "what its credentials function returned is none: its headers: Authorization must be a text",
        ),
        ("t0p-s3cret\n", "its headers: Authorization holds characters that no header may have"),
    ],
    ids=["raises", "is cancelled", "a number", "nothing", "no text", "a line"],
)
async def test_credentials_that_cannot_be_had(embedded_broker: Broker, case: Case, given: Any, said: str) -> None:
    model = Steps()
    async with staged(embedded_broker, model, connectors=[connector(case, Vault(given).credentials)]) as stage:
        await stage.send()
        assert (await stage.ended())["text"] == "done"

        (notice,) = notices(await stage.records())
        assert notice["details"] == {
            "source_id": "connectors:notion", "connector": "notion", "status": "unavailable",
            "reason": "credential_unavailable",
        }  # fmt: skip
        assert said in notice["message"]
        assert "t0p-s3cret" not in repr(await stage.records())
        assert case.log == []


async def test_credentials_that_do_not_come_in_time(embedded_broker: Broker, case: Case) -> None:
    async def never(_ctx: ConnectorContext) -> str:
        await asyncio.sleep(60)
        return ""

    slow = Connector("slow", url=case.url, sign_in_url="https://a.example", credentials=never, timeout=0.1)
    async with staged(embedded_broker, Steps(), connectors=[slow]) as stage:
        await stage.send()
        await stage.ended()
        assert [notice["details"]["reason"] for notice in notices(await stage.records())] == ["credential_unavailable"]


async def test_credentials_that_a_server_refuses_and_then_takes(broker: Broker, case: Case) -> None:
    case.say(token="new")  # noqa: S106 - of a test
    vault = Vault("old", "new", "new")
    model = Steps()
    async with staged(broker, model, connectors=[connector(case, vault.credentials)]) as stage:
        await stage.send()
        await stage.ended()
        assert [notice["details"]["reason"] for notice in notices(await stage.records())] == ["credential_rejected"]

        await stage.send()
        await stage.ended()
        assert len(told(await stage.records())) == 2
        assert "connectors.notion.add" in ids(model.requests[-1])


async def test_credentials_that_are_refused_in_the_middle_of_a_turn(broker: Broker, case: Case) -> None:
    case.say(refuse={"tools/call": 401})
    vault = Vault("token")
    model = Steps([use("connectors.notion.add", a=1, b=2)])
    async with staged(broker, model, connectors=[connector(case, vault.credentials)]) as stage:
        await stage.send()
        await stage.ended()

        refused = "connectors.notion.add failed: the server refused the credentials (HTTP 401)."
        assert await stage.results() == {"c1": refused}
        assert [notice["details"]["reason"] for notice in notices(await stage.records())] == ["credential_rejected"]
        assert ids(model.requests[1]) == set()
        case.say()
        await stage.send()
        await stage.ended()
        assert "connectors.notion.add" in ids(model.requests[-1])


async def test_credentials_that_were_renewed_meanwhile_are_taken_for_the_call(broker: Broker, case: Case) -> None:
    case.say(token="old")  # noqa: S106 - of a test
    gate = Gate()
    model = Steps([gate, use("connectors.notion.whoami"), use("connectors.notion.whoami", "c2")])
    async with staged(broker, model, connectors=[connector(case, Vault("old", "new").credentials)]) as stage:
        await stage.send()
        await gate.reached.wait()
        case.say(token="new")  # noqa: S106 - of a test
        gate.open.set()
        await stage.ended()

        assert await stage.results() == {"c1": "Bearer new", "c2": "Bearer new"}
        assert notices(await stage.records()) == []
        assert case.log.count("call whoami") == 2
