"""The launcher that one check after the other uses: torch is loaded once, and everything can be stopped at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from nanprobe.plan import StageRequest
from nanprobe.target.launcher import Exit, Launcher, make_launcher
from nanprobe.target.output import OutputLog


class Bench:
    """One thread's launcher, kept from check to check as long as they want the same seed and it works."""

    def __init__(self, threads: int | None, watch: Callable[[], None]) -> None:
        self._threads, self._watch = threads, watch
        self._seed: int | None = None
        self._launcher: Launcher | None = None
        self._stack = ExitStack()

    @contextmanager
    def launcher(self, seed: int) -> Iterator[Launcher]:
        """A launcher that is ready. After an error it is not used again."""
        if self._launcher is None or self._seed != seed:
            self._stack.close()
            self._launcher = self._stack.enter_context(make_launcher(seed, self._threads))
            self._seed = seed
        try:
            self._launcher.await_ready(self._watch)
            yield _Watched(self._launcher, self._watch)
        except BaseException:
            self._launcher = None
            self._stack.close()
            raise

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _Watched:
    """A launcher whose stages are stopped when `stop` raises."""

    def __init__(self, launcher: Launcher, stop: Callable[[], None]) -> None:
        self._launcher, self._stop = launcher, stop

    def await_ready(self, watch: Callable[[], None]) -> None:
        """As the launcher's own."""
        self._launcher.await_ready(watch)

    def run(self, request: StageRequest, log: OutputLog, timeout: float, watch: Callable[[], None]) -> Exit:
        """As the launcher's own, until `stop` raises."""

        def watch_both() -> None:
            self._stop()
            watch()

        return self._launcher.run(request, log, timeout, watch_both)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        return None
