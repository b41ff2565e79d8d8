"""One line at the bottom of a terminal that says what runs now; gone before anything else is printed."""

from __future__ import annotations

import shutil
import threading
from typing import IO

_CLEAR = "\r\x1b[2K"  # Source: ECMA-48, erase in line


class StatusLine:
    """What `count` things are doing; nothing at all where the stream is no terminal. Any thread may call it."""

    def __init__(self, stream: IO[str], count: int) -> None:
        self._stream, self._count = stream, count
        self._shown = stream.isatty()
        self._running: list[str] = []
        self._begun = 0
        self._lock = threading.Lock()

    def started(self, name: str) -> None:
        """One of them begins."""
        with self._lock:
            self._begun += 1
            self._running.append(name)
            self._draw()

    def ended(self, name: str) -> None:
        """One of them is over."""
        with self._lock:
            if name in self._running:
                self._running.remove(name)

    def clear(self) -> None:
        """Make room for a line of something else; `draw` brings it back."""
        with self._lock:
            self._write(_CLEAR)

    def draw(self) -> None:
        """Show it again."""
        with self._lock:
            self._draw()

    def _draw(self) -> None:
        width = shutil.get_terminal_size().columns - 1
        text = f"{self._begun}/{self._count}  {', '.join(self._running)}"
        text = "".join(c if c.isprintable() else " " for c in text)
        self._write(_CLEAR + text[:width] if self._running else _CLEAR)

    def _write(self, text: str) -> None:
        if self._shown:
            self._stream.write(text)
            self._stream.flush()
