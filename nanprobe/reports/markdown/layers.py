"""The layers in Markdown, folded away: every parameter with a fault of its own, worst first; the others in a line."""

from __future__ import annotations

from nanprobe.findings import Diagnosis, LayerRow
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.syntax import code, escape
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.layers import STAGE_ORDER, describe_healthy, describe_struck, list_cells, sort_layers

_LONGEST_NAME = 200


def write_layers(page: Page, diagnosis: Diagnosis, show_all: bool) -> None:
    """A table of the faulty layers by kind; `show_all` has a row for every layer, as far as they fit."""
    sorted_layers = sort_layers(diagnosis)
    groups = sorted_layers.faulty | (sorted_layers.rest if show_all else {})
    told = [describe_struck(sorted_layers.struck)] if sorted_layers.struck and not show_all else []
    told += [describe_healthy(sorted_layers.healthy)] if sorted_layers.healthy else []
    if not groups and not told:
        return
    page.add("### Layers")
    if told:
        page.add("\n".join(f"- {escape(text)}" for text in told))
    rows = [(group, row) for group, members in groups.items() for row in members]
    if rows:
        stages = [name for name in STAGE_ORDER if any(name in row.grad_abs_max for _, row in rows)]
        titles = [
            "layer",
            "kind",
            *(f"largest gradient, {s}" for s in stages),
            "flushed",
            "headroom, bits",
            "steps with NaN/Inf",
        ]
        page.fold(f"{count_noun(len(rows), 'layer')}")
        cells = [_cells(group, row, stages) for group, row in rows]
        page.table(titles, cells, _tell_left_out, right=titles[2:-1])
        page.unfold()


def _cells(group: str, row: LayerRow, stages: list[str]) -> list[str]:
    return [code(row.name, _LONGEST_NAME), escape(group), *map(escape, list_cells(row, stages, wide=True))]


def _tell_left_out(count: int) -> str:
    return f"… and {count_noun(count, 'more layer')}, left out to stay below GitHub's limit; all in the JSON report"
