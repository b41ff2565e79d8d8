"""The formats a report can have, and the renderer of each."""

from __future__ import annotations

from enum import Enum

from typing_extensions import assert_never

from nanprobe.reports.interface import Report


class ReportFormat(str, Enum):
    """The values of `--format`."""

    TERMINAL = "terminal"
    JSON = "json"
    HTML = "html"


def make_report(form: ReportFormat, *, width: int = 80, color: bool = False, show_all: bool = False) -> Report:
    """The renderer of a format. Width (columns), colour and `show_all` (healthy layers too) concern the terminal only.

    Imports each renderer late, so that `--format json` does not wait for rich.
    """
    if form is ReportFormat.TERMINAL:
        from nanprobe.reports.terminal import TerminalReport

        return TerminalReport(width=width, color=color, show_all=show_all)
    if form is ReportFormat.JSON:
        from nanprobe.reports.json_report import JsonReport

        return JsonReport()
    if form is ReportFormat.HTML:
        from nanprobe.reports.html import HtmlReport

        return HtmlReport()
    assert_never(form)
