"""What reaches a person's terminal: text from anywhere made harmless, and colours where they are wanted."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import click

from broker.protocol.values import JsonValue, clean_text, dumps
from broker.protocol.wire import parse_cursor

_SEQUENCES: Final = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    "|(?:\x1b[\\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)?"  # titles, links, clipboard
    "|\x1b[ -/]*[0-~]?"
)
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
"""Control characters but tab and line feed, and what turns the direction of writing round."""

_LINES: Final = re.compile("\r\n|[\r\x85\u2028\u2029]")
_SHOWN: Final = 160


def plain(text: str) -> str:
    """Return text without escape sequences and control characters; its lines end with line feeds."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", _LINES.sub("\n", clean_text(text))))


def one_line(text: str, most: int = _SHOWN) -> str:
    """Return text as one harmless line of at most `most` characters."""
    line = " ".join(plain(text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else line[: most - 1] + "…"


def json_line(value: JsonValue, most: int = _SHOWN) -> str:
    """Return a JSON value as one harmless line; an object of arguments as `name=value, …`."""
    if isinstance(value, Mapping):
        return one_line(", ".join(f"{name}={dumps(item).decode()}" for name, item in value.items()), most)
    return one_line(value if isinstance(value, str) else dumps(value).decode(), most)


def clock(session_id: str, cursor: str) -> str:
    """Return the local time of day at which the event with this cursor happened."""
    position = parse_cursor(session_id, cursor)
    return datetime.fromtimestamp(position.ms / 1000).astimezone().strftime("%H:%M:%S")


def prepare(context: click.Context) -> None:
    """Set the process's output up: NO_COLOR is respected, and a character that the terminal lacks is no crash."""
    if os.environ.get("NO_COLOR"):
        context.color = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str, **style: object) -> None:
    """Print a line that was written in this program."""
    click.secho(text, **style)  # type: ignore[arg-type] # click's own style names


def complain(text: str) -> None:
    """Print one red line on stderr."""
    click.secho(one_line(text, 1000), fg="red", err=True)
