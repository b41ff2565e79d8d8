"""The script's own output: drained as fast as it comes, kept in a log of bounded size."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 2_000_000  # at the start and again at the end; our choice, because tracebacks stand at an end
_READ_BYTES = 1 << 18
_LAST_BYTES = 400  # our choice: a line to be shown in a message


class OutputLog:
    """Writes what a script prints to a file: the first and the last `kept` bytes, whatever their encoding."""

    def __init__(self, path: Path, *, kept: int = KEPT_BYTES, copy: Callable[[bytes], object] | None = None) -> None:
        self._path, self._kept, self._copy = path, kept, copy
        self._head_left = kept
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._left_out = 0
        self._last = b""
        self._thread: threading.Thread | None = None

    def start(self, descriptor: int) -> None:
        """Drain a pipe in a thread of its own until its last writer is gone; the descriptor is closed then."""
        self._thread = threading.Thread(target=self._drain, args=(descriptor,), daemon=True)
        self._thread.start()

    def finish(self, seconds: float = 5.0) -> None:
        """Wait for the rest of the output; a writer that got away is not waited for longer than `seconds`."""
        if self._thread is not None:
            self._thread.join(seconds)

    def last_line(self) -> str:
        """The last line that is not empty, for a script that explains its end there; known after `finish`."""
        lines = self._last.decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _drain(self, descriptor: int) -> None:
        with contextlib.suppress(OSError), open(descriptor, "rb", buffering=0) as pipe, self._open() as file:
            while chunk := os.read(pipe.fileno(), _READ_BYTES):
                if self._copy is not None:
                    self._copy(chunk)
                self._last = (self._last + chunk)[-_LAST_BYTES:]
                self._keep(chunk, file.write)
            self._write_tail(file.write)

    @contextlib.contextmanager
    def _open(self):  # type: ignore[no-untyped-def]
        """The log for writing; what is printed is drained even where it cannot be kept."""
        try:
            with open(self._path, "wb", buffering=0) as file:
                yield file
        except OSError:
            with open(os.devnull, "wb", buffering=0) as file:
                yield file

    def _keep(self, chunk: bytes, write: Callable[[bytes], object]) -> None:
        if self._head_left:
            head, chunk = chunk[: self._head_left], chunk[self._head_left :]
            self._head_left -= len(head)
            with contextlib.suppress(OSError):
                write(head)
        if chunk:
            self._tail.append(chunk)
            self._tail_bytes += len(chunk)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= self._kept:
            dropped = len(self._tail.popleft())
            self._tail_bytes -= dropped
            self._left_out += dropped

    def _write_tail(self, write: Callable[[bytes], object]) -> None:
        tail = b"".join(self._tail)
        excess = max(0, len(tail) - self._kept)
        if left_out := self._left_out + excess:
            write(f"\n[... {left_out:,} bytes left out ...]\n".encode())
        write(tail[excess:])
