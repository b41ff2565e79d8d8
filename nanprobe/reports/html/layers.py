"""The per-layer table in numbers: the layers that matter first, the healthy ones folded."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.findings import Diagnosis, LayerRow, Status
from nanprobe.records import StageName
from nanprobe.reports.html.figures import badge
from nanprobe.reports.html.markup import Child, Markup, element
from nanprobe.reports.html.tables import Column, folded, section, table
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_bits, show_magnitude, show_percent

STAGES = tuple(stage.value for stage in StageName)
SHOWN = 25


def layer_section(diagnosis: Diagnosis) -> Markup:
    """Layers with a kind or with NaN or Inf, the most urgent first, then the others."""
    rows = by_urgency(diagnosis.layers)
    first = [row for row in rows if row.kind is not None or _is_struck(row, diagnosis.status)][:SHOWN]
    rest = [row for row in rows if row not in first]
    if not first:
        first, rest = rest[:SHOWN], rest[SHOWN:]
    stages = [name for name in STAGES if any(name in row.grad_abs_max for row in rows)]
    more = folded(count_noun(len(rest), "more layer"), _table(rest, stages)) if rest else None
    lead = (
        "Largest gradient with the loss scale taken out; flushed: elements that are 0 here and not in the FP32 "
        "re-check; headroom: how many times the scaled gradient could double."
    )
    return section("Layers", "layers", _table(first, stages) if first else None, more, lead=lead)


def by_urgency(rows: Sequence[LayerRow]) -> list[LayerRow]:
    """Rows named by a finding first, then most steps with NaN or Inf, least headroom, most flushed."""

    def rank(row: LayerRow) -> tuple[bool, int, float, float]:
        headroom = math.inf if row.headroom_bits is None or math.isnan(row.headroom_bits) else row.headroom_bits
        return (row.kind is None, -sum(row.nonfinite_steps.values()), headroom, -(_worst(row.flushed_fraction) or 0.0))

    return sorted(rows, key=rank)


def _is_struck(row: LayerRow, status: Status) -> bool:
    """In a healthy run, a NaN or Inf was the scaler finding its scale."""
    return status is not Status.HEALTHY and any(row.nonfinite_steps.values())


def _table(rows: Sequence[LayerRow], stages: Sequence[str]) -> Markup:
    columns = [
        Column("layer"),
        Column("kind"),
        *(Column(f"largest, {stage}", number=True) for stage in stages),
        Column("flushed", number=True),
        Column("headroom", number=True),
        Column("steps with NaN/Inf", number=True),
    ]
    return table(columns, [_cells(row, stages) for row in rows], "Layers in numbers", "layers")


def _cells(row: LayerRow, stages: Sequence[str]) -> list[Child]:
    return [
        element("code", row.name),
        badge("✖", row.kind.value, "bad") if row.kind is not None else None,
        *(show_magnitude(row.grad_abs_max.get(stage)) for stage in stages),
        show_percent(_worst(row.flushed_fraction)),
        show_bits(row.headroom_bits),
        ", ".join(f"{row.nonfinite_steps[name]} {name}" for name in STAGES if row.nonfinite_steps.get(name))
        or NOT_MEASURED,
    ]


def _worst(by_stage: dict[str, float | None]) -> float | None:
    return max((value for value in by_stage.values() if value is not None), default=None)
