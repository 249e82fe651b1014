"""What a person types, a line at a time, while the event loop goes on."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import threading

from broker.protocol.values import clean_text


class Lines:
    """The lines of standard input. One consumer at a time.

    A thread reads the file itself: what Python's own reader holds while it waits would stop the process from ending.
    """

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._over = False
        self.interactive = os.isatty(self._fd)
        threading.Thread(target=self._read, name="lines", daemon=True).start()

    async def next(self) -> str | None:
        """Return the next line without its end; None when there are no more."""
        if self._over and self._lines.empty():
            return None
        line = await self._lines.get()
        self._over = self._over or line is None
        return line

    def drop_typed_ahead(self) -> None:
        """Forget what was typed before a question was shown: it is no answer to it. A pipe's lines stay."""
        if not self.interactive:
            return
        termios.tcflush(self._fd, termios.TCIFLUSH)
        while not self._lines.empty():
            self._over = self._lines.get_nowait() is None or self._over

    def _read(self) -> None:
        held = b""
        while True:
            try:
                more = os.read(self._fd, 65536)
            except OSError:
                more = b""
            *whole, held = (held + more).split(b"\n")
            if not more and held:
                whole.append(held)
            for line in whole:
                self._give(clean_text(line.removesuffix(b"\r").decode("utf-8", "replace")))
            if not more:
                self._give(None)
                return

    def _give(self, line: str | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:
            return  # the loop has ended
