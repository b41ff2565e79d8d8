"""The range of a number format as an axis: flushed to zero, subnormal, normal, overflow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from nanprobe.formats import FP16, FP32, FloatFormat, format_named
from nanprobe.records import StageTrace
from nanprobe.reports.html.figures import show_exponent
from nanprobe.reports.numbers import show_magnitude

BELOW, ABOVE = 15, 9  # powers of two shown beyond what the format can hold
WIDE = 100  # powers of two: the axis of a wider format is cut to what occurs, which would be a hair on it
MARGIN, EVERY = 10, 10  # then: powers of two beyond what occurs, and between two ticks


class Zone(str, Enum):
    """What becomes of a number in the format; the value is its style on the page."""

    FLUSHED = "flushed"
    SUBNORMAL = "subnormal"
    NORMAL = "normal"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Range:
    """A format's range, or a part of it, as positions from 0.0 to 1.0 on a logarithmic axis."""

    fmt: FloatFormat
    low: int  # exponent at the left end
    high: int  # and at the right end

    @property
    def flushed(self) -> int:
        """What is below 2 to this exponent rounds to 0, and exactly 2 to it too: -25 for FP16."""
        return _flushed(self.fmt)

    def at(self, value: float) -> float:
        """The position of a positive number, kept inside."""
        return self.at_exponent(math.log2(value)) if value > 0 else 0.0

    def at_exponent(self, exponent: float) -> float:
        """The position of a power of two, kept inside."""
        return min(max((exponent - self.low) / (self.high - self.low), 0.0), 1.0)

    @property
    def limits(self) -> tuple[tuple[float, Zone], ...]:
        """Where a zone begins, from the left."""
        begins = (self.low, self.flushed, self.fmt.min_exponent, self.fmt.max_exponent + 1)
        return tuple((self.at_exponent(e), zone) for e, zone in zip(begins, Zone, strict=True))

    def zone_of(self, exponent: int) -> Zone:
        """The zone of the numbers from 2^exponent to twice that."""
        if exponent < self.flushed:
            return Zone.FLUSHED
        if exponent < self.fmt.min_exponent:
            return Zone.SUBNORMAL
        return Zone.NORMAL if exponent <= self.fmt.max_exponent else Zone.OVER

    @property
    def ticks(self) -> tuple[tuple[float, str], ...]:
        """The limits by name, for below an axis."""
        named = {e: show_exponent(e) for e in (self.flushed, self.fmt.min_exponent, 0)}
        if self.high - self.low < _span(self.fmt):
            named = {e: show_exponent(e) for e in range(-(-self.low // EVERY) * EVERY, self.high, EVERY)}
        named[self.fmt.max_exponent + 1] = show_limit(self.fmt)
        return tuple((self.at_exponent(e), text) for e, text in named.items() if self.low <= e < self.high)

    @property
    def rules(self) -> tuple[float, ...]:
        """Where a zone ends and the next begins."""
        return tuple(x for x, _ in self.limits if 0.0 < x < 1.0)

    @property
    def background(self) -> str:
        """The zones as a CSS background."""
        ends = [x for x, _ in self.limits[1:]] + [1.0]
        stops = [
            f"var(--zone-{zone.value}) {100 * start:.2f}% {100 * end:.2f}%"
            for (start, zone), end in zip(self.limits, ends, strict=True)
        ]
        return f"linear-gradient(to right, {', '.join(stops)})"


def show_limit(fmt: FloatFormat) -> str:
    """The largest number of a format: "65,504", "3.4e38"."""
    return f"{fmt.max:,.6g}" if fmt.max < 1e6 else show_magnitude(fmt.max)


def full_range(fmt: FloatFormat) -> Range:
    """All a format can hold, with some room on both sides."""
    return Range(fmt, _flushed(fmt) - BELOW, fmt.max_exponent + ABOVE)


def cut_range(fmt: FloatFormat, exponents: Iterable[int]) -> Range:
    """The full range; of a wide format only what lies around the exponents that occur."""
    whole, used = full_range(fmt), list(exponents)
    if _span(fmt) <= WIDE or not used:
        return whole
    low, high = min(used) - MARGIN, max(used) + MARGIN
    return Range(fmt, max(low, whole.low), min(high, whole.high))


def range_of(traces: Sequence[StageTrace]) -> Range:
    """The range of the low precision a run used, FP16's when it used none, cut to the gradients of the run."""
    used = (format_named(trace.dtype) for trace in traces if trace.steps)
    fmt = next((fmt for fmt in used if fmt.bits < FP32.bits), FP16)
    peaks = (value for trace in traces for step in trace.steps for value in step.grad_abs_max if value)
    exponents = [math.frexp(value)[1] for value in peaks if math.isfinite(value)]
    grads = [g for trace in traces for deep in trace.deep_steps for g in deep.grads if g.exponent_counts]
    exponents += [e for g in grads for e in (g.exponent_offset, g.exponent_offset + len(g.exponent_counts))]
    return cut_range(fmt, exponents)


def _span(fmt: FloatFormat) -> int:
    """Powers of two of the full range."""
    return fmt.max_exponent + ABOVE - _flushed(fmt) + BELOW


def _flushed(fmt: FloatFormat) -> int:
    return round(math.log2(fmt.flush_threshold))
