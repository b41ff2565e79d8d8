"""Scaler policies replayed over what was recorded of each step, and over 100,000 steps drawn from it.

A replay needs no gradients: at each step the scale overflows or not, which the step's largest gradient decides, and
flushes a share that was worked out for every power of two. Between two changes of scale nothing happens, so a replay
jumps from change to change.

Source for the extension: Politis and Romano, "A circular block-resampling procedure for stationary data", 1992; block
length n^(1/3), Hall, Horowitz and Jing, 1995. It assumes that later steps are like the recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from nanprobe.formats import FloatFormat
from nanprobe.loss_scale.histograms import exponent_of
from nanprobe.loss_scale.outcomes import SCALE_EXPONENTS, Booleans, Floats, Integers
from nanprobe.loss_scale.policies import ScalerPolicy, ScalerState
from nanprobe.loss_scale.window import StepWindow

EXTENDED_STEPS = 100_000
RESAMPLES = 8


@dataclass(frozen=True, slots=True)
class Replay:
    """What a policy did over a number of steps."""

    steps: int  # asked for
    skipped_steps: int
    taken_steps: int
    flushed_fraction: float | None  # mean over the steps taken, of non-zero elements; None when none was taken
    lowest_scale: float  # used in any step
    highest_scale: float
    stopped_at: int | None = None  # step at which the framework ends the training with an error

    @property
    def effective_step_fraction(self) -> float:
        """Share of the steps asked for that updated the weights."""
        return self.taken_steps / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the resamples."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The mean and the extremes."""
        return cls(fmean(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """A policy over the recorded steps, and extended."""

    policy: ScalerPolicy
    recorded: Replay
    extended_steps: int
    skipped_steps: Spread
    effective_step_fraction: Spread
    flushed_fraction: Spread | None  # None when no resample took a step
    lowest_scale: float  # in any resample
    highest_scale: float
    stopped: int  # resamples in which the framework ended the training with an error


@dataclass(slots=True)
class Path:
    """A sequence of recorded steps as a scaler meets them, each as often as it is drawn."""

    fmt: FloatFormat
    grad_abs_max: Floats  # largest unscaled gradient of each recorded step; infinite where no scale helps
    flushed: Floats  # flushed share of each recorded step at 2^0, 2^1, ..., (recorded steps, scales)
    indices: Integers  # the recorded step behind each step of the path
    _next: dict[float, Integers] = field(default_factory=dict)
    _sums: dict[int, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    def next_overflow(self, scale: float, start: int) -> int:
        """First step from `start` on that overflows at a scale; the number of steps when none does."""
        if scale not in self._next:
            size, fits = len(self), self._fits(scale)
            places = np.broadcast_to(np.int64(size), size)
            if not fits.all():
                places = np.where(fits[self.indices], size, np.arange(size))
                places = np.minimum.accumulate(places[::-1])[::-1]
            self._next[scale] = places.astype(np.int64, copy=False)
        return int(self._next[scale][start])

    def flushed_sum(self, scale: float, start: int, end: int) -> float:
        """Sum of the steps' flushed shares at a scale, taken at the power of two below it (an upper bound)."""
        column = min(max(exponent_of(scale), 0), SCALE_EXPONENTS[-1]) if scale > 0 else 0
        if column not in self._sums:
            self._sums[column] = np.concatenate([[0.0], np.cumsum(self.flushed[self.indices, column])])
        return float(self._sums[column][end] - self._sums[column][start])

    def draw(self, indices: Integers) -> Path:
        """The path made of the recorded steps with these indices."""
        return Path(self.fmt, self.grad_abs_max, self.flushed, indices)

    def _fits(self, scale: float) -> Booleans:
        with np.errstate(invalid="ignore"):  # infinite times 0 is NaN, and so does not fit
            scaled = self.grad_abs_max * scale
        threshold = self.fmt.overflow_threshold
        fits: Booleans = (scaled < threshold) if self.fmt.has_infinity else (scaled <= threshold)
        return fits


def make_path(steps: Sequence[StepWindow], fmt: FloatFormat) -> Path:
    """The recorded steps as a path, each once."""
    largest = [math.inf if step.nonfinite else step.grad_abs_max for step in steps]
    shares = [[row.flushed_fraction for row in step.scales] for step in steps]
    table = np.array(shares, np.float64).reshape(len(steps), -1)
    return Path(fmt, np.array(largest, np.float64), table, np.arange(len(steps), dtype=np.int64))


def replay(policy: ScalerPolicy, path: Path, observe: Callable[[int, int, float], None] | None = None) -> Replay:
    """What the policy does over the path; `observe` gets each stretch (first step, step behind it, scale)."""
    state, step, skipped, flushed = ScalerState.start(policy), 0, 0, 0.0
    lowest, highest, size = math.inf, 0.0, len(path)
    while step < size and not state.stopped:
        scale = state.scale
        lowest, highest = min(lowest, scale), max(highest, scale)
        good = min(path.next_overflow(scale, step) - step, state.steps_to_growth)
        flushed += path.flushed_sum(scale, step, step + good)
        behind = step + good
        if good:
            state.advance(good)
        # Growth before the overflow changes the scale, so the step is looked at anew.
        if behind < size and state.scale == scale and path.next_overflow(scale, behind) == behind:
            state.overflow()
            skipped, behind = skipped + 1, behind + 1
        if observe:
            observe(step, behind, scale)
        step = behind
    taken = step - skipped
    stopped_at = step - 1 if state.stopped else None
    return Replay(size, skipped, taken, flushed / taken if taken else None, lowest, highest, stopped_at)


def scales_by_step(policy: ScalerPolicy, path: Path) -> tuple[float, ...]:
    """The scale the policy uses in each step of a path."""
    scales: list[float] = []
    replay(policy, path, lambda first, behind, scale: scales.extend([scale] * (behind - first)))
    return tuple(scales)


def extend_path(path: Path, steps: int = EXTENDED_STEPS, resamples: int = RESAMPLES, seed: int = 0) -> tuple[Path, ...]:
    """Paths of many steps, made of blocks of the recorded ones drawn at random; the same for the same seed.

    Raises ValueError for a path without steps.
    """
    if not len(path):
        raise ValueError("extend_path: no recorded steps to draw from")
    generator = np.random.default_rng(seed)
    block = block_length(len(path))
    count = -(-steps // block)
    starts = generator.integers(len(path), size=(resamples, count))
    indices = (starts[:, :, None] + np.arange(block)) % len(path)
    return tuple(path.draw(row.reshape(-1)[:steps]) for row in indices)


def block_length(steps: int) -> int:
    """Steps in a block: the cube root, rounded up."""
    # Rounded first: the cube root of 27 is a little above 3 in floating point.
    return max(1, math.ceil(round(math.pow(steps, 1 / 3), 9)))


def judge_policy(policy: ScalerPolicy, path: Path, extended: Sequence[Path]) -> PolicyOutcome:
    """The policy over the recorded steps and over every extended path (one or more)."""
    runs = [replay(policy, each) for each in extended]
    shares = [run.flushed_fraction for run in runs if run.flushed_fraction is not None]
    return PolicyOutcome(
        policy=policy,
        recorded=replay(policy, path),
        extended_steps=runs[0].steps,
        skipped_steps=Spread.of([run.skipped_steps for run in runs]),
        effective_step_fraction=Spread.of([run.effective_step_fraction for run in runs]),
        flushed_fraction=Spread.of(shares) if shares else None,
        lowest_scale=min(run.lowest_scale for run in runs),
        highest_scale=max(run.highest_scale for run in runs),
        stopped=sum(run.stopped_at is not None for run in runs),
    )
