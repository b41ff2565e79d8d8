"""A sweep as annotations of GitHub Actions, on the script."""

from __future__ import annotations

from nanprobe.findings import Status
from nanprobe.loss_scale.result import SweepResult
from nanprobe.reports.github import annotation, plain_line, target_file
from nanprobe.reports.terminal.header import show_target


class SweepGithubReport:
    """An error for each reason, with the advice, and a line for the log."""

    def render(self, result: SweepResult) -> str:
        """Workflow commands, one a line."""
        advice = result.advice
        tips = [] if advice is None else [advice.why, *advice.remedies, *([advice.code] if advice.code else [])]
        title = "nanprobe could not tell" if result.status is Status.INCONCLUSIVE else "unsafe loss scale"
        lines = [
            annotation("error", "\n".join([reason, *tips]), title=title, file=target_file(result.run.target))
            for reason in result.reasons
        ]
        head = f"nanprobe: loss scale of {show_target(result.run.target)}: {result.status.value}"
        lines.append(plain_line("; ".join([head, *tips[:1], f"run {result.run.directory}"])))
        return "".join(lines)
