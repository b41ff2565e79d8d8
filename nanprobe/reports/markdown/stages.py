"""The stages in Markdown: one row a stage, and the reason where one did not go through."""

from __future__ import annotations

from nanprobe.findings import Diagnosis
from nanprobe.records import RunRecord
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.syntax import escape, head, row
from nanprobe.reports.stage_summary import summarize_stages
from nanprobe.reports.terminal.stages import list_cells, list_reasons

_RIGHT = ("steps", "skipped", "time")


def write_stages(page: Page, run: RunRecord, diagnosis: Diagnosis) -> None:
    """The table, then a point for each reason."""
    summaries = summarize_stages(run.stages, diagnosis)
    if not summaries:
        return
    table = [list_cells(summary, run.steps, wide=True) for summary in summaries]
    titles = [title if "NaN" in title else title.lower() for title in table[0]]
    rows = "\n".join(row([escape(cell) for cell in cells.values()]) for cells in table)
    reasons = [f"- {escape(lead)}: {escape(text)}" for lead, text, _ in list_reasons(summaries)]
    page.section("Stages", f"{head(titles, _RIGHT)}\n{rows}", *(["\n".join(reasons)] if reasons else []))
