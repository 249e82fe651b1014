"""The payment reviewer of the guide, on the scripted model: it reads an alert, opens a case, and reports.

    python examples/reviewer.py

It prints:

    Alert 4711 flags a suspicious 9,800 EUR payment from account FR76-3000-4471 to a beneficiary added just 3 minutes earlier,
    immediately after a password reset. I opened **CASE-4711** on it.

With `TURNSTREAM_REDIS_URL` set, start its worker beside it: `turnstream worker examples.reviewer:payment_reviewer`.
"""

from __future__ import annotations

import asyncio

import api_shim as agents

CASES = {"4711": "CASE-4711"}


@agents.tool
async def get_alert(alert_id: str) -> dict[str, object]:
    """Read a transaction monitoring alert."""
    return {"alert_id": alert_id, "amount_eur": 9800, "account": "FR76-3000-4471", "beneficiary_age_minutes": 3}


@agents.tool
def open_case(alert_id: str, summary: str, evidence: list[str]) -> str:
    """Open a case for an alert and return its id."""
    if not summary or not evidence:
        raise agents.ToolError("A case needs a summary and evidence.")
    return CASES[alert_id]


SUMMARY = "Suspicious 9,800 EUR payment from FR76-3000-4471 to a beneficiary added 3 minutes earlier."
REPORT = (
    "Alert 4711 flags a suspicious 9,800 EUR payment from account FR76-3000-4471 to a beneficiary added just 3 minutes "
    "earlier, immediately after a password reset. I opened **CASE-4711** on it."
)

model = agents.ScriptedModel(
    [
        agents.ScriptedReply(
            reasoning="The alert comes first.",
            calls=[agents.ScriptedCall("client.get_alert", {"alert_id": "4711"})],
        ),
        agents.ScriptedReply(
            reasoning="The amount sits just under the reporting threshold: this needs a case.",
            calls=[
                agents.ScriptedCall(
                    "client.open_case",
                    {"alert_id": "4711", "summary": SUMMARY, "evidence": ["password reset", "new beneficiary"]},
                )
            ],
        ),
        agents.ScriptedReply(reasoning="Report it.", text=REPORT, delay=0.01),
        agents.ScriptedReply(reasoning="They want the id.", text="CASE-4711", chunks=["CASE-", "4711"], delay=0.01),
    ]
)

payment_reviewer = agents.Agent(
    name="payment_reviewer",
    model=model,
    instructions="Review transaction monitoring alerts. Open a case when a payment looks suspicious.",
    tools=[get_alert, open_case],
)


async def main() -> None:
    session = await payment_reviewer.start_session(title="Alert 4711")
    state = await session.run("Review transaction monitoring alert 4711.")
    match state:
        case agents.Completed(output):
            print(output)
        case other:
            print("not completed:", other)
    await session.cancel()


if __name__ == "__main__":
    asyncio.run(main())
