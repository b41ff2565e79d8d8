"""The fork server: a process that has loaded torch once, and forks one child for each stage.

It runs none of the user's code itself, starts no thread and calls no torch operation, so a fork of it is a fresh
interpreter with torch in it. It differs from multiprocessing's forkserver where that would change what the script sees:
the script's process is a main process with an untouched `multiprocessing` of its own, and nobody's `__main__` is
imported again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback

from nanprobe.plan import StageRequest
from nanprobe.target import processes
from nanprobe.target.status import INTERNAL_ERROR_STATUS
from nanprobe.target.wire import Ended, NotReady, Ready, Signal, Start, Started, receive, send

# What nearly every script uses. The first optimizer of any script loads `torch._dynamo`, which takes as long as torch.
PRELOAD = ("numpy", "torch", "torch.nn", "torch.optim", "torch.utils.data", "torch._dynamo", "torch.testing")
OWN = ("nanprobe.target.child", "nanprobe.target.overlay", "nanprobe.probe.session")
_POLL_SECONDS = 0.02


def main(descriptor: int) -> None:
    """Serve the launcher at the other end of a socket until it closes it."""
    connection = socket.socket(fileno=descriptor)
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    processes.die_with_parent()
    started = time.monotonic()
    try:
        _preload()
    except Exception:
        _tell(connection, NotReady(traceback.format_exc(limit=-3)))
        return
    processes.die_with_parent(False)  # from here on a closed socket is noticed, and the stage is stopped first
    gc.collect()
    gc.freeze()  # the collector of a forked child then leaves the shared pages alone
    _tell(connection, Ready(time.monotonic() - started))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            message, output = receive(connection)
            if isinstance(message, Start) and output is not None:
                _run_stage(connection, message.request, output)


def _preload() -> None:
    # A thread that spins while it waits takes the core from the one it waits for when another program is busy: stages
    # ran up to ten times slower beside a second run. OpenMP reads this when torch loads it; the numbers stay the same.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for name in PRELOAD:
        with contextlib.suppress(ImportError) if name != "torch" else contextlib.nullcontext():
            importlib.import_module(name)
    for name in OWN:
        importlib.import_module(name)


def _tell(connection: socket.socket, message: Ready | NotReady | Started | Ended) -> None:
    with contextlib.suppress(OSError):  # a launcher that is gone is noticed by the next receive
        send(connection, message)


def _run_stage(connection: socket.socket, request: StageRequest, output: int) -> None:
    """Fork a child for one stage, and stay until it and everything it started are gone."""
    pid = os.fork()
    if pid == 0:
        _become_child(connection, request, output)
    os.close(output)
    _tell(connection, Started(pid))
    try:
        status = _wait(connection, pid)
    except (EOFError, ConnectionError):
        processes.end_group(pid)
        os.waitpid(pid, 0)
        processes.end_orphans()
        raise
    processes.end_orphans()
    _tell(connection, Ended(status))


def _become_child(connection: socket.socket, request: StageRequest, output: int) -> None:
    status = INTERNAL_ERROR_STATUS
    try:
        connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from nanprobe.target.child import run_child

        status = run_child(request, output)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def _wait(connection: socket.socket, pid: int) -> int:
    """Wait for a child, passing on the signals that the launcher asks for; returns its exit status."""
    while True:
        readable, _, _ = select.select([connection], [], [], _POLL_SECONDS)
        if readable:
            message, _ = receive(connection)
            if isinstance(message, Signal):
                with contextlib.suppress(ProcessLookupError):
                    (os.killpg if message.group else os.kill)(pid, message.number)
        if processes.has_ended(pid):
            processes.end_group(pid)  # before the pid is given back, so that it cannot hit a stranger
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
