"""The layers table: every parameter with a fault of its own, worst first; the others in a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.findings import Diagnosis, Kind, LayerRow, Status
from nanprobe.records import StageName
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_bits, show_magnitude, show_percent
from nanprobe.reports.terminal.canvas import Canvas, clean, pad, shorten_middle

SHOWN = 8  # of one kind
NARROWEST_NAME = 16
INDENT, GAP = 3, 2
WIDE = 110
STAGE_ORDER = [name.value for name in StageName]


@dataclass(frozen=True, slots=True)
class LayerGroups:
    """The layers by what there is to say of them, the worst first in each group."""

    faulty: dict[str, list[LayerRow]]  # by kind; kinds without a layer are left out
    struck: list[LayerRow]  # NaN or Inf that began elsewhere
    healthy: list[LayerRow]

    @property
    def rest(self) -> dict[str, list[LayerRow]]:
        """The groups that are shown only where every layer is asked for."""
        return {n: g for n, g in (("NaN or Inf from elsewhere", self.struck), ("healthy", self.healthy)) if g}


def sort_layers(diagnosis: Diagnosis) -> LayerGroups:
    """Every layer in its group."""
    rows = sorted(diagnosis.layers, key=_severity)
    faulty = {kind.value: [row for row in rows if row.kind is kind] for kind in Kind}
    # In a healthy run, a NaN or Inf was the scaler finding its scale.
    harmless = diagnosis.status is Status.HEALTHY
    return LayerGroups(
        faulty={name: group for name, group in faulty.items() if group},
        struck=[row for row in rows if row.kind is None and not harmless and any(row.nonfinite_steps.values())],
        healthy=[row for row in rows if row.kind is None and (harmless or not any(row.nonfinite_steps.values()))],
    )


def draw_layers(canvas: Canvas, diagnosis: Diagnosis, show_all: bool) -> None:
    """Tables of faulty layers by kind, then what to know of the rest; `show_all` has a row for every layer."""
    if not diagnosis.layers:
        return
    layers = sort_layers(diagnosis)
    groups = layers.faulty | (layers.rest if show_all else {})
    canvas.heading("LAYERS")
    if groups:
        _draw_table(canvas, groups, show_all)
    if layers.struck and not show_all:
        canvas.paragraph(describe_struck(layers.struck), lead=["• "], indent=2)
    if layers.healthy:
        canvas.paragraph(describe_healthy(layers.healthy), lead=[("✔ ", "green")], indent=2)


def describe_healthy(rows: Sequence[LayerRow]) -> str:
    """The healthy layers in one line: how many, their largest gradient, their smallest headroom."""
    text = count_noun(len(rows), "healthy layer")
    gradients = [
        value for row in rows for value in row.grad_abs_max.values() if value is not None and math.isfinite(value)
    ]
    headrooms = [bits for row in rows if (bits := row.headroom_bits) is not None and math.isfinite(bits)]
    if gradients:
        text += f": largest gradient {show_magnitude(max(gradients))}"
    if headrooms:
        text += f"{',' if gradients else ':'} at least {show_bits(min(headrooms))} of headroom"
    return text


def describe_struck(rows: Sequence[LayerRow]) -> str:
    """The layers that are not finite because of another one, in one line."""
    most = max(max(row.nonfinite_steps.values()) for row in rows)
    layers = count_noun(len(rows), "layer")
    return f"{layers} with NaN or Inf, in up to {count_noun(most, 'step')}, that did not start there"


def _severity(row: LayerRow) -> tuple[float, float, float]:
    """Sorts the worst first: most non-finite steps, least headroom, most flushed."""
    headroom = math.inf if row.headroom_bits is None or math.isnan(row.headroom_bits) else row.headroom_bits
    return (-sum(row.nonfinite_steps.values()), headroom, -(_worst(row.flushed_fraction) or 0.0))


def _worst(by_stage: dict[str, float | None]) -> float | None:
    return max((value for value in by_stage.values() if value is not None), default=None)


def _draw_table(canvas: Canvas, groups: dict[str, list[LayerRow]], show_all: bool) -> None:
    rows = [row for group in groups.values() for row in group]
    stages = [name for name in STAGE_ORDER if any(name in row.grad_abs_max for row in rows)]
    wide = canvas.width >= WIDE
    cells = {id(row): list_cells(row, stages, wide) for row in rows}
    above = ["" for _ in stages] + ["", "headroom", "steps with"]
    titles = [*stages, "flushed", "bits", "NaN/Inf"]
    widths = [max(map(len, column)) for column in zip(above, titles, *cells.values(), strict=True)]
    room = canvas.width - INDENT - sum(width + GAP for width in widths)
    name_width = max(NARROWEST_NAME, min(room, max(len(row.name) for row in rows)))
    across = sum(widths[: len(stages)]) + GAP * (len(stages) - 1)
    rest = len(stages)
    first = " " * GAP + "largest gradient".rjust(across) + _join(above[rest:], widths[rest:])
    canvas.line(" " * (name_width + INDENT), (first if stages else _join(above, widths), "dim"))
    canvas.line(" " * (name_width + INDENT), (_join(titles, widths), "dim"))
    for name, group in groups.items():
        canvas.line("  ", (f"{name} ({len(group)})", "bold"))
        shown = group if show_all else group[:SHOWN]
        for row in shown:
            name_cell = pad(shorten_middle(clean(row.name), name_width), name_width)
            canvas.line(" " * INDENT, name_cell, _join(cells[id(row)], widths))
        if len(group) > len(shown):
            canvas.line(" " * INDENT, f"… and {len(group) - len(shown)} more")


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(" " * GAP + pad(cell, width, right=True) for cell, width in zip(cells, widths, strict=True))


def list_cells(row: LayerRow, stages: Sequence[str], wide: bool) -> list[str]:
    """A layer's largest gradient in each stage, flushed share, headroom in bits, steps that were not finite."""
    gradients = [show_magnitude(row.grad_abs_max.get(stage)) for stage in stages]
    flushed, headroom = show_percent(_worst(row.flushed_fraction)), show_bits(row.headroom_bits).removesuffix(" bits")
    return [*gradients, flushed, headroom, _show_nonfinite(row, wide)]


def _show_nonfinite(row: LayerRow, wide: bool) -> str:
    """Steps that were not finite: "12 amp", of the last stage that has any; of every stage where there is room."""
    counts = [f"{row.nonfinite_steps[name]} {name}" for name in STAGE_ORDER if row.nonfinite_steps.get(name)]
    if not counts:
        return NOT_MEASURED
    return ", ".join(counts) if wide else counts[-1]
