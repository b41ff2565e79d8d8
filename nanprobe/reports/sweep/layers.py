"""A bar for each layer on a log2 axis from 2^0 to 2^32: where it is safe, and where everything is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.loss_scale.advice import show_power
from nanprobe.loss_scale.conflict import show_layer
from nanprobe.loss_scale.outcomes import SCALE_EXPONENTS
from nanprobe.loss_scale.result import ScalerHistory, SweepResult
from nanprobe.loss_scale.window import LayerWindow, Window
from nanprobe.reports.numbers import NOT_MEASURED, count_noun
from nanprobe.reports.terminal.canvas import Canvas, Part, clean, pad, shorten_middle

SHOWN = 12
SAFE, SAFE_HERE, UNSAFE = "█", "▒", "·"  # told apart without colour too
AXIS_STEP = 8
ALL_LAYERS = "all layers"
INDENT, GAP = 2, 2
BAR_GAP = 4  # behind the bars, for the end of the last label


def draw_layer_windows(canvas: Canvas, result: SweepResult, show_all: bool) -> None:
    """The axis, the window over everything, the layers (narrowest first), and the script's own scale below."""
    window = result.window
    if window is None or not result.layers:
        return
    rows = sort_layers(result, window)
    shown = rows if show_all else rows[:SHOWN]
    names = {id(row): clean(show_layer(row.layer)) for row in shown}
    cells = {id(row): list_cells(row.window) for row in shown}
    widths = [max(map(len, column)) for column in zip(_TITLES, list_cells(window), *cells.values(), strict=True)]
    room = canvas.width - INDENT - GAP - BAR_GAP - len(SCALE_EXPONENTS) - sum(widths) - GAP * (len(widths) - 1)
    name_width = max(len(ALL_LAYERS), min(room, max(map(len, names.values()))))
    canvas.heading("LAYERS")
    axis = pad(_draw_axis(), len(SCALE_EXPONENTS) + BAR_GAP)
    canvas.line(" " * (INDENT + name_width + GAP), (axis + _join(_TITLES, widths), "dim"))
    _draw_row(
        canvas, (pad(ALL_LAYERS, name_width), "bold"), _draw_bar(window, window), _join(list_cells(window), widths)
    )
    for row in shown:
        name = pad(shorten_middle(names[id(row)], name_width), name_width)
        _draw_row(canvas, name, _draw_bar(row.window, window), _join(cells[id(row)], widths))
    if result.scaler is not None and result.scaler.scales:
        _draw_marks(canvas, INDENT + name_width + GAP, result.scaler)
    if len(rows) > len(shown):
        canvas.line(" " * INDENT, f"… and {count_noun(len(rows) - len(shown), 'layer')} with wider windows (--all)")
    canvas.paragraph((f"{SAFE} safe in all layers   {SAFE_HERE} safe in this one   {UNSAFE} not", "dim"), indent=INDENT)


_TITLES = ("from", "to", "bits")


def list_cells(window: Window) -> tuple[str, str, str]:
    """Lowest safe scale, highest, and the bits between them."""
    bits = window.bits
    low = "> 2^32" if window.lowest_scale is None else show_power(window.lowest_scale)
    high = "< 2^0" if window.highest_scale is None else show_power(window.highest_scale)
    return low, high, "none" if not window.is_safe else NOT_MEASURED if bits is None else str(bits)


def sort_layers(result: SweepResult, window: Window) -> list[LayerWindow]:
    """Those that set an edge first, then the narrowest."""
    return sorted(result.layers, key=lambda row: _width(row, window))


def _width(row: LayerWindow, window: Window) -> tuple[bool, float, str]:
    sets_edge = row.layer in (window.low_set_by, window.high_set_by)
    bits = row.window.bits
    return (not sets_edge, -math.inf if bits is None else bits, row.layer)


def _draw_bar(window: Window, overall: Window) -> str:
    scales = [2.0**exponent for exponent in SCALE_EXPONENTS]
    return "".join(
        UNSAFE if not window.contains(scale) else SAFE if overall.contains(scale) else SAFE_HERE for scale in scales
    )


def _draw_axis() -> str:
    axis = ""
    for exponent in range(SCALE_EXPONENTS[0], SCALE_EXPONENTS[-1] + 1, AXIS_STEP):
        axis = pad(axis, exponent) + f"2^{exponent}"
    return axis


def _draw_row(canvas: Canvas, name: Part, bar: str, cells: str) -> None:
    parts: list[Part] = [" " * INDENT, name, " " * GAP]
    styles = {SAFE: "green", SAFE_HERE: "cyan", UNSAFE: "dim"}
    parts.extend((character, styles[character]) for character in bar)
    canvas.line(*parts, " " * BAR_GAP, cells)


def _draw_marks(canvas: Canvas, start: int, scaler: ScalerHistory) -> None:
    """A mark below the axis for the script's first scale and its last."""
    scales, last_cell = scaler.scales, SCALE_EXPONENTS[-1]
    places = [min(max(round(math.log2(scale)), 0), last_cell) for scale in (scales[0], scales[-1]) if scale > 0]
    if not places:
        return
    marks = "".join("▲" if cell in places else " " for cell in range(last_cell + 1)).rstrip()
    text = f"{'your' if scaler.as_written else 'the usual'} scale: {show_power(scales[0])}"
    if scales[-1] != scales[0]:
        text += f", later {show_power(scales[-1])}"
    canvas.line(" " * start, (marks, "yellow"), "  ", (text, "yellow"))


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * GAP).join(pad(cell, width, right=True) for cell, width in zip(cells, widths, strict=True))
