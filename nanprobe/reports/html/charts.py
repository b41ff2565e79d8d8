"""Curves by training step, over one another: losses, a loss scale, and lanes that mark what happened in which step.

For any number of curves: the loss of a stage, or a loss before and after a remedy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.reports.html import svg
from nanprobe.reports.html.figures import show_power
from nanprobe.reports.html.hover import hover_data
from nanprobe.reports.html.markup import Markup, element, join
from nanprobe.reports.numbers import show_number

LANE, LOSS, GAP, SCALE, FOOT = 15.0, 132.0, 14.0, 52.0, 20.0  # heights in pixels
MOST_POINTS = 400  # of a curve; a longer one is drawn by the extremes of so many pieces

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart."""

    name: str
    values: Values  # one a step; None, NaN and Inf leave a gap
    class_: str = "curve"


@dataclass(frozen=True, slots=True)
class Lane:
    """Steps in which something happened, as a row of marks."""

    name: str
    steps: Sequence[bool]
    class_: str


def step_chart(curves: Sequence[Curve], lanes: Sequence[Lane], scales: Sequence[Curve], title: str) -> Markup:
    """A chart over steps 0, 1, ...; `scales` are drawn below on an axis of powers of two; hover shows the numbers."""
    count = max((len(curve.values) for curve in (*curves, *scales)), default=0)
    if not count:
        return Markup()
    top = LANE * len(lanes) + (6.0 if lanes else 0.0)
    labels = [_lane_name(lane, k * LANE) for k, lane in enumerate(lanes)]
    drawn = [_draw_lane(lane, k * LANE, count) for k, lane in enumerate(lanes)]
    bottom = top
    if curves:
        axis = svg.fit_axis(v for curve in curves for v in curve.values if v is not None)
        paths = [_path(curve, axis, LOSS, count) for curve in curves]
        labels.append(svg.scale_labels(axis, LOSS, top))
        drawn += [svg.gridlines(axis, LOSS, top), _at(top, svg.lines(paths, LOSS), LOSS)]
        bottom += LOSS
    if any(value is not None for curve in scales for value in curve.values):
        names, stairs = _draw_scales(scales, bottom + GAP, count)
        labels.append(names)
        drawn.append(stairs)
        bottom += GAP + SCALE
    drawn.append(_draw_steps(count, bottom))
    labels.append(element("text", "step", x="100%", y=f"{bottom + 15:g}", class_="tick", text_anchor="end"))
    height = bottom + FOOT
    plot = element("div", svg.drawing(*drawn, height=height, title=title), class_="area", data_hover=True)
    side = element("svg", *labels, height=f"{height:g}", class_="side", aria_hidden="true")
    texts = [" · ".join(_tell(curves, lanes, scales, k)) for k in range(count)]
    return element("div", side, plot, hover_data([f"step {k}" for k in range(count)], [""], [texts]), class_="chart")


def _tell(curves: Sequence[Curve], lanes: Sequence[Lane], scales: Sequence[Curve], step: int) -> list[str]:
    """What is to be known of one step, in words."""
    words = [f"{c.name} {show_number(c.values[step])}" for c in curves if step < len(c.values)]
    known = [(c.name, c.values[step]) for c in scales if step < len(c.values)]
    words += [f"{name} {show_power(value)}" for name, value in known if value is not None]
    return words + [lane.name for lane in lanes if step < len(lane.steps) and lane.steps[step]]


def _lane_name(lane: Lane, top: float) -> Markup:
    return element("text", lane.name, x="100%", y=f"{top + 11:g}", class_="tick", text_anchor="end")


def _draw_lane(lane: Lane, top: float, count: int) -> Markup:
    """Marks for runs of steps."""
    runs: list[tuple[int, int]] = []
    for step, marked in enumerate(lane.steps):
        if marked and runs and runs[-1][1] == step:
            runs[-1] = (runs[-1][0], step + 1)
        elif marked:
            runs.append((step, step + 1))
    base = svg.rectangle(0, 1, top + 3, LANE - 6, "lane")
    gap = 0.15 / count
    return join(
        [base, *(svg.rectangle(a / count + gap, b / count - gap, top + 3, LANE - 6, lane.class_) for a, b in runs)]
    )


def _draw_scales(scales: Sequence[Curve], top: float, count: int) -> tuple[Markup, Markup]:
    """Loss scales as stairs, with the lowest and highest value at the side."""
    values = [v for curve in scales for v in curve.values if v is not None and v > 0 and math.isfinite(v)]
    if not values:
        return Markup(), Markup()
    low, high = min(values), max(values)
    axis = svg.Axis(low, high, log=True) if high > low else svg.Axis(low / 2, high * 2, log=True)
    heights = {show_power(v): top + (1 - axis.at(v)) * SCALE + 2 for v in (high, low)}
    if high > low * 4:
        heights["loss scale"] = top + SCALE / 2 + 4
    names = [
        element("text", name, x="100%", y=f"{y:g}", class_="tick", text_anchor="end") for name, y in heights.items()
    ]
    paths = [_path(curve, axis, SCALE, count, stairs=True) for curve in scales]
    return join(names), _at(top, svg.lines(paths, SCALE), SCALE)


def _draw_steps(count: int, top: float) -> Markup:
    """The steps' numbers along the bottom."""
    line = element("line", x1="0", x2="100%", y1=f"{top:g}", y2=f"{top:g}", class_="axis")
    shown = step_ticks(count)
    return join([line, *(svg.label(str(k), (k + 0.5) / count, top + 15) for k in shown)])


def step_ticks(count: int) -> list[int]:
    """Steps that are named below a picture: the first, round ones, and the last where there is room."""
    whole = [int(tick) for tick in svg.ticks(svg.Axis(0, max(count - 1, 1)), 5) if tick == int(tick)]
    shown = sorted({k for k in whole if 0 <= k < count})
    if count - 1 - shown[-1] > count * 0.07:
        shown.append(count - 1)
    return shown


def _at(top: float, inner: Markup, height: float) -> Markup:
    """A part of a drawing moved down."""
    return element("svg", inner, y=f"{top:g}", width="100%", height=f"{height:g}", overflow="visible")


def _path(curve: Curve, axis: svg.Axis, height: float, count: int, *, stairs: bool = False) -> Markup:
    points = [
        ((step + 0.5) / count, axis.inside(value)) if value is not None and math.isfinite(value) else None
        for step, value in enumerate(curve.values)
    ]
    return svg.polyline(thin_out(points), height, curve.class_, stairs=stairs)


def thin_out(points: Sequence[tuple[float, float] | None]) -> list[tuple[float, float] | None]:
    """A long line by the lowest and highest point of each of MOST_POINTS pieces; a short one as it is."""
    size = math.ceil(len(points) / MOST_POINTS)
    if size <= 2:
        return list(points)
    kept: list[tuple[float, float] | None] = []
    for start in range(0, len(points), size):
        known = [point for point in points[start : start + size] if point is not None]
        if not known:
            kept.append(None)
            continue
        ends = {min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept
