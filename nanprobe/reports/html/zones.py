"""The range of a number format as an axis: flushed to zero, subnormal, normal, overflow."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from nanprobe.formats import FP16, FP32, FloatFormat, format_named
from nanprobe.records import StageTrace
from nanprobe.reports.html.figures import show_exponent
from nanprobe.reports.numbers import show_magnitude

BELOW, ABOVE = 15, 9  # powers of two shown beyond what the format can hold


class Zone(str, Enum):
    """What becomes of a number in the format; the value is its style on the page."""

    FLUSHED = "flushed"
    SUBNORMAL = "subnormal"
    NORMAL = "normal"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Range:
    """A format's range, with some room on both sides, as positions from 0.0 to 1.0 on a logarithmic axis."""

    fmt: FloatFormat

    @property
    def low(self) -> int:
        """Exponent at the left end."""
        return self.flushed - BELOW

    @property
    def high(self) -> int:
        """Exponent at the right end."""
        return self.fmt.max_exponent + ABOVE

    @property
    def flushed(self) -> int:
        """What is below 2 to this exponent rounds to 0, and exactly 2 to it too: -25 for FP16."""
        return round(math.log2(self.fmt.flush_threshold))

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
        exponents = (self.flushed, self.fmt.min_exponent, 0)
        named = [(self.at_exponent(e), show_exponent(e)) for e in exponents]
        return (*named, (self.at_exponent(self.fmt.max_exponent + 1), show_limit(self.fmt)))

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


def range_of(traces: Iterable[StageTrace]) -> Range:
    """The range of the low precision a run used; FP16's when it used none."""
    used = (format_named(trace.dtype) for trace in traces if trace.steps)
    return Range(next((fmt for fmt in used if fmt.bits < FP32.bits), FP16))
