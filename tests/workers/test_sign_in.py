"""Connectors that a person must sign in to: one question for all of them, and the turn parks until it is answered."""

from __future__ import annotations

import asyncio
from typing import Any

from sourcing import Vault, connector, ids, notices, told, use
from tool_servers import Case
from turns import Stage, Steps, staged, working

from broker import transitions
from broker.broker import Broker
from broker.protocol.callbacks import SignInAnswer
from workers.agent import AgentDefinition

NOTION, GIT = "connectors:notion", "connectors:git"


def opened(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record["callback"] for record in records if record["type"] == "callbackOpened"]


async def asked(stage: Stage) -> str:
    """Wait until the turn has parked on a question, and return that."""
    (callback,) = await stage.callbacks()
    await stage.until("parked")
    return callback


async def test_one_question_asks_for_all_that_need_it_and_the_turn_parks_and_holds_nothing(
    broker: Broker, case: Case
) -> None:
    notion, git = Vault(None, "a"), Vault(None, "b")
    ready = Vault("c")
    sources = [
        connector(case, notion.credentials, title="Notion"),
        connector(case, ready.credentials, "ready"),
        connector(case, git.credentials, "git"),
    ]
    model = Steps([use("connectors.notion.whoami"), use("connectors.git.whoami", "c2")])
    async with staged(broker, model, connectors=sources, mcps=[case.over_http()]) as stage:
        await stage.send()
        callback = await asked(stage)

        assert model.requests == []
        assert case.log == []
        assert stage.worker.turns.connections._users == {}
        assert [{**each, "id": "", "openedAt": ""} for each in opened(await stage.records())] == [
            {
                "type": "signIn",
                "id": "",
                "openedAt": "",
                "title": "Sign in to Notion, git",
                "requests": [
                    {"sourceId": NOTION, "title": "Notion", "url": "https://notion.example/login"},
                    {"sourceId": GIT, "title": "git", "url": "https://git.example/login"},
                ],
            }
        ]
        await stage.answer(callback, SignInAnswer(connected=(NOTION, GIT)))
        await stage.ended()

        assert await stage.results() == {"c1": "Bearer a", "c2": "Bearer b"}
        assert len(opened(await stage.records())) == 1
        assert notices(await stage.records()) == []


async def test_the_turn_goes_on_after_the_answer_on_whatever_worker(broker: Broker, case: Case) -> None:
    model = Steps([use("connectors.notion.whoami")])
    async with staged(broker, model, connectors=[connector(case, Vault(None).credentials)]) as stage:
        await stage.send()
        callback = await asked(stage)
        await stage.worker.drain(0)
    signed_in = AgentDefinition(model=model, name="agent", connectors=[connector(case, Vault("a").credentials)])
    async with working(broker, signed_in):
        await stage.answer(callback, SignInAnswer(connected=(NOTION,)))
        await stage.ended()
        assert await stage.results() == {"c1": "Bearer a"}


async def test_one_that_was_refused_stays_away_for_this_turn_and_is_asked_for_again_in_the_next(
    broker: Broker, case: Case
) -> None:
    notion, git = Vault(None), Vault(None, "b")
    sources = [connector(case, notion.credentials), connector(case, git.credentials, "git")]
    model = Steps([use("connectors.git.whoami")])
    async with staged(broker, model, connectors=sources) as stage:
        await stage.send()
        await stage.answer(await asked(stage), SignInAnswer(connected=(GIT,), denied=(NOTION,)))
        await stage.ended()

        assert await stage.results() == {"c1": "Bearer b"}
        assert not any(tool.startswith("connectors.notion.") for request in model.requests for tool in ids(request))
        (notice,) = notices(await stage.records())
        assert (notice["source"], notice["details"]["reason"]) == (NOTION, "credential_unavailable")
        assert notice["message"] == "The tools of connectors:notion cannot be used: nobody signed in."
        assert told(await stage.records()) == [(NOTION, "The tools of connectors:notion cannot be used now.")]

        notion.given = [None, "a"]
        await stage.send()
        await stage.answer(await asked(stage), SignInAnswer(connected=(NOTION,)))
        await stage.ended()
        assert told(await stage.records())[1:] == [(NOTION, "The tools of connectors:notion can be used again.")]
        assert "connectors.notion.add" in ids(model.requests[-1])


async def test_a_person_who_signed_in_without_giving_credentials_is_not_asked_twice(broker: Broker, case: Case) -> None:
    model = Steps()
    async with staged(broker, model, connectors=[connector(case, Vault(None).credentials)]) as stage:
        await stage.send()
        await stage.answer(await asked(stage), SignInAnswer(connected=(NOTION,)))
        assert (await stage.ended())["text"] == "done"

        assert len(opened(await stage.records())) == 1
        (notice,) = notices(await stage.records())
        assert "a person signed in, but there are no credentials" in notice["message"]


async def test_a_steer_does_not_wake_it_and_is_read_when_it_goes_on(broker: Broker, case: Case) -> None:
    model = Steps()
    async with staged(broker, model, connectors=[connector(case, Vault(None, "a").credentials)]) as stage:
        await stage.send()
        callback = await asked(stage)
        await stage.send("and this")
        assert await stage.state() == "parked"
        await stage.answer(callback, SignInAnswer(connected=(NOTION,)))
        await stage.ended()

        (request,) = model.requests
        assert len(request.messages) == 2


async def test_an_interrupt_closes_the_question(broker: Broker, case: Case) -> None:
    model = Steps()
    async with staged(broker, model, connectors=[connector(case, Vault(None, "a").credentials)]) as stage:
        await stage.send()
        await asked(stage)
        await transitions.interrupt(broker, stage.session_id, stage.turn)
        assert (await stage.ended())["type"] == "interrupted"

        await stage.send()
        await stage.ended()
        assert "connectors.notion.add" in ids(model.requests[-1])


async def test_a_question_that_nobody_answers_in_time_leaves_the_turn_without_the_source(
    broker: Broker, case: Case
) -> None:
    broker.settings = broker.settings.model_copy(update={"callback_timeout": 0.2})
    model = Steps()
    async with staged(broker, model, connectors=[connector(case, Vault(None).credentials)]) as stage:
        await stage.send()
        assert (await stage.ended())["text"] == "done"

        assert [notice["details"]["reason"] for notice in notices(await stage.records())] == ["credential_unavailable"]
        assert len(model.requests) == 1


async def test_credentials_that_are_gone_in_the_middle_of_a_turn_are_asked_for_then(broker: Broker, case: Case) -> None:
    """The turn parks for an approval, and the person signs out meanwhile; the call fails, and then the turn asks."""
    vault = Vault("a", None, None, "b")
    model = Steps([use("connectors.notion.whoami")], [use("connectors.notion.whoami", "c2")])
    sources = [connector(case, vault.credentials)]
    async with staged(broker, model, connectors=sources, permission_mode="ask") as stage:
        await stage.send()
        approval = await asked(stage)
        await stage.answer(approval)
        await stage.ended()

        results = await stage.results()
        assert results["c1"] == "connectors.notion.whoami was not run: its server cannot be used now."


async def test_a_worker_that_dies_while_the_question_is_open_does_not_ask_again(broker: Broker, case: Case) -> None:
    model = Steps()
    vault = Vault(None, "a")
    async with staged(broker, model, connectors=[connector(case, vault.credentials)]) as stage:
        await stage.send()
        callback = await asked(stage)
        await asyncio.gather(*(stage.answer(callback, SignInAnswer(connected=(NOTION,))) for _ in range(3)))
        await stage.ended()
        assert len(opened(await stage.records())) == 1
        assert len(model.requests) == 1
