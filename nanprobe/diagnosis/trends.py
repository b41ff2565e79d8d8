"""How loss, gradients and weights moved over the steps before a failure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from nanprobe.records import ExternalKind, StageTrace, StepRecord

# Growth that no healthy training shows within one short run: our choice, far above a loss spike (10 to 100).
DIVERGING_RATIO = 1e3
# Weights move slowly; a hundredfold largest weight is far beyond what training does in 50 steps. Our choice.
DIVERGING_WEIGHT_RATIO = 1e2
# Once FP32 itself has overflowed, and not at an edge of some function, tenfold weights are reason enough: our choice.
OVERFLOWING_WEIGHT_RATIO = 1e1


@dataclass(frozen=True, slots=True)
class Growth:
    """One quantity: where it started, where it was last finite, and when it first passed the threshold."""

    name: str  # "loss", "gradient", "weights"
    start: float  # the first value known
    first: float  # the typical value of the first third, which growth is measured against
    middle: float  # the typical value of the middle third
    last: float
    threshold: float
    step: int | None  # first step at which last/first passed the threshold

    @property
    def ratio(self) -> float:
        """How many times larger it was at the end."""
        return self.last / self.first if self.first > 0 else 1.0

    @property
    def diverging(self) -> bool:
        """Whether it grew beyond what training does."""
        return self.step is not None and self.ratio >= self.threshold


@dataclass(frozen=True, slots=True)
class Trend:
    """The three quantities together."""

    growths: tuple[Growth, ...]

    @property
    def diverging(self) -> bool:
        """Whether any of them grew by orders of magnitude and stayed up."""
        return any(g.diverging for g in self.growths)

    @property
    def leader(self) -> Growth | None:
        """The one that grew first; the one that grew most when they began together."""
        growing = [g for g in self.growths if g.diverging]
        if not growing:
            return None
        return min(growing, key=lambda g: (g.step if g.step is not None else 0, -g.ratio))

    def named(self, name: str) -> Growth | None:
        """The growth of one quantity, if it was measured."""
        return next((g for g in self.growths if g.name == name), None)


def trend_before(trace: StageTrace, step: int | None, weight_ratio: float = DIVERGING_WEIGHT_RATIO) -> Trend:
    """The trend over the finite part of the steps before `step` (all steps for None).

    Of `step` itself only the weights count: they are what the steps before made of them, and its loss and gradient may
    be those of one bad batch.
    """
    steps = [s for s in trace.steps if step is None or s.index < step]
    weights = [s for s in trace.steps if step is None or s.index <= step]
    series = (
        _growth("loss", [(s.index, _finite_abs(s.loss)) for s in steps], DIVERGING_RATIO),
        _growth("gradient", [(s.index, _unscaled_gradient(s)) for s in steps], DIVERGING_RATIO),
        _growth(
            "weights",
            [*_initial_weights(trace), *((s.index, _largest(s.weight_abs_max)) for s in weights)],
            weight_ratio,
        ),
    )
    return Trend(tuple(g for g in series if g is not None))


def _initial_weights(trace: StageTrace) -> list[tuple[int, float | None]]:
    """The largest weight before the first step, where that was looked at: so one wild update is growth too."""
    first = next((d for d in trace.deep_steps if d.step == (trace.steps[0].index if trace.steps else 0)), None)
    if first is None:
        return []
    # A bare parameter may not have a name yet when it is first read; then its shape tells.
    shapes = {p.shape for p in trace.parameters}
    sizes = [
        e.stats.abs_max
        for e in first.externals
        if e.kind is ExternalKind.PARAMETER or (e.name is None and e.stats.shape and e.stats.shape in shapes)
    ]
    return [(first.step - 1, max(sizes))] if sizes else []


def _growth(name: str, points: Sequence[tuple[int, float | None]], threshold: float) -> Growth | None:
    known = [(i, v) for i, v in points if v is not None]
    if len(known) < 2:
        return None
    # The first third is "before": one lucky small loss at the start must not look like growth afterwards.
    early = [v for _, v in known[: max(1, len(known) // 3)]]
    halfway = [v for _, v in known[len(known) // 3 : max(len(known) // 3 + 1, 2 * len(known) // 3)]]
    first, last = median(early), known[-1][1]
    # Where the start is exactly 0 there is no ratio; the smallest value that counts is taken for it.
    first = max(first, 1e-12)
    passed = next((i for i, v in known if v >= threshold * first), None)
    return Growth(name, known[0][1], first, median(halfway), last, threshold, passed)


def _finite_abs(value: float | None) -> float | None:
    return abs(value) if value is not None and math.isfinite(value) else None


def _unscaled_gradient(step: StepRecord) -> float | None:
    largest = _largest(step.grad_abs_max)
    return largest / step.loss_scale if largest is not None and step.loss_scale else largest


def _largest(values: Iterable[float | None]) -> float | None:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return max(finite) if finite else None
