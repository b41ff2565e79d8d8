"""The stages table: one line a stage, in words as well as in colour, and the reason where one did not go through."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.records import RunRecord, StageName
from nanprobe.reports.excerpt import show_line
from nanprobe.reports.numbers import NOT_MEASURED, show_number, show_seconds
from nanprobe.reports.stage_summary import Result, StageSummary
from nanprobe.reports.terminal.canvas import Canvas, Part, pad

PUT_AROUND = "put around"
WIDE = 110  # from here on there is room for the loss and its scale

SIGNS: dict[Result, tuple[str, str]] = {
    Result.OK: ("✔", "green"),
    Result.NOTED: ("▲", "yellow"),
    Result.BROKE: ("✖", "red"),
    Result.NO_STEPS: ("?", "yellow"),
    Result.CRASHED: ("✖", "red"),
    Result.SKIPPED: ("–", "dim"),
    Result.TIMED_OUT: ("✖", "red"),
}
_USUAL_DTYPES = {StageName.FP32: "float32", StageName.FP16: "float16", StageName.AMP: "float16"}
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
DISPENSABLE = ("TIME", "SETUP", "SKIPPED")  # left out first where the terminal is narrow
_RIGHT = {"STEPS", "SKIPPED", "TIME"}


def draw_stages(canvas: Canvas, run: RunRecord, summaries: Sequence[StageSummary]) -> None:
    """The table, then a line for each reason."""
    if not summaries:
        return
    table = [list_cells(summary, run.steps, canvas.width >= WIDE) for summary in summaries]
    titles = list(table[0])
    widths = {title: max(len(title), *(len(row[title]) for row in table)) for title in titles}
    for title in DISPENSABLE:
        if sum(widths[title] + 2 for title in titles) > canvas.width:
            titles.remove(title)
    canvas.blank()
    canvas.line("  ", ("  ".join(pad(title, widths[title], title in _RIGHT) for title in titles), "dim"))
    for summary, row in zip(summaries, table, strict=True):
        cells: list[Part] = ["  "]
        for title in titles:
            style = SIGNS[summary.result][1] if title == "RESULT" else "bold" if title == "STAGE" else ""
            cells += [(pad(row[title], widths[title], title in _RIGHT), style), "  "]
        canvas.line(*cells)
    for lead, text, style in list_reasons(summaries):
        parts: list[Part] = [(f"{lead}: {text}", style)] if lead == PUT_AROUND else [(f"{lead}: ", style), text]
        canvas.paragraph(*parts, indent=2)


def name_stage(summary: StageSummary) -> str:
    """The stage's name, with its format when that is not the usual one: "amp (bf16)"."""
    name, dtype = summary.trace.name, summary.trace.dtype
    usual = dtype == _USUAL_DTYPES[name] or summary.result is Result.SKIPPED
    return name.value if usual else f"{name.value} ({_DTYPES.get(dtype, dtype)})"


def list_cells(summary: StageSummary, asked: int, wide: bool) -> dict[str, str]:
    """A stage's cells by the title of their column."""
    trace = summary.trace
    ran = summary.result is not Result.SKIPPED
    scaled = any(step.loss_scale is not None for step in trace.steps)
    first = summary.first_nonfinite_step
    cells = {
        "STAGE": name_stage(summary),
        "RESULT": f"{SIGNS[summary.result][0]} {summary.result.value}",
        "STEPS": f"{summary.steps}/{max(asked, summary.steps)}" if ran else NOT_MEASURED,
        "SKIPPED": str(summary.skipped_steps) if scaled or summary.skipped_steps else NOT_MEASURED,
        "FIRST NaN/Inf": NOT_MEASURED if first is None else f"step {first}",
        "SETUP": _run_as(summary) if ran else NOT_MEASURED,
        "TIME": show_seconds(trace.seconds) if ran else NOT_MEASURED,
    }
    if wide:
        cells["LOSS"] = _show_change([step.loss for step in trace.steps])
        cells["LOSS SCALE"] = _show_change([step.loss_scale for step in trace.steps])
    return cells


def _run_as(summary: StageSummary) -> str:
    if summary.trace.as_written:
        return "as written"
    return "FP32" if summary.trace.name is StageName.FP32 else PUT_AROUND


def _show_change(values: Sequence[float | None]) -> str:
    measured = [value for value in values if value is not None]
    if not measured:
        return NOT_MEASURED
    first, last = show_number(measured[0]), show_number(measured[-1])
    return first if first == last else f"{first} → {last}"


def list_reasons(summaries: Sequence[StageSummary]) -> list[tuple[str, str, str]]:
    """Why a stage did not go through, and how it was run: lead, text and the lead's style.

    Stages with one reason in common share a line.
    """
    reasons: dict[tuple[str, Result], list[str]] = {}
    for summary in summaries:
        if summary.trace.reason:
            reasons.setdefault((_explain(summary), summary.result), []).append(summary.trace.name.value)
    told = [
        (f"{', '.join(names)} {result.value}", reason, SIGNS[result][1]) for (reason, result), names in reasons.items()
    ]
    for summary in summaries:
        step = summary.trace.contained_update
        if step is not None:
            text = (
                f"the update of step {step} made weights non-finite; they were put back, and later updates ran in FP32"
            )
            told.append((summary.trace.name.value, text, "yellow"))
    if any(_run_as(summary) == PUT_AROUND for summary in summaries if summary.steps):
        told.append((PUT_AROUND, "the script does not use this precision itself, nanprobe added it", "dim"))
    return told


def _explain(summary: StageSummary) -> str:
    """The reason, with the line that raised where it is known."""
    error, reason = summary.trace.error, summary.trace.reason or ""
    return reason if error is None or error.source is None else f"{reason} ({show_line(error.source)})"
