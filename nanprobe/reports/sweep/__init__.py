"""Reports of `nanprobe sweep-scale`: a sweep's result as text, one renderer a format. No torch here."""

from __future__ import annotations

from typing import Protocol

from typing_extensions import assert_never

from nanprobe.loss_scale.result import SweepResult
from nanprobe.reports.formats import ReportFormat

__all__ = ["SweepReport", "make_sweep_report"]


class SweepReport(Protocol):
    """Renders a sweep; reads nothing but its argument, and never prints."""

    def render(self, result: SweepResult) -> str:
        """The whole report, ending in a newline."""
        ...


def make_sweep_report(
    form: ReportFormat, *, width: int = 80, color: bool = False, show_all: bool = False
) -> SweepReport:
    """The renderer of a format. Width (columns) and colour concern the terminal only, `show_all` also Markdown."""
    if form is ReportFormat.TERMINAL:
        from nanprobe.reports.sweep.terminal import SweepTerminalReport

        return SweepTerminalReport(width=width, color=color, show_all=show_all)
    if form is ReportFormat.JSON:
        from nanprobe.reports.sweep.document import SweepJsonReport

        return SweepJsonReport()
    if form is ReportFormat.MARKDOWN:
        from nanprobe.reports.sweep.markdown import SweepMarkdownReport

        return SweepMarkdownReport(show_all=show_all)
    if form is ReportFormat.JUNIT:
        from nanprobe.reports.sweep.junit import SweepJunitReport

        return SweepJunitReport()
    if form is ReportFormat.GITHUB:
        from nanprobe.reports.sweep.github import SweepGithubReport

        return SweepGithubReport()
    if form is ReportFormat.HTML:
        from nanprobe.reports.html.sweep import SweepHtmlReport

        return SweepHtmlReport()
    assert_never(form)
