"""The GitHub report: errors and warnings as annotations on the lines they are about."""

from __future__ import annotations

from nanprobe.findings import Diagnosis, Finding, Severity
from nanprobe.records import RunRecord, Target
from nanprobe.reports.github.commands import annotate_finding, annotation, file_of, plain_line
from nanprobe.reports.plain import write_place
from nanprobe.reports.terminal.header import show_target

__all__ = ["GithubReport", "annotate_finding", "annotation", "file_of", "plain_line", "target_file"]


class GithubReport:
    """Annotations, the verdict first, and a line for the log. Notes are left out: they ask for nothing to be done."""

    def render(self, run: RunRecord, diagnosis: Diagnosis) -> str:
        """Workflow commands, one a line."""
        script = target_file(run.target)
        shown = [finding for finding in diagnosis.findings if finding.severity is not Severity.NOTE]
        lines = [annotate_finding(finding, _explain(finding), script) for finding in shown]
        if diagnosis.reasons and diagnosis.verdict is None:
            lines.append(_could_not_tell(run, diagnosis, script))
        lines.append(plain_line(f"nanprobe: {show_target(run.target)}: {diagnosis.status.value}; run {run.directory}"))
        return "".join(lines)


def target_file(target: Target) -> str | None:
    """The script as GitHub finds it; None for a module, whose file is not known here."""
    return None if target.mode == "module" else file_of(target.path)


def _explain(finding: Finding) -> str:
    remedies = [f"{number}. {remedy.text}" for number, remedy in enumerate(finding.remedies, 1)]
    parts = [finding.title, write_place(finding), finding.why, *remedies, f"nanprobe explain {finding.code}"]
    return "\n".join(part for part in parts if part)


def _could_not_tell(run: RunRecord, diagnosis: Diagnosis, script: str | None) -> str:
    """At the line of the script's own error, where there is one."""
    error = next((stage.error for stage in run.stages if stage.error is not None), None)
    source = error.source if error is not None else None
    return annotation(
        "error",
        "\n".join(diagnosis.reasons),
        title="nanprobe could not tell",
        file=script if source is None else file_of(source),
        line=None if source is None else source.line,
    )
