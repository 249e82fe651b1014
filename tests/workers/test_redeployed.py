"""A turn that parked, and goes on at a worker whose agent has lost tools or subagents since."""

from __future__ import annotations

from turns import Steps, add, call, staged

from broker.broker import Broker
from broker.protocol.callbacks import DenyApproval
from workers.agent import AgentDefinition
from workers.client_tools import client_tool
from workers.hooks import Hook, HookCall, HookContext
from workers.models import ModelToolCall
from workers.permissions import PermissionPolicy, PermissionRule, denied_text, unknown_text
from workers.subagents import Subagent
from workers.tools import ToolResult

ASKS = PermissionPolicy(rules=[PermissionRule(tools=["client.add"], decision="ask")])


@client_tool
def ask_color() -> str:  # type: ignore[empty-body] # a stub: the client answers
    """Ask for a colour."""


class Watch(Hook):
    """Changes what it sees of results."""

    async def post_tool_call(self, ctx: HookContext, call: HookCall, result: ToolResult) -> str:  # noqa: ARG002 - what hooks are shown
        """Say that it was seen."""
        return "seen"


async def test_what_people_and_clients_said_of_calls_counts_without_the_tools(broker: Broker) -> None:
    model = Steps([call("add", "allowed", a=1, b=2), call("add", "denied", a=1, b=2), call("ask_color", "answered")])
    async with staged(broker, model, add, ask_color, permission_policy=ASKS) as stage:
        await stage.send()
        allowed, denied, asked = await stage.callbacks(3)
        await stage.until("parked")
        await stage.worker.serve(AgentDefinition(model=model, name="agent"))
        await stage.answer(allowed)
        await stage.answer(denied, DenyApproval("too much"))
        await stage.answer_client(asked, "answered", "blue")
        await stage.ended()

        assert await stage.results() == {
            "allowed": unknown_text("client.add"),
            "denied": denied_text("client.add", "too much"),
            "answered": "blue",
        }


async def test_hooks_see_what_a_client_answered_without_the_tool(broker: Broker) -> None:
    model = Steps([call("ask_color", "a")])
    async with staged(broker, model, ask_color, hooks=[Watch()]) as stage:
        await stage.send()
        (asked,) = await stage.callbacks()
        await stage.until("parked")
        await stage.worker.serve(AgentDefinition(model=model, name="agent", hooks=[Watch()]))
        await stage.answer_client(asked, "a", "blue")
        await stage.ended()

        assert await stage.results() == {"a": "seen"}


async def test_a_subagent_that_is_gone_is_named_to_its_parent(broker: Broker) -> None:
    clerk = Subagent(name="clerk", description="Adds.", model=Steps([call("add", "a", a=1, b=2)]))
    model = Steps([ModelToolCall("s", "agents.spawn", {"agent": "clerk", "task": "go"})])
    async with staged(broker, model, add, subagents=[clerk], permission_policy=ASKS) as stage:
        await stage.send()
        root = stage.session_id
        await stage.until("parked")
        (child,) = [found.decode() for found in await broker.client.zrange(broker.keys.of("children", root), 0, -1)]
        stage.session_id = child
        (asked,) = await stage.callbacks()
        await stage.until("parked")
        await stage.worker.serve(AgentDefinition(model=model, name="agent"))
        await stage.answer(asked)
        stage.session_id = root
        await stage.ended()

        assert await stage.results() == {"s": "The subagent clerk failed: agent agent has no subagent clerk any more"}
