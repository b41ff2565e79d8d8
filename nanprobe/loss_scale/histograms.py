"""What one gradient tensor looked like, in powers of two: enough to know what every loss scale would do to it.

Every backward operation is linear in the gradient it receives, so at loss scale s a gradient is s times the unscaled
one. A loss scale that is a power of two moves each element's exponent by a whole number and leaves its mantissa alone:
one histogram of exponents, taken at one scale, therefore answers for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

PARAMETER, ACTIVATION = "parameter", "activation"
KINDS = (PARAMETER, ACTIVATION)
SQUARE_DIGITS = 6  # of a sum of squares when stored; the shares made from it are read to three


@dataclass(frozen=True, slots=True)
class ExponentHistogram:
    """The exponents of one gradient tensor in one step, before rounding, with the loss scale still in it.

    Bin i holds the elements with 2^(offset+i) <= |g| < 2^(offset+i+1). Any shape; `counts`, `sums_of_squares` and,
    where given, `powers` have one entry a bin. `merge_histograms` makes one record of several steps.

    Raises ValueError for a loss scale that is no power of two, and for bins that do not fit together.
    """

    name: str  # parameter, or the activation's name; unique among the tensors of its kind
    layer: str  # path of the module it belongs to, "" for the root
    kind: str  # PARAMETER | ACTIVATION
    step: int  # index of the optimizer step
    loss_scale: float  # factor in the gradient; a power of two, so that bins move without splitting
    offset: int  # exponent of the first bin
    counts: tuple[int, ...]  # finite non-zero elements
    sums_of_squares: tuple[float, ...]  # of the same elements, loss scale still in it
    zeros: int  # elements that are exactly 0
    nonfinite: int  # elements that are NaN or infinite before rounding to the low precision
    abs_max: float  # largest finite magnitude, exact; 0.0 when there is none
    powers: tuple[int, ...] = ()  # elements that are exactly 2^(offset+i); () when not counted

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"histogram of {self.name}: kind is {self.kind!r}; expected one of {', '.join(KINDS)}")
        if not is_power_of_two(self.loss_scale):
            raise ValueError(f"histogram of {self.name}: loss scale {self.loss_scale!r} is not a power of two")
        if len(self.sums_of_squares) != len(self.counts) or len(self.powers) not in (0, len(self.counts)):
            raise ValueError(f"histogram of {self.name}: counts, sums_of_squares and powers differ in length")

    @property
    def nonzero(self) -> int:
        """Finite elements that are not 0."""
        return sum(self.counts)

    @property
    def numel(self) -> int:
        """All elements."""
        return self.nonzero + self.zeros + self.nonfinite

    @property
    def unscaled_abs_max(self) -> float:
        """Largest finite magnitude without the loss scale; exact, because the scale is a power of two."""
        return self.abs_max / self.loss_scale

    @property
    def unscaled_norm(self) -> float:
        """L2 norm of the finite elements, without the loss scale."""
        return math.sqrt(sum(self.sums_of_squares)) / self.loss_scale

    def at_scale(self, loss_scale: float) -> ExponentHistogram:
        """The same tensor as it would be at another power-of-two loss scale."""
        factor = loss_scale / self.loss_scale
        moved = replace(self, loss_scale=loss_scale, abs_max=self.abs_max * factor)
        return replace(
            moved,
            offset=self.offset + exponent_of(factor),
            sums_of_squares=tuple(total * factor * factor for total in self.sums_of_squares),
        )

    def to_plain(self) -> dict[str, Any]:
        """Plain data for one line of a trace; sums of squares keep six digits, all else is exact."""
        plain: dict[str, Any] = {
            "name": self.name,
            "layer": self.layer,
            "kind": self.kind,
            "step": self.step,
            "loss_scale": self.loss_scale,
            "offset": self.offset,
            "counts": list(self.counts),
            "sums_of_squares": [float(f"{total:.{SQUARE_DIGITS}g}") for total in self.sums_of_squares],
            "zeros": self.zeros,
            "nonfinite": self.nonfinite,
            "abs_max": self.abs_max,
        }
        if self.powers:
            plain["powers"] = list(self.powers)
        return plain

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> ExponentHistogram:
        """The inverse of `to_plain`; keys of a newer version are ignored."""
        known: dict[str, Any] = {field: plain[field] for field in cls.__slots__ if field in plain}
        for field in ("counts", "sums_of_squares", "powers"):
            known[field] = tuple(known.get(field, ()))
        return cls(**known)


def histogram_of(
    values: Iterable[float], *, name: str, layer: str, kind: str = PARAMETER, step: int = 0, loss_scale: float = 1.0
) -> ExponentHistogram:
    """The histogram of plain numbers: what a probe's must be equal to (sums of squares up to rounding)."""
    magnitudes = [abs(value) for value in values]
    finite = [value for value in magnitudes if math.isfinite(value) and value]
    exponents = [exponent_of(value) for value in finite]
    offset = min(exponents, default=0)
    size = max(exponents, default=offset - 1) - offset + 1
    counts, squares, powers = [0] * size, [0.0] * size, [0] * size
    for value, exponent in zip(finite, exponents, strict=True):
        counts[exponent - offset] += 1
        squares[exponent - offset] += value * value
        powers[exponent - offset] += is_power_of_two(value)
    return ExponentHistogram(
        name=name,
        layer=layer,
        kind=kind,
        step=step,
        loss_scale=loss_scale,
        offset=offset,
        counts=tuple(counts),
        sums_of_squares=tuple(squares),
        zeros=magnitudes.count(0.0),
        nonfinite=sum(not math.isfinite(value) for value in magnitudes),
        abs_max=max(finite, default=0.0),
        powers=tuple(powers),
    )


def merge_histograms(histograms: Sequence[ExponentHistogram]) -> ExponentHistogram:
    """One record of one tensor over several steps, at the first one's loss scale and step; `powers` if all have them.

    Raises ValueError for none at all, or for histograms of different tensors.
    """
    if len({(h.name, h.kind) for h in histograms}) != 1:
        raise ValueError("merge_histograms: expected histograms of one tensor, over several steps")
    first = histograms[0]
    aligned = [h.at_scale(first.loss_scale) for h in histograms]
    filled = [h for h in aligned if h.counts] or [first]
    offset = min(h.offset for h in filled)
    size = max(h.offset + len(h.counts) for h in filled) - offset
    counted = all(h.powers or not h.counts for h in aligned)
    return replace(
        first,
        offset=offset,
        counts=tuple(int(n) for n in _add([(h.offset - offset, h.counts) for h in filled], size)),
        sums_of_squares=tuple(_add([(h.offset - offset, h.sums_of_squares) for h in filled], size)),
        powers=tuple(int(n) for n in _add([(h.offset - offset, h.powers) for h in filled], size)) if counted else (),
        zeros=sum(h.zeros for h in aligned),
        nonfinite=sum(h.nonfinite for h in aligned),
        abs_max=max(h.abs_max for h in aligned),
    )


def exponent_of(value: float) -> int:
    """The e of 2^e <= value < 2^(e+1), for a positive finite value."""
    return math.frexp(value)[1] - 1


def is_power_of_two(value: float) -> bool:
    """Whether a positive finite number is exactly 2^e."""
    return math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5


def _add(rows: Sequence[tuple[int, Sequence[float]]], size: int) -> list[float]:
    total = [0.0] * size
    for start, values in rows:
        for i, value in enumerate(values):
            total[start + i] += value
    return total
