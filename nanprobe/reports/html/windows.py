"""The loss scales that are safe, layer by layer, on an axis from 2^0 to 2^32; and what every scale costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.loss_scale.conflict import show_layer
from nanprobe.loss_scale.outcomes import SCALE_EXPONENTS, ScaleRow
from nanprobe.loss_scale.result import SweepResult
from nanprobe.loss_scale.window import LayerWindow, Window
from nanprobe.reports.html import svg
from nanprobe.reports.html.figures import show_exponent, show_power
from nanprobe.reports.html.hover import hover_data
from nanprobe.reports.html.markup import Markup, element, join
from nanprobe.reports.html.tables import folded, legend, section
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_percent

LAST = SCALE_EXPONENTS[-1]
SHOWN = 20
BAR, HEIGHT = 18.0, 150.0
LEAST = 1e-5  # share at the bottom of the chart; what is less is drawn there
TICKS = range(0, LAST + 1, 4)


def window_section(result: SweepResult) -> Markup:
    """The window over everything, then each layer's, those that set an edge and the narrowest first."""
    window = result.window
    if window is None or not result.layers:
        return Markup()
    rows = sorted(result.layers, key=lambda row: _urgency(row, window))
    whole = _row("all layers", window, window, result, strong=True)
    first = [_row(show_layer(row.layer), row.window, window, result) for row in rows[:SHOWN]]
    rest = [_row(show_layer(row.layer), row.window, window, result) for row in rows[SHOWN:]]
    more = folded(count_noun(len(rest), "layer") + " with wider windows", _table(rest)) if rest else None
    marks = [("safe", "safe in all layers"), ("part", "safe in this layer")]
    if result.scaler is not None and result.scaler.scales:
        marks.append(("limit-mark", "your scale, first and last" if result.scaler.as_written else "the usual scale"))
    lead = "The loss scales at which no gradient of the layer overflows and none loses what it says, in every step."
    return section("Safe window by layer", "windows", _table([whole, *first]), more, legend(marks), lead=lead)


def _urgency(row: LayerWindow, window: Window) -> tuple[bool, float, str]:
    bits = row.window.bits
    sets_edge = row.layer in (window.low_set_by, window.high_set_by)
    return (not sets_edge, -math.inf if bits is None else bits, row.layer)


def _table(rows: Sequence[Markup]) -> Markup:
    axis = svg.drawing(*(svg.label(show_exponent(e), _at(e), 11) for e in TICKS if e % 8 == 0), height=14)
    heads = [("layer", None), ("from", "number"), ("to", "number"), ("bits", "number")]
    cells = [element("th", text, scope="col", class_=style) for text, style in heads]
    head = element("tr", cells[0], element("th", axis, scope="col", class_="scale", aria_label="scales"), *cells[1:])
    return element("table", element("thead", head), element("tbody", *rows), class_="ranges windows")


def _row(name: str, window: Window, overall: Window, result: SweepResult, *, strong: bool = False) -> Markup:
    low = "> 2³²" if window.lowest_scale is None else show_power(window.lowest_scale)
    high = "< 2⁰" if window.highest_scale is None else show_power(window.highest_scale)
    bits = "none" if not window.is_safe else NOT_MEASURED if window.bits is None else str(window.bits)
    told = f"safe from {low} to {high}" if window.is_safe else f"no safe scale: needs {low}, fits up to {high}"
    bar = svg.drawing(*_bar(window, overall), *_marks(result), height=BAR, title=told)
    return element(
        "tr",
        element("th", element("span", name, title=name), scope="row"),
        element("td", bar, title=told),
        *(element("td", cell, class_="number") for cell in (low, high, bits)),
        class_="chosen" if strong else None,
    )


def _bar(window: Window, overall: Window) -> list[Markup]:
    track = [svg.rectangle(0, 1, 6, BAR - 12, "lane")]
    if not window.is_safe:
        return track
    parts = [_span(window, "part")]
    return track + parts + ([_span(overall, "safe")] if overall.is_safe else [])


def _span(window: Window, style: str) -> Markup:
    low, high = math.log2(window.lowest_scale or 1.0), math.log2(window.highest_scale or 1.0)
    return svg.rectangle(_at(low - 0.5), _at(high + 0.5), 4, BAR - 8, style)


def _marks(result: SweepResult) -> list[Markup]:
    scaler = result.scaler
    scales = [] if scaler is None else [scale for scale in (*scaler.scales[:1], *scaler.scales[-1:]) if scale > 0]
    places = dict.fromkeys(_at(math.log2(scale)) for scale in scales)
    return [svg.rule(min(max(place, 0.0), 1.0), 0, BAR, "own") for place in places]


def _at(exponent: float) -> float:
    """A scale's place: its cell's middle."""
    return (exponent + 0.5) / (LAST + 1)


def scale_section(result: SweepResult) -> Markup:
    """Flushed share, lost norm and overflowing tensors at every scale."""
    if not result.scales:
        return Markup()
    title = f"Flushed and overflowing by loss scale; {_describe(result)}"
    lead = (
        "Over all layers and recorded steps, on a logarithmic axis. Safe scales are shaded; the dotted line is the "
        f"limit for lost norm, {show_percent(result.limits.lost_norm_fraction)}, of a single gradient."
    )
    marks = [
        ("flush", "elements flushed to 0"),
        ("norm", "norm lost with them"),
        ("over-line", "steps with an overflow"),
    ]
    return section(
        "What every scale costs", "scales", element("figure", scale_chart(result, title)), legend(marks), lead=lead
    )


def scale_chart(result: SweepResult, title: str) -> Markup:
    """The curves over 2^0 to 2^32."""
    axis = svg.Axis(LEAST, 1.0, log=True)
    steps = max(result.run.steps, 1)
    curves = (
        ("curve flush", [row.flushed_fraction for row in result.scales]),
        ("curve norm", [row.lost_norm_fraction for row in result.scales]),
        ("curve over", [row.overflowing_steps / steps for row in result.scales]),
    )
    paths = [
        svg.polyline([_point(k, v, axis) for k, v in enumerate(values)], HEIGHT, style) for style, values in curves
    ]
    window = result.window
    shade = []
    if window is not None and window.is_safe and window.lowest_scale and window.highest_scale:
        low, high = math.log2(window.lowest_scale), math.log2(window.highest_scale)
        shade = [svg.rectangle(_at(low - 0.5), _at(high + 0.5), 0, HEIGHT, "shade")]
    shares = [1.0, 0.1, 0.01, 1e-3, 1e-4]
    heights = {show_percent(s).replace("<0.1%", "0.01%"): (1 - axis.at(s)) * HEIGHT for s in shares}
    grid = [element("line", x1="0", x2="100%", y1=f"{y:g}", y2=f"{y:g}", class_="grid") for y in heights.values()]
    y = f"{(1 - axis.inside(result.limits.lost_norm_fraction)) * HEIGHT:g}"
    limit = element("line", x1="0", x2="100%", y1=y, y2=y, class_="limit")
    base = element("line", x1="0", x2="100%", y1=f"{HEIGHT:g}", y2=f"{HEIGHT:g}", class_="axis")
    ticks = [svg.label(show_exponent(e), _at(e), HEIGHT + 14) for e in TICKS]
    plot = svg.drawing(*shade, *grid, limit, svg.lines(paths, HEIGHT), base, *ticks, height=HEIGHT + 20, title=title)
    names = [element("text", n, x="100%", y=f"{y + 4:g}", class_="tick", text_anchor="end") for n, y in heights.items()]
    side = element("svg", join(names), height=f"{HEIGHT + 20:g}", class_="side", aria_hidden="true")
    texts = [_tell(row, result) for row in result.scales]
    data = hover_data([f"loss scale {show_power(row.scale)}" for row in result.scales], [""], [texts])
    return element("div", side, element("div", plot, class_="area", data_hover=True), data, class_="chart")


def _point(k: int, value: float, axis: svg.Axis) -> tuple[float, float] | None:
    return (_at(k), axis.inside(value)) if value > 0 else None


def _tell(row: ScaleRow, result: SweepResult) -> str:
    return (
        f"{show_percent(row.flushed_fraction)} flushed, {show_percent(row.lost_norm_fraction)} of the norm lost, "
        f"{count_noun(row.overflowing_tensors, 'tensor')} overflowing in "
        f"{row.overflowing_steps:,} of {count_noun(result.run.steps, 'step')}"
    )


def _describe(result: SweepResult) -> str:
    window = result.window
    if window is None or not window.is_safe:
        return "no scale is safe"
    return f"safe from {show_power(window.lowest_scale)} to {show_power(window.highest_scale)}"
