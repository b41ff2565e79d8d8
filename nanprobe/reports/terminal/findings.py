"""Further findings: what else was seen, a line each, and where."""

from __future__ import annotations

from nanprobe.findings import Diagnosis, Finding, Severity
from nanprobe.reports.excerpt import show_line
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.canvas import Canvas

SHOWN = 8

SIGNS: dict[Severity, tuple[str, str]] = {
    Severity.ERROR: ("✖", "red"),
    Severity.WARNING: ("▲", "yellow"),
    Severity.NOTE: ("•", "cyan"),
}


def draw_findings(canvas: Canvas, diagnosis: Diagnosis, show_all: bool) -> None:
    """All findings but the verdict, the gravest first."""
    rest = list_rest(diagnosis)
    if not rest:
        return
    canvas.heading("ALSO FOUND")
    shown = rest if show_all else rest[:SHOWN]
    for finding in shown:
        sign, style = SIGNS[finding.severity]
        grade, code = f"{sign} {finding.severity.value:<7}  ", f"{finding.code}  "
        canvas.paragraph(finding.title, lead=[(grade, style), (code, "bold")], indent=2)
        canvas.paragraph((show_place(finding), "dim"), indent=2 + len(grade + code))
    if len(rest) > len(shown):
        canvas.line(f"  … and {count_noun(len(rest) - len(shown), 'more finding')}, all in the JSON report")


def list_rest(diagnosis: Diagnosis) -> list[Finding]:
    """All findings but the verdict, the gravest first."""
    order = list(SIGNS)
    rest = [finding for finding in diagnosis.findings if finding is not diagnosis.verdict]
    return sorted(rest, key=lambda finding: order.index(finding.severity))


def show_place(finding: Finding) -> str:
    """Where a finding stands, in short: "amp step 12 · encoder.layers.3 · train.py:41"."""
    when = finding.stage.value
    if finding.step is not None:
        when += f" step {finding.step}" if finding.step >= 0 else " before the first step"
    place = [when, finding.parameter or finding.module or ""]
    if finding.source is not None:
        place.append(show_line(finding.source))
    return " · ".join(part for part in place if part)
