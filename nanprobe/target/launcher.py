"""The parent's side: starts stages in child processes, watches the clock, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol

import nanprobe
from nanprobe.errors import CouldNotConclude
from nanprobe.plan import StageRequest
from nanprobe.target.output import OutputLog
from nanprobe.target.status import STACK_SIGNAL
from nanprobe.target.wire import Ended, NotReady, Ready, Signal, Start, Started, receive, send

POLL_SECONDS = 0.1
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL; our choice: long enough to flush, short enough for Ctrl-C
READY_SECONDS = 300.0  # torch from a cold network disk takes minutes, not longer
STACK_SECONDS = 0.3

# The package may run from a source tree that no installed path leads to. The directory the command runs in, which comes
# first in `sys.path` under -c, is not searched: a `random.py` there must not stand in for the library's.
_BOOTSTRAP = (
    "import sys; sys.path[:1] = []; sys.path.append({root!r}); "
    "import nanprobe.target.{module} as m; sys.path.remove({root!r}); m.main({argument})"
)


@dataclass(frozen=True, slots=True)
class Exit:
    """How a stage's process ended."""

    status: int  # as in subprocess: negative for a signal
    timed_out: bool
    seconds: float


class Launcher(Protocol):
    """Runs stages, one after the other, each in a process of its own."""

    def await_ready(self, watch: Callable[[], None]) -> None:
        """Return when stages start at once; calls `watch` meanwhile. Raises CouldNotConclude when they never will."""

    def run(self, request: StageRequest, log: OutputLog, timeout: float, watch: Callable[[], None]) -> Exit:
        """Run one stage to its end; calls `watch` about ten times a second. Ctrl-C stops the stage and goes on up."""

    def __enter__(self) -> Launcher: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...


def make_launcher(seed: int, threads: int | None = None) -> Launcher:
    """The launcher for this platform, its torch already loading; stages may use so many threads, None: all."""
    if hasattr(os, "fork") and hasattr(socket, "send_fds"):
        return ForkServerLauncher(seed, threads)
    return SpawnLauncher(seed, threads)


def _command(module: str, argument: str) -> list[str]:
    root = str(Path(nanprobe.__file__).parent.parent)
    return [sys.executable, "-c", _BOOTSTRAP.format(root=root, module=module, argument=argument)]


def _environment(seed: int, threads: int | None) -> dict[str, str]:
    """The user's own, and where it says nothing: sets in the same order in every run, OpenMP threads that do not spin.

    Threads that spin while they wait take the processor from those they wait for, as soon as anything else runs: on two
    busy cores, a step of a small transformer took 16 to 50 times as long with them. The numbers are the same.
    """
    spins = {} if "GOMP_SPINCOUNT" in os.environ else {"OMP_WAIT_POLICY": "passive"}
    limit = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {"PYTHONHASHSEED": str(seed % 2**32), **spins, **limit, **os.environ}


class ForkServerLauncher:
    """Forks each stage from one process that has loaded torch (`nanprobe.target.server`)."""

    def __init__(self, seed: int, threads: int | None = None) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in __exit__)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                _command("server", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(theirs.fileno(),),
                env=_environment(seed, threads),
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        self._ready = False

    def await_ready(self, watch: Callable[[], None]) -> None:
        """Return when torch is loaded. Raises CouldNotConclude when it cannot be, or the server is gone."""
        try:
            self._await_ready(watch)
        except (EOFError, ConnectionError) as error:
            raise CouldNotConclude(self._explain_lost_server()) from error

    def run(self, request: StageRequest, log: OutputLog, timeout: float, watch: Callable[[], None]) -> Exit:
        """Run one stage to its end. Raises CouldNotConclude when torch cannot be loaded or the server is gone."""
        try:
            self._await_ready(watch)
            read_end, write_end = os.pipe()
            log.start(read_end)
            try:
                send(self._socket, Start(request), write_end)
            finally:
                os.close(write_end)
            try:
                return self._await_end(timeout, watch)
            except BaseException:
                self._stop()
                raise
            finally:
                log.finish()
        except (EOFError, ConnectionError) as error:
            raise CouldNotConclude(self._explain_lost_server()) from error

    def _await_ready(self, watch: Callable[[], None]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._ready:
            message = self._next_message(POLL_SECONDS)
            watch()
            if isinstance(message, NotReady):
                raise CouldNotConclude(f"cannot load torch in {sys.executable}:\n{message.message.rstrip()}")
            self._ready = isinstance(message, Ready)
            if time.monotonic() > deadline:
                raise CouldNotConclude(f"torch was not loaded within {READY_SECONDS:g} s in {sys.executable}")

    def _await_end(self, timeout: float, watch: Callable[[], None]) -> Exit:
        started = time.monotonic()
        while time.monotonic() - started < timeout:
            message = self._next_message(POLL_SECONDS)
            watch()
            if isinstance(message, Ended):
                return Exit(message.status, False, time.monotonic() - started)
        if STACK_SIGNAL is not None:
            send(self._socket, Signal(STACK_SIGNAL, group=False))
            self._drain_until(STACK_SECONDS)
        return Exit(self._stop(), True, time.monotonic() - started)

    def _stop(self) -> int:
        """End the running stage: asked first, then forced; returns its status."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):
                send(self._socket, Signal(number))
            if (status := self._drain_until(GRACE_SECONDS)) is not None:
                return status
        return -int(signal.SIGKILL)

    def _drain_until(self, seconds: float) -> int | None:
        """The stage's status if it ends within `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(EOFError, ConnectionError):
                message = self._next_message(left)
                if isinstance(message, Ended):
                    return message.status
        return None

    def _next_message(self, seconds: float) -> Ready | NotReady | Started | Ended | Start | Signal | None:
        readable, _, _ = select.select([self._socket], [], [], seconds)
        return receive(self._socket)[0] if readable else None

    def _explain_lost_server(self) -> str:
        status = self._server.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        detail = "".join(f"\n  {line}" for line in lines[-5:])
        return f"the process that runs the stages ended with status {status}{detail}"

    def __enter__(self) -> ForkServerLauncher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()
        self._server.kill()  # no stage runs any more, and it holds nothing that has to be written
        self._server.wait()
        self._errors.close()


class SpawnLauncher:
    """Starts a fresh interpreter for each stage, where there is no fork; slower by an import of torch each."""

    def __init__(self, seed: int, threads: int | None = None) -> None:
        self._seed, self._threads = seed, threads

    def await_ready(self, watch: Callable[[], None]) -> None:
        """Each stage loads its own torch; there is nothing to wait for."""

    def run(self, request: StageRequest, log: OutputLog, timeout: float, watch: Callable[[], None]) -> Exit:
        """Run one stage to its end."""
        started = time.monotonic()
        child = subprocess.Popen(
            _command("spawned", ""),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(self._seed, self._threads),
        )
        assert child.stdin is not None and child.stdout is not None  # both are pipes, as asked for above
        log.start(os.dup(child.stdout.fileno()))
        child.stdout.close()
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin:
                child.stdin.write(pickle.dumps(request))
            while time.monotonic() - started < timeout:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return Exit(child.wait(POLL_SECONDS), False, time.monotonic() - started)
                watch()
            return Exit(self._stop(child), True, time.monotonic() - started)
        finally:
            self._stop(child)
            log.finish()

    def _stop(self, child: subprocess.Popen[bytes]) -> int:
        for end in (child.terminate, child.kill):
            if child.poll() is None:
                end()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(GRACE_SECONDS)
        return child.wait()

    def __enter__(self) -> SpawnLauncher:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None
