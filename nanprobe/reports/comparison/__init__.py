"""Two runs of `nanprobe diagnose` side by side: what a change did, as text. No torch here."""

from __future__ import annotations

from nanprobe.reports.comparison.changes import compare
from nanprobe.reports.comparison.model import Change, Comparison, Side
from nanprobe.reports.formats import ReportFormat

__all__ = ["COMPARISON_FORMATS", "Change", "Comparison", "Side", "compare", "render_comparison"]

COMPARISON_FORMATS = {form.value: form for form in (ReportFormat.TERMINAL, ReportFormat.JSON, ReportFormat.MARKDOWN)}


def render_comparison(
    comparison: Comparison, form: ReportFormat, *, width: int = 80, color: bool = False, show_all: bool = False
) -> str:
    """The comparison in one of COMPARISON_FORMATS; width, in columns, and colour concern the terminal only."""
    if form is ReportFormat.JSON:
        from nanprobe.reports.comparison.document import render_document

        return render_document(comparison)
    if form is ReportFormat.MARKDOWN:
        from nanprobe.reports.comparison.markdown import render_markdown

        return render_markdown(comparison, show_all)
    from nanprobe.reports.comparison.terminal import render_terminal

    return render_terminal(comparison, width, color, show_all)
