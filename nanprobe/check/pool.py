"""Several checks at once: threads that wait for child processes, and outcomes in the order that was asked for."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Generator, Sequence
from typing import Protocol

from nanprobe.check.bench import Bench
from nanprobe.check.planning import Check
from nanprobe.check.run import CheckRun
from nanprobe.errors import NanprobeError
from nanprobe.findings import Status
from nanprobe.recipe.outcome import CheckOutcome, Comparison

INTERRUPTED = "interrupted by Ctrl-C"
_POLL_SECONDS = 0.2


class Listener(Protocol):
    """Hears of each check, from the thread that runs it."""

    def started(self, name: str) -> None:
        """It begins."""

    def ended(self, name: str) -> None:
        """It is over, in whatever way; also said of one that never began."""


def run_checks(checks: Sequence[Check], jobs: int, listener: Listener) -> Generator[CheckOutcome, None, None]:
    """Run the checks, so many at a time; outcomes come in the order of the checks, each as soon as it is known.

    After Ctrl-C what was running and what had not begun comes as inconclusive, and then KeyboardInterrupt goes on up.
    """
    interrupted = False
    with _Pool(checks, jobs, listener) as pool:
        for number in range(len(checks)):
            while (outcome := pool.outcome(number)) is None:
                try:
                    pool.wait(number)
                except KeyboardInterrupt:
                    interrupted = True
                    pool.stop()
            yield outcome
    if interrupted:
        raise KeyboardInterrupt


class _Pool:
    """Threads that each take the next check until none is left. What runs is in child processes; these only wait."""

    def __init__(self, checks: Sequence[Check], jobs: int, listener: Listener) -> None:
        self._listener = listener
        self._stopped = threading.Event()
        self._waiting: queue.SimpleQueue[tuple[int, Check]] = queue.SimpleQueue()
        self._outcomes: dict[int, CheckOutcome | BaseException] = {}
        self._over = [threading.Event() for _ in checks]
        for numbered in enumerate(checks):
            self._waiting.put(numbered)
        jobs = min(jobs, len(checks))
        threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None
        self._workers = [threading.Thread(target=self._work, args=(threads,)) for _ in range(jobs)]

    def __enter__(self) -> _Pool:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for worker in self._workers:
            worker.join()

    def stop(self) -> None:
        """End what runs, and begin nothing more."""
        self._stopped.set()

    def outcome(self, number: int) -> CheckOutcome | None:
        """Of a check that is over; an error of nanprobe's own in its thread is raised here."""
        outcome = self._outcomes.get(number)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def wait(self, number: int) -> None:
        """Until a check is over, but not for long: a signal is only seen between two waits."""
        self._over[number].wait(_POLL_SECONDS)

    def _work(self, threads: int | None) -> None:
        with Bench(threads, self._watch) as bench:
            while True:
                try:
                    number, check = self._waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._outcomes[number] = self._run(check, bench)
                except BaseException as error:
                    self._outcomes[number] = error
                self._listener.ended(check.recipe.name)
                self._over[number].set()

    def _run(self, check: Check, bench: Bench) -> CheckOutcome:
        if self._stopped.is_set():
            return _unfinished(check, f"{INTERRUPTED} before it began", 0.0)
        self._listener.started(check.recipe.name)
        started = time.monotonic()
        try:
            with bench.launcher(check.plan.seed) as launcher:
                started = time.monotonic()
                return CheckRun(check, launcher).run()
        except KeyboardInterrupt:
            return _unfinished(check, INTERRUPTED, time.monotonic() - started)
        except NanprobeError as error:
            return _unfinished(check, str(error), time.monotonic() - started)

    def _watch(self) -> None:
        if self._stopped.is_set():
            raise KeyboardInterrupt


def _unfinished(check: Check, reason: str, seconds: float) -> CheckOutcome:
    recipe = check.recipe
    return CheckOutcome(
        recipe.name, recipe.path, Comparison(reasons=(reason,)), seconds, Status.INCONCLUSIVE, about=recipe.about
    )
