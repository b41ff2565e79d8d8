"""Timing two ways of training against each other: short turns, alternating, and the median of the turns' ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import torch

from benchmarks.models import Trainer


@dataclass(frozen=True)
class Contender:
    """One way of training a model.

    `build` makes the trainer; `enter` is what is active around a turn of steps. Entering and leaving is not timed, nor
    is the turn's first step, in which names are collected and buffers are made.
    """

    name: str
    build: Callable[[], Trainer]
    enter: Callable[[Trainer], AbstractContextManager[object]]
    target: float | None = None  # the ratio promised
    against: str = "plain"  # the contender it is measured against
    note: str = ""


@dataclass(frozen=True)
class Ratio:
    """How much longer a step takes than the other contender's step."""

    median: float
    low: float  # quartiles over the turns
    high: float
    seconds: float  # median seconds of one step
    base_seconds: float
    turns: int

    def as_json(self) -> dict[str, float]:
        """Plain numbers by name."""
        return asdict(self)


def compare(contender: Contender, base: Contender, budget_seconds: float, steps: int = 3, turns: int = 5) -> Ratio:
    """The ratio of `contender` to `base`: at least `turns` turns of each, more while the budget lasts.

    Both run in turns in one process, A B then B A, so a machine that gets slower or hotter slows both.
    """
    runners = [(contender, contender.build()), (base, base.build())]
    for way, trainer in runners:
        turn(way, trainer, 1)
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + budget_seconds
    while len(times) < turns or time.perf_counter() < end:
        order = runners if len(times) % 2 == 0 else runners[::-1]
        measured = {way.name: turn(way, trainer, steps) for way, trainer in order}
        times.append((measured[contender.name], measured[base.name]))
    ratios = [a / b for a, b in times]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    seconds, base_seconds = (statistics.median(column) for column in zip(*times, strict=True))
    return Ratio(statistics.median(ratios), low, high, seconds, base_seconds, len(times))


def turn(way: Contender, trainer: Trainer, steps: int) -> float:
    """Median seconds of one step in a turn of `steps` steps after one that does not count."""
    seconds = []
    with way.enter(trainer):
        trainer.step()
        for _ in range(steps):
            wait_for_device()
            start = time.perf_counter()
            trainer.step()
            wait_for_device()
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def wait_for_device() -> None:
    """Returns when the GPU, if there is one, has done what was asked of it."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
