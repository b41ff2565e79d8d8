"""The safe window: the loss scales at which no recorded gradient overflows and none loses what it says.

A scale is safe for a tensor when it is safe in every recorded step. A gradient is *kept* at a scale when the elements
flushed to 0 carry little of its norm, and are either few or carry less than the format's own rounding costs:

    lost norm <= limit   and   (flushed share <= limit   or   lost norm <= half of the format's eps)

Both limits are our choice. 0.1% of the elements: below it even an optimizer that normalises each element (Adam) sees
the same gradient. 1% of the norm: far inside the noise between two batches. The last clause is there because softmax
and embedding gradients have long tails of elements that no scale could keep and that no sum would notice.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2 (scale up to just below overflow); Zhao
et al., "Adaptive Loss Scaling", 2019 (a bound on the flushed share, layer by layer).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from nanprobe.formats import FloatFormat
from nanprobe.loss_scale.outcomes import SCALE_EXPONENTS, Booleans, Integers, Outcomes, ScaleRow

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a gradient a scale may flush."""

    flushed_fraction: float = 1e-3  # of the non-zero elements
    lost_norm_fraction: float = 1e-2  # of the L2 norm


@dataclass(frozen=True, slots=True)
class Window:
    """The safe scales, a power of two at each end, both safe; none is safe where the ends are in the wrong order."""

    lowest_scale: float | None  # lowest that keeps every gradient; None when even 2^32 does not
    highest_scale: float | None  # highest that overflows none; None when even 2^0 does
    low_set_by: str | None = None  # what needs `lowest_scale`; None when nothing needs more than 2^0
    high_set_by: str | None = None  # what overflows above `highest_scale`; None when nothing does up to 2^32

    @property
    def is_safe(self) -> bool:
        """Whether there is a safe scale at all."""
        low, high = self.lowest_scale, self.highest_scale
        return low is not None and high is not None and low <= high

    @property
    def bits(self) -> int | None:
        """How many times the lowest safe scale can be doubled; negative when none is safe, None without both ends."""
        if self.lowest_scale is None or self.highest_scale is None:
            return None
        return round(math.log2(self.highest_scale / self.lowest_scale))

    @property
    def overflows_from(self) -> float | None:
        """Lowest power-of-two scale that overflows; None when 2^32 does not."""
        if self.highest_scale is None:
            return 2.0 ** SCALE_EXPONENTS[0]
        return None if self.high_set_by is None else self.highest_scale * 2

    def contains(self, scale: float) -> bool:
        """Whether a scale lies in the window; exact for powers of two."""
        low, high = self.lowest_scale, self.highest_scale
        return low is not None and high is not None and low <= scale <= high


@dataclass(frozen=True, slots=True)
class LayerWindow:
    """One layer: its window, and what every scale does to it."""

    layer: str  # module path, "" for the root module
    window: Window  # set by tensors of the layer
    tensors: int  # gradient tensors recorded in it, parameters and activations
    grad_abs_max: float  # largest finite unscaled gradient in any step
    scales: tuple[ScaleRow, ...]  # 2^0 to 2^32
    below: ScaleRow | None = None  # the scale below the window, and the one tensor and step that need more than it


@dataclass(frozen=True, slots=True)
class StepWindow:
    """One recorded step, all tensors together: what a scaler policy would have met in it."""

    step: int
    window: Window  # set by layers
    grad_abs_max: float  # largest finite unscaled gradient
    nonfinite: bool  # some gradient is not finite before rounding: it overflows at every scale
    scales: tuple[ScaleRow, ...]


def find_window(outcomes: Outcomes, fmt: FloatFormat, limits: Limits) -> Window:
    """The window over everything; its ends are set by layers."""
    low, high = find_edges(outcomes, fmt, limits)
    return _make_window(outcomes, range(len(outcomes.histograms)), low, high, by_layer=True)


def find_layer_windows(outcomes: Outcomes, fmt: FloatFormat, limits: Limits) -> tuple[LayerWindow, ...]:
    """One window a layer, in the order in which the layers first appear."""
    low, high = find_edges(outcomes, fmt, limits)
    groups = _group(histogram.layer for histogram in outcomes.histograms)
    return tuple(
        LayerWindow(
            layer=layer,
            window=_make_window(outcomes, rows, low, high, by_layer=False),
            tensors=len({(outcomes.histograms[row].kind, outcomes.histograms[row].name) for row in rows}),
            grad_abs_max=_largest(outcomes, rows),
            scales=outcomes.scale_rows(rows),
            below=_below(outcomes, rows, low),
        )
        for layer, rows in groups.items()
    )


def find_step_windows(outcomes: Outcomes, fmt: FloatFormat, limits: Limits) -> tuple[StepWindow, ...]:
    """One window a recorded step, in the order of the steps."""
    low, high = find_edges(outcomes, fmt, limits)
    groups = _group(histogram.step for histogram in outcomes.histograms)
    return tuple(
        StepWindow(
            step=step,
            window=_make_window(outcomes, rows, low, high, by_layer=True),
            grad_abs_max=_largest(outcomes, rows),
            nonfinite=any(outcomes.histograms[row].nonfinite for row in rows),
            scales=outcomes.scale_rows(rows),
        )
        for step, rows in sorted(groups.items())
    )


def find_edges(outcomes: Outcomes, fmt: FloatFormat, limits: Limits) -> tuple[Integers, Integers]:
    """For each histogram the column of the lowest scale that keeps it, and of the highest that does not overflow it.

    The first is the number of columns where none keeps it, the second -1 where all overflow.
    """
    lost, flushed = outcomes.lost_norm_fraction, outcomes.flushed_fraction
    negligible = fmt.eps / 2
    keeps = (lost <= limits.lost_norm_fraction) & ((flushed <= limits.flushed_fraction) | (lost <= negligible))
    return _first_true(keeps), _first_true(outcomes.overflows) - 1


def _first_true(table: Booleans) -> Integers:
    """Column of the first True in each row; the number of columns where there is none."""
    found: Integers = np.where(table.any(axis=1), table.argmax(axis=1), table.shape[1]).astype(np.int64)
    return found


def _make_window(outcomes: Outcomes, rows: Iterable[int], low: Integers, high: Integers, by_layer: bool) -> Window:
    chosen = list(rows)
    columns, last = outcomes.exponents, len(outcomes.exponents) - 1
    if not chosen:
        return Window(2.0 ** columns[0], 2.0 ** columns[-1])
    # The first of equals sets the edge; largest gradient first among those that overflow alike.
    needs = max(chosen, key=lambda row: low[row])
    limits = min(chosen, key=lambda row: (high[row], -outcomes.histograms[row].unscaled_abs_max))
    lowest, highest = int(low[needs]), int(high[limits])

    def name(row: int) -> str:
        return outcomes.histograms[row].layer if by_layer else outcomes.histograms[row].name

    return Window(
        lowest_scale=2.0 ** columns[lowest] if lowest <= last else None,
        highest_scale=2.0 ** columns[highest] if highest >= 0 else None,
        low_set_by=name(needs) if lowest > 0 else None,
        high_set_by=name(limits) if highest < last else None,
    )


def _below(outcomes: Outcomes, rows: Sequence[int], low: Integers) -> ScaleRow | None:
    """What the highest scale that is too low does to the tensor that needs most, in that one step."""
    needs = max(rows, key=lambda row: low[row])
    return outcomes.scale_rows([needs])[int(low[needs]) - 1] if low[needs] else None


def _largest(outcomes: Outcomes, rows: Sequence[int]) -> float:
    return max((outcomes.histograms[row].unscaled_abs_max for row in rows), default=0.0)


def _group(keys: Iterable[Key]) -> dict[Key, list[int]]:
    groups: dict[Key, list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    return groups
