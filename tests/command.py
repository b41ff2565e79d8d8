"""The real command in a process of its own, and a look at what it leaves running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MARK = "NANPROBE_TEST_RUN"


@dataclass(frozen=True)
class Result:
    """How the command ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    left_running: list[int]

    @property
    def both(self) -> str:
        """Everything it printed."""
        return self.stdout + self.stderr


def run_nanprobe(*args: str, cwd: Path, timeout: float = 120) -> Result:
    """Run `python -m nanprobe args` to its end."""
    with start_nanprobe(*args, cwd=cwd) as (process, mark):
        started = time.monotonic()
        stdout, stderr = process.communicate(timeout=timeout)
        return Result(process.returncode, stdout, stderr, time.monotonic() - started, marked_processes(mark))


def run_python(code: str, cwd: Path) -> str:
    """The output of Python code that may import nanprobe, in a fresh interpreter; it must end well."""
    env = {**os.environ, "PYTHONPATH": _python_path()}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _python_path() -> str:
    root = str(Path(__file__).parents[1])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


@contextmanager
def start_nanprobe(*args: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command, and the mark in the environment of all it starts; it is ended afterwards."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "nanprobe", *args],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark, "PYTHONPATH": _python_path()},
    )
    try:
        with process:
            yield process, mark
            process.kill()
    finally:
        for pid in marked_processes(mark):
            os.kill(pid, signal.SIGKILL)


def marked_processes(mark: str, *, seconds: float = 3.0) -> list[int]:
    """The processes with a mark that are still there after so long; zombies have no environment and do not count."""
    deadline = time.monotonic() + seconds
    while (found := _find(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _find(mark: str) -> list[int]:
    wanted, found = f"{MARK}={mark}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Read the command's stderr up to a line with `text` in it."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the command ended without saying {text!r}")


# A training in four lines, with a hook called before every step.
BASE = """
import torch
from torch import nn

def train(before_step, steps=100):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(steps):
        before_step(step)
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""
