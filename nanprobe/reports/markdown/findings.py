"""Further findings in Markdown: what else was seen, a line each, and where."""

from __future__ import annotations

from nanprobe.findings import Diagnosis
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.syntax import escape, prose
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.findings import SHOWN, SIGNS, list_rest, show_place

_MOST = 50  # even when all are asked for: GitHub's limit is shared with the layers


def write_findings(page: Page, diagnosis: Diagnosis, show_all: bool) -> None:
    """All findings but the verdict, the gravest first."""
    rest = list_rest(diagnosis)
    if not rest:
        return
    shown = rest[: _MOST if show_all else SHOWN]
    lines = [
        f"- {SIGNS[finding.severity][0]} {finding.severity.value} **{finding.code}** {prose(finding.title, 300)} "
        f"({escape(show_place(finding), 300)})"
        for finding in shown
    ]
    if len(rest) > len(shown):
        lines.append(f"- … and {count_noun(len(rest) - len(shown), 'more finding')}, all in the JSON report")
    page.section("Also found", "\n".join(lines))
