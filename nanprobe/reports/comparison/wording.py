"""What a comparison says in words, in every format alike."""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.findings import Finding, Status
from nanprobe.reports.comparison.model import Change, Comparison, LayerChange, LayerFigures, StageFigures
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_bits, show_number, show_percent
from nanprobe.reports.terminal.stages import SIGNS

TITLES: dict[Change, tuple[str, str, str]] = {  # sign, colour, words
    Change.FIXED: ("✔", "green", "FIXED"),
    Change.HEALTHY: ("✔", "green", "HEALTHY"),
    Change.BROKEN: ("✖", "red", "BROKEN"),
    Change.SAME_CAUSE: ("✖", "red", "STILL FAILING, FOR THE SAME REASON"),
    Change.OTHER_CAUSE: ("✖", "red", "STILL FAILING, FOR ANOTHER REASON"),
    Change.UNKNOWN: ("?", "yellow", "COULD NOT TELL"),
}
LAYER_TITLES = ("headroom, bits", "flushed", "norm lost", "NaN/Inf steps")
_STATUS = {Status.HEALTHY: "healthy", Status.FAILING: "failing", Status.INCONCLUSIVE: "inconclusive"}


@dataclass(frozen=True, slots=True)
class Line:
    """One run's part of the headline."""

    side: str  # "A" | "B"
    text: str


def describe_sides(comparison: Comparison) -> tuple[Line, Line]:
    """Status and verdict of both runs, a line each."""
    sides = (("A", comparison.before.diagnosis), ("B", comparison.after.diagnosis))
    first, second = (
        Line(name, _STATUS[told.status] + _describe(told.verdict) + _explain(told.reasons)) for name, told in sides
    )
    return first, second


def list_stage_cells(figures: StageFigures | None, asked: int) -> dict[str, str]:
    """A stage of one run by the title of the column."""
    if figures is None:
        return dict.fromkeys(("result", "steps", "skipped", "first NaN/Inf", "final loss"), NOT_MEASURED) | {
            "result": "not in this run",
            "verdict": NOT_MEASURED,
        }
    summary = figures.summary
    ran = bool(summary.steps)
    first = summary.first_nonfinite_step
    return {
        "result": f"{SIGNS[summary.result][0]} {summary.result.value}",
        "steps": f"{summary.steps}/{max(asked, summary.steps)}" if ran else NOT_MEASURED,
        "skipped": str(summary.skipped_steps) if ran else NOT_MEASURED,
        "first NaN/Inf": NOT_MEASURED if first is None else f"step {first}",
        "final loss": show_number(figures.final_loss),
        "verdict": NOT_MEASURED if figures.verdict is None else figures.verdict.code,
    }


def list_layer_cells(figures: LayerFigures | None) -> tuple[str, str, str, str]:
    """A layer of one run, in the order of LAYER_TITLES."""
    if figures is None:
        return (NOT_MEASURED,) * 4
    return (
        show_bits(figures.headroom_bits).removesuffix(" bits"),
        show_percent(figures.flushed_fraction),
        show_percent(figures.lost_norm_fraction),
        NOT_MEASURED if figures.nonfinite_steps is None else str(figures.nonfinite_steps),
    )


def list_lonely(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The layers that only one run has, by where they are."""
    before = [row.name for row in comparison.layers if row.after is None]
    after = [row.name for row in comparison.layers if row.before is None]
    return [(f"only in {name}", names) for name, names in (("A", before), ("B", after)) if names]


def list_shared(comparison: Comparison, show_all: bool) -> list[LayerChange]:
    """The layers of both runs that changed, or all of them."""
    shared = [row for row in comparison.layers if row.before is not None and row.after is not None]
    return [row for row in shared if row.changed or show_all]


def describe_unchanged(comparison: Comparison, shown: int) -> str:
    """The layers that are not in the table, in one line; empty when there is none."""
    shared = sum(row.before is not None and row.after is not None for row in comparison.layers)
    unchanged = sum(not row.changed for row in comparison.layers)
    if shown == shared or not unchanged:
        return ""
    return f"{count_noun(unchanged, 'layer')} as before (less than half a bit, and less than 1%)"


def group_findings(comparison: Comparison) -> list[tuple[str, str, str, tuple[Finding, ...]]]:
    """Sign, colour and word of what is gone, new, the same and unknown, with the findings; of the same those of B."""
    groups = [
        ("✔", "green", "gone", comparison.gone),
        ("?", "yellow", "not looked for", comparison.unseen),
        ("✖", "red", "new", comparison.new),
        ("•", "cyan", "same", tuple(after for _, after in comparison.same)),
    ]
    return [group for group in groups if group[3]]


def _describe(verdict: Finding | None) -> str:
    return "" if verdict is None else f", {verdict.code}: {verdict.title}"


def _explain(reasons: tuple[str, ...]) -> str:
    return f": {reasons[0]}" if reasons else ""
