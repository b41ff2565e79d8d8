"""What was run: the target, the machine, and a row for each stage with how it went."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.records import RunRecord, StageName
from nanprobe.reports.condensing import name_format
from nanprobe.reports.excerpt import show_line
from nanprobe.reports.html.figures import RESULT_SIGNS, badge
from nanprobe.reports.html.markup import Child, Markup, element, join
from nanprobe.reports.html.tables import Column, facts, section, table
from nanprobe.reports.numbers import NOT_MEASURED, show_number, show_seconds
from nanprobe.reports.stage_summary import Result, StageSummary
from nanprobe.reports.terminal.header import list_notices, show_target

_COLUMNS = (
    Column("stage"),
    Column("result"),
    Column("steps", number=True),
    Column("skipped", number=True),
    Column("first NaN/Inf", number=True),
    Column("setup"),
    Column("format"),
    Column("loss", number=True),
    Column("time", number=True),
)


def stage_section(run: RunRecord, summaries: Sequence[StageSummary]) -> Markup:
    """The stages in a table, why one did not go through, and the facts of the run."""
    rows = [_cells(summary, run.steps) for summary in summaries]
    notes = [element("li", *parts) for parts in _notes(run, summaries)]
    return section(
        "What was run",
        "stages",
        table(_COLUMNS, rows, "Stages") if rows else None,
        element("ul", *notes, class_="notes") if notes else None,
        facts(_run_facts(run)),
    )


def _cells(summary: StageSummary, asked: int) -> list[Child]:
    trace = summary.trace
    sign, style = RESULT_SIGNS[summary.result]
    result = badge(sign, summary.result.value, style)
    if summary.result is Result.SKIPPED:
        return [element("b", trace.name.value), result, *[NOT_MEASURED] * 7]
    scaled = any(step.loss_scale is not None for step in trace.steps)
    first = summary.first_nonfinite_step
    return [
        element("b", trace.name.value),
        result,
        f"{summary.steps}/{max(asked, summary.steps)}",
        str(summary.skipped_steps) if scaled or summary.skipped_steps else NOT_MEASURED,
        NOT_MEASURED if first is None else f"step {first}",
        setup_of(summary),
        name_format(trace.dtype),
        _change([step.loss for step in trace.steps]),
        show_seconds(trace.seconds),
    ]


def setup_of(summary: StageSummary) -> str:
    """How the stage's precision came about."""
    if summary.trace.as_written:
        return "as written"
    return "everything in FP32" if summary.trace.name is StageName.FP32 else "put around the script"


def _change(values: Sequence[float | None]) -> str:
    measured = [value for value in values if value is not None]
    if not measured:
        return NOT_MEASURED
    first, last = show_number(measured[0]), show_number(measured[-1])
    return first if first == last else f"{first} → {last}"


def _notes(run: RunRecord, summaries: Sequence[StageSummary]) -> list[list[Child]]:
    """Reasons, put-back weights, and the notices of the run."""
    notes: list[list[Child]] = []
    for summary in summaries:
        trace = summary.trace
        if trace.reason:
            error = trace.error
            line = f" ({show_line(error.source)})" if error is not None and error.source is not None else ""
            notes.append([element("b", trace.name.value), f" {summary.result.value}: {trace.reason}{line}"])
        if trace.contained_update is not None:
            told = f": the update of step {trace.contained_update} made weights non-finite; they were put back, and later updates ran in FP32"  # noqa: E501
            notes.append([element("b", trace.name.value), told])
    return notes + [[notice] for notice in list_notices(run)]


def _run_facts(run: RunRecord) -> list[tuple[str, Child]]:
    return [
        ("target", element("code", show_target(run.target))),
        ("device", run.device),
        ("versions", f"nanprobe {run.nanprobe_version}, torch {run.torch_version}"),
        ("asked for", join([f"{run.steps:,} steps a stage, seed {run.seed}"])),
        ("run directory", element("code", run.directory)),
    ]
