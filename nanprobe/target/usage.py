"""What a stage costs: the time of a plain step, and the memory it took at most."""

from __future__ import annotations

import sys
import time
from statistics import median

if sys.platform != "win32":
    import resource

# Source: getrusage(2): kilobytes on Linux, bytes on macOS.
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Usage:
    """Measured from the first step on; deep steps, which cost several plain ones, are left out of the time."""

    def __init__(self) -> None:
        self._before = _peak_resident()
        self._last = time.monotonic()
        self._seconds: dict[int, float] = {}
        self._deep: set[int] = set()

    def step(self, index: int) -> None:
        """A step is over."""
        now = time.monotonic()
        self._seconds[index] = now - self._last
        self._last = now

    def deep_step(self, index: int) -> None:
        """That step was a deep one; writing its record is no part of the next."""
        self._deep.add(index)
        self._last = time.monotonic()

    def facts(self) -> dict[str, object]:
        """`step_seconds`, the median of the plain steps after the first; `peak_memory` in bytes, beyond what the
        process had when it began (on a GPU: what was allocated there); None where it cannot be told.
        """
        plain = [s for index, s in self._seconds.items() if index > 0 and index not in self._deep]
        return {"step_seconds": median(plain) if plain else None, "peak_memory": self._peak_memory()}

    def _peak_memory(self) -> int | None:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            return int(torch.cuda.max_memory_allocated())
        after = _peak_resident()
        return None if after is None or self._before is None else after - self._before


def _peak_resident() -> int | None:
    if sys.platform == "win32":
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT
