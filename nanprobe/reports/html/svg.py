"""Plain SVG, made here: axes, lines, bars and marks, and nothing else.

No plotting library, for these reasons: the page stays small (a library's script is megabytes, its static output is
unreadable markup), it shows without scripts, it prints, the text in it is text that tests and screen readers can read,
and the few charts needed here are a page of code. What is stretched with the page (lines, bars) and what is not (text,
marks) are kept apart: positions across are percentages, so that a phone shows the same letters as a wide screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nanprobe.reports.html.markup import Child, Markup, element, join
from nanprobe.reports.numbers import show_number

WIDTH = 1000  # units across the stretched part


@dataclass(frozen=True, slots=True)
class Axis:
    """From numbers to positions: 0.0 at `low`, 1.0 at `high`; base-2 or base-10 logarithms where told."""

    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """The position of a finite value, not cut off at the ends; that of `low` for what has no logarithm."""
        low, high = self._map(self.low), self._map(self.high)
        mapped = self._map(value) if not self.log or value > 0 else low
        return (mapped - low) / (high - low) if high > low else 0.5

    def inside(self, value: float) -> float:
        """The position, cut off at the ends."""
        return min(max(self.at(value), 0.0), 1.0)

    def _map(self, value: float) -> float:
        return math.log2(value) if self.log else value


def fit_axis(values: Iterable[float], *, wide: float = 50.0) -> Axis:
    """An axis over finite values, logarithmic when they are positive and span more than a factor of `wide`."""
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if low > 0 and high / low > wide:
        return Axis(low, high, log=True)
    margin = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Axis(low - margin, high + margin)


def ticks(axis: Axis, count: int = 4) -> list[float]:
    """A few round values on an axis: powers of ten or of two on a logarithmic one."""
    if axis.log:
        return _log_ticks(axis, count)
    step = _round_step((axis.high - axis.low) / max(count, 1))
    first = math.ceil(axis.low / step)
    return [k * step for k in range(first, math.floor(axis.high / step) + 1)]


def _log_ticks(axis: Axis, count: int) -> list[float]:
    low, high = math.log10(axis.low), math.log10(axis.high)
    whole = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
    if len(whole) < 2:
        return [axis.low, axis.high]
    return [10.0**e for e in whole[:: math.ceil(len(whole) / (count + 1))]]


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)


def percent(position: float) -> str:
    """A position across as a percentage."""
    return f"{_short(100 * position)}%"


def rectangle(start: float, end: float, top: float, height: float, class_: str, title: str | None = None) -> Markup:
    """A bar from one position to another, at least a hair wide; `top` and `height` in pixels."""
    return element(
        "rect",
        _title(title),
        x=percent(start),
        width=percent(max(end - start, 0.002)),
        y=_short(top),
        height=_short(height),
        class_=class_,
    )


def rule(position: float, top: float, bottom: float, class_: str) -> Markup:
    """A line from top to bottom."""
    x = percent(position)
    return element("line", x1=x, x2=x, y1=_short(top), y2=_short(bottom), class_=class_)


def label(content: str, position: float, y: float, class_: str = "tick", anchor: str | None = None) -> Markup:
    """Text at a position across, kept inside at the ends unless told otherwise."""
    where = anchor or ("start" if position < 0.04 else "end" if position > 0.96 else "middle")
    return element("text", content, x=percent(position), y=_short(y), class_=class_, text_anchor=where)


def mark(sign: str, position: float, y: float, class_: str, title: str | None = None) -> Markup:
    """A sign, such as a cross, in the middle of a position."""
    return element("text", sign, _title(title), x=percent(position), y=_short(y), class_=class_, text_anchor="middle")


def lines(paths: Iterable[Markup], height: float) -> Markup:
    """The stretched part of a drawing: paths in WIDTH × height units, their strokes not stretched."""
    box = f"0 0 {WIDTH} {_short(height)}"
    stretched = {"viewBox": box, "preserveAspectRatio": "none", "width": "100%", "height": _short(height)}
    return element("svg", *paths, **stretched)


def polyline(
    points: Sequence[tuple[float, float] | None], height: float, class_: str, *, stairs: bool = False
) -> Markup:
    """A line through positions (across, up), broken where a point is None; a lone point gets a short stroke."""
    parts: list[str] = []
    before: tuple[float, float] | None = None
    for k, point in enumerate(points):
        if point is not None:
            x, y = _short(point[0] * WIDTH), _short((1 - point[1]) * height)
            lone = before is None and (k + 1 == len(points) or points[k + 1] is None)
            parts.append(_segment(x, y, before is not None, stairs) + ("h0" if lone else ""))
        before = point
    return element("path", d="".join(parts), class_=class_) if parts else Markup()


def _segment(x: str, y: str, joined: bool, stairs: bool) -> str:
    if not joined:
        return f"M{x} {y}"
    return f"H{x}V{y}" if stairs else f"L{x} {y}"


def drawing(*parts: Child, height: float, class_: str = "plot", title: str | None = None) -> Markup:
    """An SVG as wide as its place; with a title it is one picture to screen readers, else hidden from them."""
    named = {"role": "img", "aria-label": title} if title else {"aria-hidden": "true"}
    return element("svg", *parts, width="100%", height=_short(height), class_=class_, **named)


def scale_labels(axis: Axis, height: float, top: float = 0.0, count: int = 3) -> Markup:
    """The numbers of an upright axis, for the narrow drawing at the left of a chart."""
    rows = [(tick, top + (1 - axis.at(tick)) * height) for tick in ticks(axis, count)]
    return join(
        element("text", show_number(tick), x="100%", y=_short(y + 3.5), class_="tick", text_anchor="end")
        for tick, y in rows
    )


def gridlines(axis: Axis, height: float, top: float = 0.0, count: int = 3) -> Markup:
    """A fine line across for each number of an upright axis."""
    heights = (_short(top + (1 - axis.at(tick)) * height) for tick in ticks(axis, count))
    return join(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid") for y in heights)


def _title(title: str | None) -> Markup | None:
    return None if title is None else element("title", title)


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
