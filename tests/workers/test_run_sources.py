"""Tool sources in a turn: their tools, what happens when they fail, and when a person must sign in first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from sourcing import ids, notes, notices, told, use
from tool_servers import Case, address, serving_tools
from turns import Steps, staged, text_of, working

from broker import transitions
from broker.broker import Broker
from workers.agent import AgentDefinition
from workers.models import ModelToolCall, ToolMessage
from workers.permissions import PermissionPolicy, PermissionRule

# Tools.


async def test_the_tools_of_a_server_are_the_turn_s(broker: Broker, case: Case) -> None:
    model = Steps([use("mcp.box.add", a=1, b=2), use("mcp.box.blocks", "c2"), use("mcp.box.fail", "c3")])
    async with staged(broker, model, mcps=[case.over_http()]) as stage:
        await stage.send()
        state = await stage.ended()

        assert {"mcp.box.add", "mcp.box.hang"} <= ids(model.requests[0])
        (spec,) = [spec for spec in model.requests[0].tools if spec.id == "mcp.box.add"]
        assert (spec.description, spec.parameters["properties"]["b"]) == ("Adding", {"type": "integer"})
        results = {entry["toolCallId"]: entry for entry in await stage.entries("toolResult")}
        added, blocks, failed = results["c1"], results["c2"], results["c3"]
        assert (added["name"], added["structuredContent"], added["isError"]) == ("mcp.box.add", {"sum": 3}, False)
        assert added["meta"]["took"] == 3
        assert (failed["isError"], text_of(failed)) == (True, "it does not work")
        assert [block["type"] for block in blocks["content"]] == [
            "text", "text", "image", "audio", "resource_link", "embedded_resource"
        ]  # fmt: skip
        assert blocks["content"][0] == {"type": "text", "text": "for both", "_meta": {"k": 1}}
        noted = {"audience": ["user"], "priority": 0.5, "lastModified": "2026-01-01T00:00:00Z"}
        assert blocks["content"][1]["annotations"] == noted
        assert blocks["content"][2]["uri"] == "data:image/png;base64,aGk="
        assert blocks["content"][5] == {
            "type": "embedded_resource", "uri": "file:///a.txt", "mediaType": "text/plain", "text": "page"
        }  # fmt: skip
        assert state["text"] == "done"
        (shown,) = [m for m in model.requests[1].messages if isinstance(m, ToolMessage) and m.call_id == "c2"]
        assert [block.type for block in shown.content] == [
            "text",
            "image",
            "audio",
            "resource_link",
            "embedded_resource",
        ]
        assert not any("took" in repr(message) for message in model.requests[1].messages)


async def test_a_result_without_text_is_told_and_one_that_cannot_be_kept_is_an_error(
    broker: Broker, case: Case
) -> None:
    model = Steps([use("mcp.box.bare"), use("mcp.box.big", "c2")])
    async with staged(broker, model, mcps=[case.over_http()]) as stage:
        await stage.send()
        await stage.ended()

        assert await stage.results() == {
            "c1": '{"found":2}',
            "c2": "The server's result cannot be kept: content[0] is no image block of at most 10 MB.",
        }


async def test_a_server_s_globs_choose_among_its_tools_and_what_they_leave_may_be_wrong(
    broker: Broker, case: Case
) -> None:
    good = {"name": "add", "inputSchema": {"type": "object"}}
    case.say(list={"tools": [good, {"name": "bad name", "inputSchema": {"type": "object"}}]})
    model = Steps()
    async with staged(broker, model, mcps=[case.over_http(tools=["a*"])]) as stage:
        await stage.send()
        await stage.ended()

        assert ids(model.requests[0]) == {"mcp.box.add"}
        assert notices(await stage.records()) == []


async def test_the_policy_s_globs_decide_on_a_server_s_tools(broker: Broker, case: Case) -> None:
    rules = [PermissionRule(tools=["mcp.box.who*"], decision="deny"), PermissionRule(tools=["mcp.*"], decision="ask")]
    model = Steps([use("mcp.box.whoami"), use("mcp.box.add", "c2", a=1, b=2)])
    policy = PermissionPolicy(default="deny", rules=rules)
    async with staged(broker, model, mcps=[case.over_http()], permission_policy=policy) as stage:
        await stage.send()
        (asked,) = await stage.callbacks()
        await stage.until("parked")
        assert stage.worker.turns.connections._users == {}  # a parked turn holds none
        await stage.answer(asked)
        await stage.ended()

        results = await stage.results()
        assert "the permission policy refuses it" in results["c1"]
        assert results["c2"] == '{"sum": 3}'
        assert "call whoami" not in case.log


async def test_a_call_that_was_allowed_runs_on_whatever_worker(broker: Broker, case: Case) -> None:
    model = Steps([use("mcp.box.add", a=1, b=2)])
    options: dict[str, Any] = {"mcps": [case.over_http()], "permission_mode": "ask"}
    async with staged(broker, model, **options) as stage:
        await stage.send()
        (asked,) = await stage.callbacks()
        await stage.until("parked")
        await stage.worker.drain(0)
    async with working(broker, AgentDefinition(model=model, name="agent", **options)):
        await stage.answer(asked)
        await stage.ended()
        assert await stage.results() == {"c1": '{"sum": 3}'}


async def test_a_call_that_was_allowed_fails_where_its_server_cannot_be_reached(broker: Broker, case: Case) -> None:
    model = Steps([use("mcp.box.add", a=1, b=2)])
    options: dict[str, Any] = {"mcps": [case.over_http()], "permission_mode": "ask"}
    async with staged(broker, model, **options) as stage:
        await stage.send()
        (asked,) = await stage.callbacks()
        await stage.until("parked")
        await stage.worker.drain(0)
    case.say(status=500)
    async with working(broker, AgentDefinition(model=model, name="agent", **options)):
        await stage.answer(asked)
        await stage.ended()
        assert await stage.results() == {"c1": "mcp.box.add was not run: its server cannot be used now."}
        assert [notice["details"]["reason"] for notice in notices(await stage.records())] == ["request_failed"]
        assert told(await stage.records()) == [("mcp:box", "The tools of mcp:box cannot be used now.")]


async def test_a_call_has_a_limit(broker: Broker, case: Case) -> None:
    model = Steps([use("mcp.box.hang")], [use("mcp.box.add", "c2", a=1, b=2)])
    async with staged(broker, model, mcps=[case.over_http(call_timeout=0.2)]) as stage:
        await stage.send()
        await stage.ended()

        assert await stage.results() == {
            "c1": "mcp.box.hang did not end within 0.2 s and was stopped.", "c2": '{"sum": 3}'
        }  # fmt: skip
        await eventually(lambda: case.log, "the server was told", until=lambda log: "cancelled" in log)
        assert notices(await stage.records()) == []


async def test_a_turn_that_is_interrupted_cancels_its_call(broker: Broker, case: Case) -> None:
    async with staged(broker, Steps([use("mcp.box.hang")]), mcps=[case.over_http()]) as stage:
        await stage.send()
        await eventually(lambda: case.log, "the call is there", until=lambda log: "call hang" in log)
        await transitions.interrupt(broker, stage.session_id, stage.turn)

        await eventually(lambda: case.log, "the server was told", until=lambda log: "cancelled" in log)
        assert (await stage.ended())["type"] == "interrupted"
        await eventually(
            lambda: stage.worker.turns.connections._users, "it is given back", until=lambda users: not users
        )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [("text", "arguments: Input should be an object"), ([1], "arguments: Input should be an object")],
)
async def test_arguments_that_are_no_object_never_leave(
    embedded_broker: Broker, case: Case, arguments: Any, said: str
) -> None:
    model = Steps([ModelToolCall("c1", "mcp.box.add", arguments)])
    async with staged(embedded_broker, model, mcps=[case.over_http()]) as stage:
        await stage.send()
        await stage.ended()
        assert said in (await stage.results())["c1"]
        assert "call add" not in case.log


async def test_nothing_is_asked_again_while_nothing_changes(broker: Broker, case: Case) -> None:
    model = Steps([use("mcp.box.add", a=1, b=2)], [use("mcp.box.add", "c2", a=1, b=2)])
    async with staged(broker, model, mcps=[case.over_http()]) as stage:
        for _ in range(2):
            await stage.send()
            await stage.ended()

        assert case.log.count("POST tools/list") == 1
        assert case.log.count("POST server/discover") == 1


async def test_a_tool_that_appears_in_the_middle_of_a_turn_is_there_for_its_next_model_call(
    broker: Broker, case: Case
) -> None:
    case.say(era="legacy")
    model = Steps([use("mcp.box.grow")], [use("mcp.box.more", "c2")])
    async with staged(broker, model, mcps=[case.over_http(call_timeout=5.0)]) as stage:
        case.say(era="legacy", add=["more"])
        await stage.send()
        await stage.ended()
        assert (await stage.results())["c2"] == "more ran"


# Failures.


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([{"name": "a b", "inputSchema": {"type": "object"}}], "the name 'a b' is not 1 to 128"),
        ([{"name": "x" * 129, "inputSchema": {"type": "object"}}], "is not 1 to 128"),
        ([{"name": "a", "inputSchema": {"type": "object"}}] * 2, "two tools have the name 'a'"),
        (
            [{"name": "a", "inputSchema": {"type": "string"}}],
            "its list of tools is not valid at tools.0.inputSchema.type",
        ),
        ([{"name": "a", "inputSchema": {}}], "its list of tools is not valid at tools.0.inputSchema.type"),
        ([{"name": "a"}], "its list of tools is not valid at tools.0.inputSchema"),
    ],
    ids=["name", "long name", "twice", "schema of a text", "schema of anything", "no schema"],
)
async def test_a_list_that_is_not_valid_takes_the_server_s_tools_away(
    embedded_broker: Broker, case: Case, listed: list[Any], said: str, era: str
) -> None:
    case.say(era=era, list={"tools": listed})
    model = Steps()
    async with staged(embedded_broker, model, mcps=[case.over_http()]) as stage:
        await stage.send()
        assert (await stage.ended())["text"] == "done"

        (notice,) = notices(await stage.records())
        assert notice["details"]["reason"] == "invalid_catalog"
        assert said in notice["message"]
        assert ids(model.requests[0]) == set()


async def test_a_server_that_is_away_is_told_once_and_tried_again_in_the_next_turn(broker: Broker, case: Case) -> None:
    model = Steps([use("mcp.box.add", a=1, b=2)])
    async with staged(broker, model, mcps=[case.over_http(title="The box")]) as stage:
        case.say(status=503)
        await stage.send()
        assert (await stage.ended())["type"] == "completed"
        first = await stage.records()
        (notice,) = notices(first)
        assert {key: notice[key] for key in ("level", "message", "source", "details")} == {
            "level": "warning",
            "message": "The tools of The box (mcp:box) cannot be used: the server answered with HTTP 503.",
            "source": "mcp:box",
            "details": {"source_id": "mcp:box", "server": "box", "status": "unavailable", "reason": "request_failed"},
        }
        gone = ("mcp:box", "The tools of The box (mcp:box) cannot be used now.")
        assert told(first) == [gone]
        assert [note for request in model.requests[:1] for note in notes(request)] == [gone[1]]
        assert (await stage.results())["c1"].startswith("There is no tool")

        await stage.send("again")  # still away: the developer hears of it again, the model does not
        await stage.ended()
        assert len(notices(await stage.records())) == 2
        assert told(await stage.records()) == [gone]

        case.say()
        await stage.send("once more")
        await stage.ended()
        assert len(notices(await stage.records())) == 2
        assert told(await stage.records()) == [gone, ("mcp:box", "The tools of The box (mcp:box) can be used again.")]
        assert "mcp.box.add" in ids(model.requests[-1])
        await stage.send("and on")
        await stage.ended()
        assert len(told(await stage.records())) == 2


async def test_what_the_model_was_told_holds_on_another_worker(broker: Broker, case: Case) -> None:
    case.say(status=503)
    options: dict[str, Any] = {"mcps": [case.over_http()]}
    async with staged(broker, Steps(), **options) as stage:
        await stage.send()
        await stage.ended()
    async with working(broker, AgentDefinition(model=Steps(), name="agent", **options)):
        await stage.send()
        await stage.ended()
        assert len(told(await stage.records())) == 1
    case.say()
    async with working(broker, AgentDefinition(model=Steps(), name="agent", **options)):
        await stage.send()
        await stage.ended()
        assert [text.endswith("again.") for _, text in told(await stage.records())] == [False, True]


async def test_a_server_that_dies_in_a_call_is_an_error_that_the_model_reads_and_comes_back_in_the_next_turn(
    broker: Broker, tmp_path: Path
) -> None:
    with serving_tools() as (port, _):
        case = Case(tmp_path / "case.json", address(port))
        model = Steps([use("mcp.box.die"), use("mcp.box.hang", "c2")], [use("mcp.box.add", "c3", a=1, b=2)])
        async with staged(broker, model, mcps=[case.over_http()]) as stage:
            await stage.send()
            assert (await stage.ended())["text"] == "done"

            results = await stage.results()
            assert results["c1"] == "mcp.box.die failed: its connection was lost."
            assert results["c2"] == "mcp.box.hang failed: its connection was lost."
            assert "There is no tool" in results["c3"]
            (notice,) = notices(await stage.records())
            assert notice["details"]["reason"] == "unreachable"
            assert told(await stage.records()) == [("mcp:box", "The tools of mcp:box cannot be used now.")]
            read = [type(message).__name__ for message in model.requests[1].messages]
            assert read == ["UserMessage", "AssistantMessage", "ToolMessage", "ToolMessage", "ContextNote"]
            asked = len(model.requests)

            with serving_tools(port):
                await stage.send()
                await stage.ended()
            assert len(told(await stage.records())) == 2
            assert len(model.requests) == asked + 1
            assert "mcp.box.add" in ids(model.requests[-1])


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_server_that_was_started_anew_meanwhile_is_called_as_if_nothing_had_been(
    broker: Broker, tmp_path: Path, era: str
) -> None:
    with serving_tools() as (port, first):
        case = Case(tmp_path / "case.json", address(port))
        case.say(era=era)
        model = Steps(["one"], [use("mcp.box.add", a=1, b=2)])
        async with staged(broker, model, mcps=[case.over_http()]) as stage:
            await stage.send()
            await stage.ended()
            first.kill()
            first.wait()
            with serving_tools(port):
                await stage.send()
                await stage.ended()
            assert (await stage.results())["c1"] == '{"sum": 3}'
            assert notices(await stage.records()) == []


async def test_a_hanging_server_holds_a_turn_up_once_and_other_servers_tools_stay(broker: Broker, case: Case) -> None:
    case.say(hang="server/discover")
    hanging = case.over_http("hung", timeout=0.4)
    other = Case(case.path.with_name("other.json"), case.url)
    model = Steps([use("mcp.box.add", a=1, b=2)])
    async with staged(broker, model, mcps=[hanging, other.over_http()]) as stage:
        await stage.send()
        await stage.ended()

        assert (await stage.results())["c1"] == '{"sum": 3}'
        assert [notice["details"]["reason"] for notice in notices(await stage.records())] == ["timeout"]
        assert len(model.requests) == 2
        assert case.log == ["POST server/discover"]


async def test_a_call_that_fails_its_source_leaves_the_calls_beside_it_alone(broker: Broker, case: Case) -> None:
    case.say(refuse={"whoami": 403})
    model = Steps([use("mcp.box.slow"), use("mcp.box.whoami", "c2")])
    async with staged(broker, model, mcps=[case.over_http()]) as stage:
        await stage.send()
        await eventually(stage.results, "one has failed", until=lambda results: "c2" in results)
        case.say(go=True)
        await stage.ended()

        results = await stage.results()
        assert results["c1"] == "slow ran"
        assert results["c2"] == "mcp.box.whoami failed: the server refused the credentials (HTTP 403)."
        assert stage.worker.turns.connections._users == {}
