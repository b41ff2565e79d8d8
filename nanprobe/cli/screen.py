"""Where a command's words go: reports to stdout, the script's output to stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable

from nanprobe.plan import RunPlan


def show(text: str) -> None:
    """Print a report, whole and at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def report_width() -> int:
    """Columns of the terminal; never so few that a table cannot be read."""
    return max(40, shutil.get_terminal_size().columns)


def make_copy(plan: RunPlan) -> Callable[[bytes], object] | None:
    """Where the script's output is copied to with --show-output."""
    if not plan.show_output:
        return None

    def copy(chunk: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()

    return copy


def wants_color() -> bool:
    """Source: no-color.org; force-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
