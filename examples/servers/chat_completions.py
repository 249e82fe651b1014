"""A tiny server that speaks the chat-completions format of OpenAI, so that the example runs offline: a model of few words.

python examples/servers/chat_completions.py 8930      # http://127.0.0.1:8930/v1
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def reply(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a reply's deltas: a call of the first tool, and once that has a result, a sentence about it."""
    last = request["messages"][-1]
    if last["role"] == "tool":
        yield from ({"content": piece} for piece in ("It says: ", last["content"]))
        return
    name = request["tools"][0]["function"]["name"]
    arguments = json.dumps({"city": last["content"].split()[-1].rstrip("?")})
    yield {
        "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}]
    }
    yield {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}


class Handler(BaseHTTPRequestHandler):
    """Answers POST /v1/chat/completions with a stream of chunks."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Stream a reply."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        deltas = list(reply(request))
        finish = "tool_calls" if "tool_calls" in deltas[-1] else "stop"
        known = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": request["model"]}
        choices = [{"delta": delta, "finish_reason": None} for delta in deltas] + [
            {"delta": {}, "finish_reason": finish}
        ]
        chunks = [{**known, "choices": [{"index": 0, **choice}]} for choice in choices]
        usage = {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48}
        chunks.append({**known, "choices": [], "usage": usage})
        body = "".join(f"data: {data}\n\n" for data in [*map(json.dumps, chunks), "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print("ready", flush=True)
    server.serve_forever()
