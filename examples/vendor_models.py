"""Vendors' models: OpenAI's, Mistral's, and any server of chat completions: vLLM, Ollama, llama.cpp, a gateway.

    pip install 'turnstream[openai]'
    python examples/vendor_models.py                                   # offline, against a tiny server in this folder
    EXAMPLE_MODEL=openai:gpt-4o python examples/vendor_models.py       # with OPENAI_API_KEY set
    EXAMPLE_MODEL=mistral:mistral-large-latest python …                # with turnstream[mistral], MISTRAL_API_KEY set
    EXAMPLE_MODEL=openai:llama3 python …                               # Ollama: OPENAI_BASE_URL=http://localhost:11434/v1

It prints (offline):

    calls client.get_weather {'city': 'Paris'}
    It says: Sunny in Paris.
    tokens: 80 in, 16 out
    a server that is away: model_unavailable
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import api_shim as agents

PORT = os.environ.get("MODEL_PORT", "8930")
SERVER = Path(__file__).parent / "servers" / "chat_completions.py"
MODEL = os.environ.get("EXAMPLE_MODEL")


@agents.tool
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"Sunny in {city}."


weatherman = agents.Agent(
    name="weatherman",
    instructions="Use your tool.",
    tools=[get_weather],
    temperature=0.0,
    model=MODEL or agents.OpenAIModel("tiny", base_url=f"http://127.0.0.1:{PORT}/v1"),
)


async def ask() -> None:
    session = await weatherman.start_session()
    turn = await session.send_message("What is the weather in Paris?")
    state = await turn.result()
    async for entry in session.history():
        if isinstance(entry, agents.ToolCallEntry):
            print("calls", entry.name, entry.arguments)
    print(state.text)
    if isinstance(state, agents.Completed):
        print(f"tokens: {state.usage.input_tokens} in, {state.usage.output_tokens} out")
    await session.cancel()


async def main() -> None:
    if MODEL is not None:
        await ask()
        return
    with subprocess.Popen([sys.executable, str(SERVER), PORT], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it is ready
        try:
            await ask()
        finally:
            server.kill()
    match await weatherman.run("And now?"):  # tried three times, then told as the record of the turn
        case agents.Failed(error):
            print("a server that is away:", error.code)


if __name__ == "__main__":
    asyncio.run(main())
