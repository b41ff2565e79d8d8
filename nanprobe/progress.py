"""Live progress on stderr while stages run: a bar on a terminal, plain lines everywhere else, or nothing at all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from nanprobe.records import Outcome, StageTrace

if TYPE_CHECKING:
    import rich.progress

STEPS_A_LINE, SECONDS_A_LINE = 10, 2.0  # how often plain progress speaks, whichever comes first


class Progress:
    """The quiet progress, and what every progress can be told. Used as a context manager."""

    def stage_started(self, name: str, total: int | None) -> None:
        """A stage begins; `total` is the number of steps asked for, None when it runs to the script's end."""

    def step(self, record: Mapping[str, Any]) -> None:
        """One step is done: a dictionary of StepRecord's fields, as `nanprobe.storage.TraceTail` gives them."""

    def stage_finished(self, trace: StageTrace, name: str | None = None) -> None:
        """The stage has ended, in whatever way; `name` where it started under another than the stage's."""

    def notice(self, text: str) -> None:
        """One thing the user should know now."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None


def open_progress(stream: IO[str], *, quiet: bool = False) -> Progress:
    """A bar when the stream is a terminal, else plain lines; nothing when quiet."""
    if quiet:
        return Progress()
    return BarProgress(stream) if stream.isatty() else PlainProgress(stream)


class PlainProgress(Progress):
    """Lines for logs: one when a stage starts, one every 10 steps or 2 seconds, one when it ends."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._name, self._tally = "", _Tally(None)
        self._said_step, self._said_at = 0, 0.0

    def stage_started(self, name: str, total: int | None) -> None:
        """Says which stage starts, and over how many steps."""
        self._name, self._tally = name, _Tally(total)
        self._said_step, self._said_at = 0, self._clock()
        self._say(f"{name}: started" + ("" if total is None else f", {total} steps"))

    def step(self, record: Mapping[str, Any]) -> None:
        """Speaks when enough steps or seconds have passed since the last line."""
        self._tally.add(record)
        now = self._clock()
        if self._tally.steps - self._said_step >= STEPS_A_LINE or now - self._said_at >= SECONDS_A_LINE:
            self._said_step, self._said_at = self._tally.steps, now
            self._say(f"{self._name}: step {self._tally.show_steps()}  {self._tally.show_numbers()}".rstrip())

    def stage_finished(self, trace: StageTrace, name: str | None = None) -> None:
        """Says how it ended."""
        self._say(describe_end(trace, name))

    def notice(self, text: str) -> None:
        """Says it."""
        self._say(_one_line(text))

    def _say(self, text: str) -> None:
        self._stream.write(f"nanprobe: {text}\n")
        self._stream.flush()


class BarProgress(Progress):
    """A bar for each stage, with the loss, the loss scale and the skipped steps beside it."""

    def __init__(self, stream: IO[str]) -> None:
        # Late: rich is only paid for where there is a terminal to draw on.
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description:<5}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[steps]:>7}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            console=Console(file=stream, highlight=False, markup=False, emoji=False),
            refresh_per_second=8,
        )
        self._task: rich.progress.TaskID | None = None
        self._tally = _Tally(None)

    def stage_started(self, name: str, total: int | None) -> None:
        """Adds the stage's bar."""
        self._tally = _Tally(total)
        self._task = self._bar.add_task(name, total=total, steps=self._tally.show_steps(), numbers="")

    def step(self, record: Mapping[str, Any]) -> None:
        """Moves the bar on."""
        self._tally.add(record)
        if self._task is not None:
            steps, numbers = self._tally.show_steps(), self._tally.show_numbers()
            self._bar.update(self._task, completed=self._tally.steps, steps=steps, numbers=numbers)

    def stage_finished(self, trace: StageTrace, name: str | None = None) -> None:
        """Stops the bar's clock, where it is; a stage that did not go through says so beside it."""
        if self._task is None:
            self._bar.console.print(describe_end(trace, name))
            return
        steps = len(trace.steps)
        numbers = self._tally.show_numbers()
        if trace.outcome is not Outcome.COMPLETED:
            numbers = f"{trace.outcome.value}  {numbers}".rstrip()
        # The stage may rightly end before the steps asked for; its bar is full then all the same.
        self._bar.update(self._task, total=max(steps, 1), completed=steps, steps=str(steps), numbers=numbers)
        self._bar.stop_task(self._task)
        self._task = None

    def notice(self, text: str) -> None:
        """Prints it above the bars."""
        self._bar.console.print(_one_line(text))

    def __enter__(self) -> BarProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.stop()


class _Tally:
    """What has been seen of a stage so far, in words."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self.steps = self._skipped = 0
        self._loss: float | None = None
        self._loss_scale: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        self.steps += 1
        self._skipped += bool(record.get("skipped"))
        self._loss, self._loss_scale = record.get("loss"), record.get("loss_scale")

    def show_steps(self) -> str:
        return str(self.steps) if self._total is None else f"{self.steps}/{self._total}"

    def show_numbers(self) -> str:
        parts = []
        if self._loss is not None:
            parts.append(f"loss {_show(self._loss)}")
        if self._loss_scale is not None:
            parts.append(f"scale {self._loss_scale:g}")
        if self._skipped:
            parts.append(f"skipped {self._skipped}")
        return "  ".join(parts)


def describe_end(trace: StageTrace, name: str | None = None) -> str:
    """How a stage ended, on one line: "amp: completed, 50 steps in 1.9 s"."""
    text = f"{name or trace.name.value}: {trace.outcome.value}"
    if trace.outcome is not Outcome.SKIPPED:
        text += f", {len(trace.steps)} step{'' if len(trace.steps) == 1 else 's'} in {trace.seconds:.1f} s"
    return _one_line(f"{text}: {trace.reason}" if trace.reason else text)


def _show(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.4g}"
    return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")


def _one_line(text: str) -> str:
    """No line breaks and no escape sequences: the text may come from the user's script."""
    return "".join(character if character.isprintable() else " " for character in text)
