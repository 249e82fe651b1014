"""Hooks and tools of sources: what a hook decides of them, and what a sign-in in the middle changes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from sourcing import Vault, connector, use
from tool_servers import Case
from turns import Stage, Steps, staged, working

from broker.broker import Broker
from broker.protocol.callbacks import SignInAnswer
from workers.agent import AgentDefinition
from workers.hooks import Hook, HookCall, HookContext, reject, request_approval, skip
from workers.tools import ToolResult


class Watch(Hook):
    """Decides on each tool of a server, and counts in its State."""

    class State(BaseModel):
        models: int = 0
        results: int = 0

    async def pre_llm_call(self, ctx: HookContext[State]) -> None:
        ctx.state.models += 1

    async def pre_tool_call(self, ctx: HookContext[State], call: HookCall) -> Any:
        match call.id:
            case "changed":
                return {"a": 10, "b": 20}
            case "skipped":
                return skip("not here")
            case "asked":
                return request_approval()
            case _:
                return None

    async def post_tool_call(self, ctx: HookContext[State], call: HookCall, result: ToolResult) -> Any:
        ctx.state.results += 1
        return reject("private") if call.id == "withheld" else None


async def kept(stage: Stage) -> Any:
    return [details["state"] for _, details in await stage.checkpoints() if "state" in details][-1]


async def test_hooks_decide_on_a_server_s_tools(broker: Broker, case: Case) -> None:
    calls = ["changed", "skipped", "asked", "withheld"]
    model = Steps([use("mcp.box.add", call_id, a=1, b=2) for call_id in calls])
    options: dict[str, Any] = {"mcps": [case.over_http()], "hooks": [Watch()]}
    async with staged(broker, model, **options) as stage:
        await stage.send()
        (asked,) = await stage.callbacks()
        await stage.until("parked")
        await stage.worker.drain(0)
    async with working(broker, AgentDefinition(model=model, name="agent", **options)):
        await stage.answer(asked)
        await stage.ended()

    assert await stage.results() == {
        "changed": '{"sum": 30}',
        "skipped": "mcp.box.add was not run: a hook skipped it: not here.",
        "asked": '{"sum": 3}',
        "withheld": "The result of mcp.box.add was withheld: private.",
    }
    assert await kept(stage) == {"models": 2, "results": 3}


async def test_a_sign_in_before_a_model_call_comes_before_its_hooks(broker: Broker, case: Case) -> None:
    vault = Vault(None, {"x-token": "t"})
    model = Steps(["hello"])
    async with staged(broker, model, connectors=[connector(case, vault.credentials)], hooks=[Watch()]) as stage:
        await stage.send()
        await stage.until("parked")
        assert await stage.checkpoints() == []
        (asked,) = await stage.callbacks()
        await stage.answer(asked, SignInAnswer(connected=("connectors:notion",)))
        await stage.ended()

    assert await kept(stage) == {"models": 1, "results": 0}
