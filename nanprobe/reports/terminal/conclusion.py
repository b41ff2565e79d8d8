"""The two answers that name no culprit: healthy, and could not tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nanprobe.findings import Diagnosis
from nanprobe.records import ErrorRecord, Outcome, RunRecord, StageTrace
from nanprobe.reports.numbers import count_noun, show_number
from nanprobe.reports.stage_summary import Result, StageSummary
from nanprobe.reports.terminal.canvas import Canvas
from nanprobe.reports.terminal.closing import shorten_home
from nanprobe.reports.terminal.header import show_target
from nanprobe.reports.terminal.verdict import draw_source


def draw_healthy(canvas: Canvas, diagnosis: Diagnosis, summaries: Sequence[StageSummary]) -> None:
    """That every stage ran and no error was found, with what the loss did and what the scaler skipped."""
    canvas.rule(("✔ ", "bold green"), ("HEALTHY", "bold green"), style="green")
    steps = sum(summary.steps for summary in summaries)
    stages = count_noun(len(summaries), "stage")
    canvas.paragraph((f"No error found in {count_noun(steps, 'step')} of {stages}.", "bold"))
    for summary in summaries:
        text = _describe_run(summary)
        if text:
            canvas.paragraph(text, lead=[(f"{summary.trace.name.value:<6}", "dim")], indent=2)


def _describe_run(summary: StageSummary) -> str:
    losses = [step.loss for step in summary.trace.steps if step.loss is not None]
    text = f"loss {show_number(losses[0])} → {show_number(losses[-1])}" if losses else ""
    if summary.skipped_steps and summary.result is Result.OK:
        skipped = count_noun(summary.skipped_steps, "step")
        text += f"{', ' if text else ''}{skipped} skipped while the loss scale settled: this is how it should be"
    return text


def draw_inconclusive(canvas: Canvas, run: RunRecord, diagnosis: Diagnosis) -> None:
    """What could not be told, the script's own error, and what to do about it."""
    canvas.rule(("? ", "bold yellow"), ("COULD NOT TELL", "bold yellow"), style="yellow")
    canvas.paragraph(("Not enough was seen to call this training healthy or failing.", "bold"))
    draw_reasons(canvas, diagnosis)
    failed = next((stage for stage in run.stages if stage.error is not None), None)
    if failed is not None and failed.error is not None:
        canvas.heading(f"THE SCRIPT'S ERROR, IN THE {failed.name.value} STAGE")
        _draw_error(canvas, failed.error)
    canvas.heading("WHAT TO DO")
    for number, text in enumerate(list_advice(run), 1):
        canvas.paragraph(text, lead=[(f"{number}. ", "bold")], indent=2)


def draw_reasons(canvas: Canvas, diagnosis: Diagnosis) -> None:
    """What could not be told and why, a point each."""
    if diagnosis.reasons:
        canvas.heading("WHAT COULD NOT BE TOLD, AND WHY")
    for reason in diagnosis.reasons:
        canvas.paragraph(reason, lead=["• "], indent=2)


def _draw_error(canvas: Canvas, error: ErrorRecord) -> None:
    if error.source is not None:
        draw_source(canvas, error.source)
        canvas.blank()
    for line in error.traceback:
        canvas.paragraph((line.rstrip(), "dim"), indent=4)
    if not error.traceback or not error.traceback[-1].startswith(error.kind):
        canvas.paragraph(f"{error.kind}: {error.message}", indent=4)


def list_advice(run: RunRecord) -> list[str]:
    """What helps, by how the stages ended."""
    stopped = [stage for stage in run.stages if stage.outcome in (Outcome.CRASHED, Outcome.TIMEOUT)]
    stepless = [stage for stage in run.stages if stage.outcome is Outcome.COMPLETED and not stage.steps]
    advice = []
    if any(stage.outcome is Outcome.TIMEOUT for stage in stopped):
        advice.append("give it more time with --timeout, or fewer steps with --steps")
    if any(stage.error is not None for stage in stopped):
        advice.append(f"see whether the script runs on its own: python {show_target(run.target)}")
    if stepless:
        advice.append(
            "make sure the script trains: nanprobe counts the calls of an optimizer's step(), and saw none; "
            "arguments for the script go behind --"
        )
    first = next(iter(stopped or stepless), None)
    if first is not None:
        advice.append(f"read what the script printed: {_output_log(run, first)}")
    return advice or ["run it again with more steps: --steps"]


def _output_log(run: RunRecord, stage: StageTrace) -> str:
    return shorten_home(str(Path(run.directory) / "stages" / stage.name.value / "output.log"))
