"""The formats a report can have, and the renderer of each."""

from __future__ import annotations

from enum import Enum

from typing_extensions import assert_never

from nanprobe.fail_on import FailOn
from nanprobe.reports.interface import Report


class ReportFormat(str, Enum):
    """The values of `--format`."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"
    HTML = "html"
    JUNIT = "junit"
    GITHUB = "github"


def make_report(
    form: ReportFormat, *, width: int = 80, color: bool = False, show_all: bool = False, failing: FailOn | None = None
) -> Report:
    """The renderer of a format. Width (columns) and colour concern the terminal only, `show_all` also Markdown.

    `failing` says which findings fail a test case of `junit`; None: errors.

    Imports each renderer late, so that `--format json` does not wait for rich.
    """
    if form is ReportFormat.TERMINAL:
        from nanprobe.reports.terminal import TerminalReport

        return TerminalReport(width=width, color=color, show_all=show_all)
    if form is ReportFormat.JSON:
        from nanprobe.reports.json_report import JsonReport

        return JsonReport()
    if form is ReportFormat.MARKDOWN:
        from nanprobe.reports.markdown import MarkdownReport

        return MarkdownReport(show_all=show_all)
    if form is ReportFormat.JUNIT:
        from nanprobe.reports.junit import JunitReport

        return JunitReport() if failing is None else JunitReport(failing)
    if form is ReportFormat.GITHUB:
        from nanprobe.reports.github import GithubReport

        return GithubReport()
    if form is ReportFormat.HTML:
        from nanprobe.reports.html import HtmlReport

        return HtmlReport()
    assert_never(form)
