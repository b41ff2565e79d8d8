"""The terminal report: what a person with a dead run reads first, at any width, with or without colour."""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.findings import Diagnosis, Status
from nanprobe.records import RunRecord
from nanprobe.reports.stage_summary import summarize_stages
from nanprobe.reports.terminal.canvas import Canvas
from nanprobe.reports.terminal.closing import draw_closing
from nanprobe.reports.terminal.conclusion import draw_healthy, draw_inconclusive, draw_reasons
from nanprobe.reports.terminal.findings import draw_findings
from nanprobe.reports.terminal.header import draw_header
from nanprobe.reports.terminal.layers import draw_layers
from nanprobe.reports.terminal.stages import draw_stages
from nanprobe.reports.terminal.verdict import draw_verdict

__all__ = ["TerminalReport", "render_terminal"]


@dataclass(frozen=True, slots=True)
class TerminalReport:
    """The report for people."""

    width: int = 80
    color: bool = False
    show_all: bool = False

    def render(self, run: RunRecord, diagnosis: Diagnosis) -> str:
        """The report as lines no longer than the width; only paths and commands may be, to stay whole."""
        return render_terminal(run, diagnosis, self.width, self.color, self.show_all)


def render_terminal(run: RunRecord, diagnosis: Diagnosis, width: int, color: bool, show_all: bool) -> str:
    """Header, stages, verdict, further findings, layers, what to run next, in this order."""
    canvas = Canvas(width, color)
    summaries = summarize_stages(run.stages, diagnosis)
    draw_header(canvas, run)
    draw_stages(canvas, run, summaries)
    if diagnosis.verdict is not None:
        draw_verdict(canvas, run, diagnosis.verdict, diagnosis.verification)
    elif diagnosis.status is Status.HEALTHY:
        draw_healthy(canvas, diagnosis, summaries)
    elif diagnosis.status is Status.INCONCLUSIVE:
        draw_inconclusive(canvas, run, diagnosis)
    draw_findings(canvas, diagnosis, show_all)
    if diagnosis.status is not Status.INCONCLUSIVE or diagnosis.verdict is not None:
        draw_reasons(canvas, diagnosis)
    draw_layers(canvas, diagnosis, show_all)
    draw_closing(canvas, run, diagnosis)
    return canvas.text()
