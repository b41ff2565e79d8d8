"""The comparison in Markdown, to paste into a bug report or a pull request."""

from __future__ import annotations

from nanprobe.reports.comparison.model import Comparison
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
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.syntax import code, escape, head, prose, row
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.closing import shorten_home
from nanprobe.reports.terminal.findings import show_place
from nanprobe.reports.terminal.header import show_target

_FINDINGS, _NAMES = 20, 20
_SHORT, _LONGEST_NAME = 300, 200


def render_markdown(comparison: Comparison, show_all: bool = False) -> str:
    """The comparison as GitHub shows it; shorter than GitHub's limit whatever the runs."""
    page = Page()
    sign, _, words = TITLES[comparison.change]
    page.add(f"## {sign} {words}")
    page.add("\n".join(f"- **{line.side}** {prose(line.text, _SHORT)}" for line in describe_sides(comparison)))
    if comparison.notes:
        page.add("\n".join(f"> ! {escape(note, _SHORT)}" for note in comparison.notes))
    _write_stages(page, comparison)
    _write_findings(page, comparison)
    _write_layers(page, comparison, show_all)
    _write_runs(page, comparison)
    return page.text()


def _write_stages(page: Page, comparison: Comparison) -> None:
    rows = []
    for change in comparison.stages:
        for side, figures, run in (
            ("A", change.before, comparison.before.run),
            ("B", change.after, comparison.after.run),
        ):
            rows.append({"stage": change.name.value, "": side, **list_stage_cells(figures, run.steps)})
    if rows:
        lines = [head(list(rows[0])), *(row([escape(cell) for cell in cells.values()]) for cells in rows)]
        page.section("Stages", "\n".join(lines))


def _write_findings(page: Page, comparison: Comparison) -> None:
    lines = []
    for sign, _, word, findings in group_findings(comparison):
        for finding in findings[:_FINDINGS]:
            told = f"{finding.severity.value}: {prose(finding.title, _SHORT)}"
            lines.append(f"- {sign} {word} **{finding.code}** {told} ({escape(show_place(finding), _SHORT)})")
        if len(findings) > _FINDINGS:
            lines.append(f"- … and {len(findings) - _FINDINGS} more {word}, all in the JSON report")
    if lines:
        page.section("Findings", "\n".join(lines))


def _write_layers(page: Page, comparison: Comparison, show_all: bool) -> None:
    rows = list_shared(comparison, show_all)
    told = [describe_unchanged(comparison, len(rows))]
    for where, names in list_lonely(comparison):
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        told.append(f"{where} ({len(names)}): {', '.join(names[:_NAMES])}{more}")
    if not rows and not any(told):
        return
    stage = "" if comparison.stage is None else f" ({comparison.stage.value} stage)"
    page.section(f"Layers{stage}", "\n".join(f"- {escape(text)}" for text in told if text) or "A beside B:")
    if rows:
        titles = [f"{title}, {side}" for title in LAYER_TITLES for side in ("A", "B")]
        page.fold(f"{count_noun(len(rows), 'layer')}")
        cells = []
        for each in rows:
            pairs = zip(list_layer_cells(each.before), list_layer_cells(each.after), strict=True)
            cells.append([code(each.name, _LONGEST_NAME), *(escape(cell) for pair in pairs for cell in pair)])
        page.table(["layer", *titles], cells, _tell_left_out, right=titles)
        page.unfold()


def _tell_left_out(count: int) -> str:
    return f"… and {count_noun(count, 'more layer')}, left out to stay below GitHub's limit; all in the JSON report"


def _write_runs(page: Page, comparison: Comparison) -> None:
    rows = []
    for name, side in (("A", comparison.before), ("B", comparison.after)):
        run = side.run
        versions = f"torch {run.torch_version}, nanprobe {run.nanprobe_version}, {run.device}"
        asked = f"{count_noun(run.steps, 'step')} a stage, seed {run.seed}"
        target, directory = code(show_target(run.target), _SHORT), code(shorten_home(run.directory), _SHORT)
        rows.append(row([name, target, asked, escape(versions), directory]))
    page.add("### Runs\n\n" + "\n".join([head(["", "target", "asked", "versions", "directory"]), *rows]), last=True)
