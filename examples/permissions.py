"""Permissions: a policy of globs decides which calls run, which are refused, and which a person is asked about.

The first rule that matches wins. A person may allow one call, or a tool for the rest of the session.

    python examples/permissions.py

It prints:

    [on call] Allow restart? {'service': 'web'} - yes, for this session
    [on call] Allow scale? {'service': 'web', 'to': 90} - no
    client.read_log: 3 errors in web
    client.restart: web restarted
    client.restart: api restarted
    client.drop_database: client.drop_database was not run: the permission policy refuses it.
    client.scale: client.scale was not run: a person denied it: 90 is too many.
"""

from __future__ import annotations

import asyncio

import api_shim as agents


@agents.tool
def read_log(service: str) -> str:
    """Read a service's log."""
    return f"3 errors in {service}"


@agents.tool
def restart(service: str) -> str:
    """Restart a service."""
    return f"{service} restarted"


@agents.tool
def scale(service: str, to: int) -> str:
    """Set how many instances of a service run."""
    return f"{to} x {service}"


@agents.tool
def drop_database(name: str) -> str:
    """Drop a database."""
    return f"{name} is gone"


def calls(tool: str, **arguments: agents.JsonValue) -> agents.ScriptedReply:
    return agents.ScriptedReply(calls=[agents.ScriptedCall(f"client.{tool}", arguments)])


operator = agents.Agent(
    name="operator",
    tools=[read_log, restart, scale, drop_database],
    permission_policy=agents.PermissionPolicy(
        default="ask",
        rules=[
            agents.PermissionRule(tools=["client.read_*"], decision="allow"),
            agents.PermissionRule(tools=["client.drop_*", "client.delete_*"], decision="deny"),
        ],
    ),
    model=agents.ScriptedModel(
        [
            calls("read_log", service="web"),
            calls("restart", service="web"),
            calls("restart", service="api"),
            calls("drop_database", name="orders"),
            calls("scale", service="web", to=90),
            agents.ScriptedReply(text="Done what I may."),
        ]
    ),
)


def on_call(ctx: agents.HandlerContext, request: agents.ApprovalRequest) -> agents.AllowApproval | agents.DenyApproval:
    allowed = request.tool.name == "restart"
    print(f"[on call] {ctx.title} {request.arguments} - {'yes, for this session' if allowed else 'no'}")
    return agents.AllowApproval(scope="session") if allowed else agents.DenyApproval("90 is too many")


async def main() -> None:
    session = await operator.start_session(on_approval=on_call)
    await session.run("The shop is down. Fix it.")
    async for entry in session.history():
        match entry:
            case agents.ToolResultEntry(name):
                print(f"{name}: {entry.text}")  # what the model read
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
