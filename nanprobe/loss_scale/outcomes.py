"""What every power-of-two loss scale would do to every recorded gradient: overflow, flushed elements, norm lost.

Overflow is exact: it follows from the exact largest magnitude. Flush is exact too where the histogram counts its exact
powers of two: every format here has a power of two as flush threshold, so a bin lies wholly on one side of it, except
for the elements that are equal to the threshold (which round to 0). Without `powers` those count as kept, and
`undecided` bounds the error: all elements of the bin that begins at the threshold; in full-precision data about one in
2^23 of that bin is such an element.

Source: IEEE 754-2019 section 4.3.1, ties to even: half of the smallest subnormal rounds to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanprobe.formats import FloatFormat
from nanprobe.loss_scale.histograms import ExponentHistogram, exponent_of

SCALE_EXPONENTS = range(33)  # 2^0 to 2^32: from no scaling to the largest initial scale in use, Megatron-LM's
Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """What one loss scale does to a set of tensors, over all recorded steps."""

    scale: float
    overflowing_tensors: int  # tensors that overflow in at least one step
    overflowing_steps: int  # steps in which at least one tensor overflows
    flushed_elements: int  # non-zero elements that become 0, over all steps
    flushed_fraction: float  # of all non-zero elements; 0.0 when there is none
    lost_norm_fraction: float  # L2 norm of the flushed elements, of that of all elements, unscaled
    undecided: int = 0  # elements that may be equal to the threshold, and then are flushed too


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Rows are histograms, columns the scales 2^e for e in `exponents`; squares are without the loss scale."""

    histograms: tuple[ExponentHistogram, ...]
    exponents: tuple[int, ...]
    overflows: Booleans  # (rows, columns)
    flushed: Integers  # elements, (rows, columns)
    undecided: Integers  # elements, (rows, columns)
    lost_squares: Floats  # sum of squares of the flushed elements, (rows, columns)
    nonzero: Integers  # (rows,)
    squares: Floats  # (rows,)

    @property
    def flushed_fraction(self) -> Floats:
        """Flushed share of the non-zero elements, (rows, columns)."""
        return _divide(self.flushed.astype(np.float64), self.nonzero[:, None].astype(np.float64))

    @property
    def lost_norm_fraction(self) -> Floats:
        """Share of the L2 norm that the flushed elements carried, (rows, columns)."""
        return np.sqrt(_divide(self.lost_squares, self.squares[:, None]))

    def scale_rows(self, rows: Sequence[int] | None = None) -> tuple[ScaleRow, ...]:
        """One row a scale, over all histograms or those of the given rows."""
        chosen = list(range(len(self.histograms))) if rows is None else list(rows)
        names, steps = self._number(chosen, "name"), self._number(chosen, "step")
        overflows, squares = self.overflows[chosen], self.squares[chosen].sum()
        flushed, lost = self.flushed[chosen].sum(axis=0), self.lost_squares[chosen].sum(axis=0)
        undecided, nonzero = self.undecided[chosen].sum(axis=0), int(self.nonzero[chosen].sum())
        return tuple(
            ScaleRow(
                scale=2.0**exponent,
                overflowing_tensors=len(set(names[overflows[:, column]].tolist())),
                overflowing_steps=len(set(steps[overflows[:, column]].tolist())),
                flushed_elements=int(flushed[column]),
                flushed_fraction=int(flushed[column]) / nonzero if nonzero else 0.0,
                lost_norm_fraction=float(np.sqrt(lost[column] / squares)) if squares else 0.0,
                undecided=int(undecided[column]),
            )
            for column, exponent in enumerate(self.exponents)
        )

    def _number(self, rows: Sequence[int], what: str) -> Integers:
        """A number for each row, the same for the same tensor (`name`) or the same step."""
        keys = [self._key(self.histograms[row], what) for row in rows]
        order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        return np.array([order[key] for key in keys], dtype=np.int64)

    @staticmethod
    def _key(histogram: ExponentHistogram, what: str) -> tuple[object, ...]:
        return (histogram.step,) if what == "step" else (histogram.kind, histogram.name)


def predict_outcomes(
    histograms: Sequence[ExponentHistogram], fmt: FloatFormat, exponents: Sequence[int] = SCALE_EXPONENTS
) -> Outcomes:
    """The outcome of every scale 2^e for every histogram, in the given number format.

    An element that is not finite before rounding counts as an overflow at every scale.
    """
    shape = (len(histograms), len(exponents))
    overflows, flushed = np.zeros(shape, np.bool_), np.zeros(shape, np.int64)
    undecided, lost = np.zeros(shape, np.int64), np.zeros(shape, np.float64)
    columns = np.asarray(exponents, np.int64)
    for row, histogram in enumerate(histograms):
        overflows[row] = [_overflows(histogram, exponent, fmt) for exponent in exponents]
        flushed[row], undecided[row], lost[row] = _flush(histogram, columns, fmt)
    return Outcomes(
        histograms=tuple(histograms),
        exponents=tuple(exponents),
        overflows=overflows,
        flushed=flushed,
        undecided=undecided,
        lost_squares=lost,
        nonzero=np.array([histogram.nonzero for histogram in histograms], np.int64),
        squares=np.array([sum(h.sums_of_squares) / h.loss_scale**2 for h in histograms], np.float64),
    )


def _overflows(histogram: ExponentHistogram, exponent: int, fmt: FloatFormat) -> bool:
    return histogram.nonfinite > 0 or fmt.overflows(histogram.unscaled_abs_max * 2.0**exponent)


def _flush(histogram: ExponentHistogram, columns: Integers, fmt: FloatFormat) -> tuple[Integers, Integers, Floats]:
    """Flushed elements, undecided ones, and the sum of squares lost (unscaled), at each scale."""
    threshold = exponent_of(fmt.flush_threshold)
    size = len(histogram.counts)
    # How many of the lowest bins lie wholly below the threshold once the exponents are moved to each scale.
    at_threshold = threshold - histogram.offset - (columns - exponent_of(histogram.loss_scale))
    below = np.clip(at_threshold, 0, size)
    flushed = np.concatenate([[0], np.cumsum(histogram.counts, dtype=np.int64)])[below]
    lost = np.concatenate([[0.0], np.cumsum(histogram.sums_of_squares, dtype=np.float64)])[below]
    straddles = (at_threshold >= 0) & (at_threshold < size)
    bins = np.where(straddles, at_threshold, 0)
    undecided = np.zeros_like(columns)
    if size and histogram.powers:
        equal = np.where(straddles, np.asarray(histogram.powers, np.int64)[bins], 0)
        flushed = flushed + equal
        lost = lost + equal * np.exp2(2.0 * (bins + histogram.offset))
    elif size:
        undecided = np.where(straddles, np.asarray(histogram.counts, np.int64)[bins], 0)
    return flushed, undecided, lost / histogram.loss_scale**2


def _divide(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.zeros_like(part), where=np.broadcast_to(whole, part.shape) > 0)
