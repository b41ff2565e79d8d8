"""The comparison in the terminal: the answer first, then stages, findings and layers, A beside B."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.reports.comparison.model import Comparison, LayerChange
from nanprobe.reports.comparison.wording import (
    LAYER_TITLES,
    TITLES,
    describe_sides,
    describe_unchanged,
    group_findings,
    list_layer_cells,
    list_lonely,
    list_shared,
    list_stage_cells,
)
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.canvas import Canvas, clean, pad, shorten_middle
from nanprobe.reports.terminal.closing import shorten_home
from nanprobe.reports.terminal.findings import show_place
from nanprobe.reports.terminal.header import show_target

SHOWN_LAYERS, SHOWN_FINDINGS, SHOWN_NAMES = 12, 8, 6
INDENT, GAP = 2, 2
NARROWEST_NAME = 12
DISPENSABLE = ("steps", "final loss", "skipped", "verdict")  # left out first where the terminal is narrow
_RIGHT = {"steps", "skipped", "final loss"}


def render_terminal(comparison: Comparison, width: int = 80, color: bool = False, show_all: bool = False) -> str:
    """The comparison as lines no longer than the width; only paths may be, to stay whole."""
    canvas = Canvas(width, color)
    _draw_header(canvas, comparison)
    _draw_answer(canvas, comparison)
    _draw_stages(canvas, comparison)
    _draw_findings(canvas, comparison, show_all)
    _draw_layers(canvas, comparison, show_all)
    return canvas.text()


def _draw_header(canvas: Canvas, comparison: Comparison) -> None:
    canvas.line(("nanprobe", "bold cyan"), "  compare")
    for name, side in (("A", comparison.before), ("B", comparison.after)):
        run = side.run
        canvas.line(f"  {name}  ", (shorten_home(run.directory), "bold"), whole=True)
        facts = [show_target(run.target), run.device, f"{count_noun(run.steps, 'step')} a stage", f"seed {run.seed}"]
        canvas.paragraph((" · ".join(facts), "dim"), indent=5)
    for text in comparison.notes:
        canvas.paragraph(text, lead=[("! ", "yellow")], indent=2)


def _draw_answer(canvas: Canvas, comparison: Comparison) -> None:
    sign, color, words = TITLES[comparison.change]
    canvas.rule((f"{sign} ", f"bold {color}"), (words, f"bold {color}"), style=color)
    for line in describe_sides(comparison):
        canvas.paragraph(line.text, lead=[(f"{line.side}  ", "bold")])


def _draw_stages(canvas: Canvas, comparison: Comparison) -> None:
    """Two lines a stage, one a run."""
    asked = (comparison.before.run.steps, comparison.after.run.steps)
    rows = [
        (change.name.value if side == "A" else "", side, list_stage_cells(figures, steps))
        for change in comparison.stages
        for side, figures, steps in (("A", change.before, asked[0]), ("B", change.after, asked[1]))
    ]
    if not rows:
        return
    titles = list(rows[0][2])
    widths = {title: max(len(title), *(len(cells[title]) for _, _, cells in rows)) for title in titles}
    stage_width = max(len("stage"), *(len(name) for name, _, _ in rows))
    for title in DISPENSABLE:
        if INDENT + stage_width + 3 + sum(widths[kept] + GAP for kept in titles) > canvas.width:
            titles.remove(title)
    canvas.heading("STAGES")
    head = "".join(" " * GAP + pad(title, widths[title], title in _RIGHT) for title in titles)
    canvas.line(" " * INDENT, (pad("stage", stage_width + 3) + head, "dim"))
    for name, side, cells in rows:
        line = "".join(" " * GAP + pad(cells[title], widths[title], title in _RIGHT) for title in titles)
        canvas.line(" " * INDENT, (pad(name, stage_width + 2), "bold"), (side, "dim"), line)


def _draw_findings(canvas: Canvas, comparison: Comparison, show_all: bool) -> None:
    groups = group_findings(comparison)
    if not groups:
        return
    canvas.heading("FINDINGS")
    for sign, color, word, findings in groups:
        for finding in findings if show_all else findings[:SHOWN_FINDINGS]:
            lead = f"{sign} {word}  {finding.code}  "
            canvas.paragraph(f"{finding.severity.value}: {finding.title}", lead=[(lead, color)], indent=INDENT)
            canvas.paragraph((show_place(finding), "dim"), indent=INDENT + len(lead))
        if not show_all and len(findings) > SHOWN_FINDINGS:
            canvas.line(" " * INDENT, f"… and {len(findings) - SHOWN_FINDINGS} more {word} (--all)")


def _draw_layers(canvas: Canvas, comparison: Comparison, show_all: bool) -> None:
    rows = list_shared(comparison, show_all)
    shown = rows if show_all else rows[:SHOWN_LAYERS]
    unchanged, lonely = describe_unchanged(comparison, len(rows)), list_lonely(comparison)
    if not (rows or unchanged or lonely):
        return
    stage = "" if comparison.stage is None else f" ({comparison.stage.value} stage)"
    canvas.heading(f"LAYERS{stage}")
    if shown:
        _draw_table(canvas, shown)
    if len(rows) > len(shown):
        canvas.line(" " * INDENT, f"… and {count_noun(len(rows) - len(shown), 'layer')} that changed less (--all)")
    if unchanged:
        canvas.paragraph(unchanged, lead=["• "], indent=INDENT)
    for where, names in lonely:
        listed = names if show_all else names[:SHOWN_NAMES]
        more = f" and {len(names) - len(listed)} more" if len(names) > len(listed) else ""
        canvas.paragraph(f"{where} ({len(names)}): {', '.join(listed)}{more}", lead=["• "], indent=INDENT)


def _draw_table(canvas: Canvas, rows: Sequence[LayerChange]) -> None:
    """Four pairs of columns, A and B."""
    cells = [
        [cell for pair in zip(list_layer_cells(row.before), list_layer_cells(row.after), strict=True) for cell in pair]
        for row in rows
    ]
    sides = ["A", "B"] * len(LAYER_TITLES)
    widths = [max(map(len, column)) for column in zip(sides, *cells, strict=True)]
    for pair, title in enumerate(LAYER_TITLES):
        widths[2 * pair] = max(widths[2 * pair], len(title) - widths[2 * pair + 1] - 1)
    across = sum(widths) + len(LAYER_TITLES) * (GAP + 1)
    name_width = max(NARROWEST_NAME, min(canvas.width - INDENT - across, max(len(row.name) for row in rows)))
    above = [pad(title, widths[2 * n] + 1 + widths[2 * n + 1], right=True) for n, title in enumerate(LAYER_TITLES)]
    canvas.line(" " * (INDENT + name_width), ("".join(" " * GAP + title for title in above), "dim"))
    canvas.line(" " * (INDENT + name_width), (_join(sides, widths), "dim"))
    for row, line in zip(rows, cells, strict=True):
        name = pad(shorten_middle(clean(row.name), name_width), name_width)
        canvas.line(" " * INDENT, name, _join(line, widths))


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    gaps = [" " * GAP, " "] * len(LAYER_TITLES)
    return "".join(gap + pad(cell, width, right=True) for gap, cell, width in zip(gaps, cells, widths, strict=True))
