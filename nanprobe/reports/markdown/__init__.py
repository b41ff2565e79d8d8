"""The Markdown report, to paste into a bug report: the verdict first, long tables folded away."""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.findings import Diagnosis, Status
from nanprobe.records import RunRecord
from nanprobe.reports.markdown.conclusion import write_healthy, write_inconclusive, write_reasons
from nanprobe.reports.markdown.findings import write_findings
from nanprobe.reports.markdown.layers import write_layers
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.setting import write_setting
from nanprobe.reports.markdown.stages import write_stages
from nanprobe.reports.markdown.verdict import write_verdict

__all__ = ["MarkdownReport"]


@dataclass(frozen=True, slots=True)
class MarkdownReport:
    """The report as GitHub shows it; shorter than GitHub's limit whatever the run."""

    show_all: bool = False

    def render(self, run: RunRecord, diagnosis: Diagnosis) -> str:
        """Verdict, evidence, stages, further findings, layers, environment, in this order."""
        page = Page()
        if diagnosis.verdict is not None:
            write_verdict(page, run, diagnosis.verdict, diagnosis.verification)
        elif diagnosis.status is Status.HEALTHY:
            write_healthy(page, diagnosis, run)
        else:
            write_inconclusive(page, diagnosis, run)
        write_stages(page, run, diagnosis)
        write_findings(page, diagnosis, self.show_all)
        if diagnosis.verdict is not None or diagnosis.status is Status.HEALTHY:
            write_reasons(page, diagnosis)
        write_layers(page, diagnosis, self.show_all)
        write_setting(page, run)
        return page.text()
