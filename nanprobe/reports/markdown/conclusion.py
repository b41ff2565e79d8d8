"""The two answers that name no culprit, in Markdown: healthy, and could not tell."""

from __future__ import annotations

from nanprobe.findings import Diagnosis
from nanprobe.records import ErrorRecord, RunRecord
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.syntax import escape, fence
from nanprobe.reports.markdown.verdict import quote_source
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.stage_summary import summarize_stages
from nanprobe.reports.terminal.conclusion import describe_run, list_advice

TRACEBACK = 30  # lines shown, the last ones


def write_healthy(page: Page, diagnosis: Diagnosis, run: RunRecord) -> None:
    """That every stage ran and no error was found, with what the loss did and what the scaler skipped."""
    summaries = summarize_stages(run.stages, diagnosis)
    steps = count_noun(sum(summary.steps for summary in summaries), "step")
    page.add(f"## ✔ HEALTHY\n\n**No error found in {steps} of {count_noun(len(summaries), 'stage')}.**")
    told = [(summary.trace.name.value, describe_run(summary)) for summary in summaries]
    if any(text for _, text in told):
        page.add("\n".join(f"- {name}: {escape(text)}" for name, text in told if text))


def write_inconclusive(page: Page, diagnosis: Diagnosis, run: RunRecord) -> None:
    """What could not be told, the script's own error, and what to do about it."""
    page.add("## ? COULD NOT TELL\n\n**Not enough was seen to call this training healthy or failing.**")
    write_reasons(page, diagnosis)
    failed = next((stage for stage in run.stages if stage.error is not None), None)
    if failed is not None and failed.error is not None:
        page.section(f"The script's error, in the {failed.name.value} stage", *_quote_error(failed.error))
    page.section("What to do", "\n".join(f"{n}. {escape(text)}" for n, text in enumerate(list_advice(run), 1)))


def write_reasons(page: Page, diagnosis: Diagnosis) -> None:
    """What could not be told and why, a point each."""
    if diagnosis.reasons:
        page.section("What could not be told, and why", "\n".join(f"- {escape(text)}" for text in diagnosis.reasons))


def _quote_error(error: ErrorRecord) -> list[str]:
    lines = list(error.traceback[-TRACEBACK:])
    if not lines or not lines[-1].startswith(error.kind):
        lines.append(f"{error.kind}: {error.message}")
    source = [] if error.source is None else [quote_source(error.source)]
    return [*source, fence([part for line in lines for part in line.splitlines()], "text")]
