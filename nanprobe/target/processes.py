"""Process groups, orphans and parents: what makes sure that nothing a stage started outlives it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    """One Linux process option; nothing elsewhere, where the launcher's own clean-up has to do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(on: bool = True) -> None:
    """Let the kernel kill this process as soon as the one that started it is gone (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL) if on else 0)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends (Linux), so that none gets away."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it stays a zombie, so its number is not given to another process yet."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return _state(pid) in ("Z", "")


def _state(pid: int) -> str:
    """The process's state letter from `ps`, for systems without waitid; empty when there is no such process."""
    with os.popen(f"ps -o state= -p {pid}") as answer:
        return answer.read().strip()[:1]


def end_group(group: int) -> None:
    """Kill every process of a group, at once."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def children_of(parent: int) -> list[int]:
    """The processes a process is the parent of (Linux; none elsewhere)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # the name in parentheses may hold anything, so count from its end
            if int(path.read_bytes().rpartition(b")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def end_orphans(seconds: float = 5.0) -> None:
    """Kill and collect every child of this process, and those that become its children on the way."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        left = children_of(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.005)
