"""Checks as annotations of GitHub Actions: on the line that was found, else on the recipe."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.recipe.outcome import CheckOutcome, CheckVerdict
from nanprobe.reports.check.wording import explain, summarize
from nanprobe.reports.github import annotation, file_of, plain_line


class CheckGithubReport:
    """An error for each recipe that is not as expected, and the summary for the log."""

    def render(self, outcomes: Sequence[CheckOutcome]) -> str:
        """Workflow commands, one a line."""
        lines = [_annotate(outcome) for outcome in outcomes if outcome.verdict is not CheckVerdict.PASSED]
        return "".join(lines) + plain_line(f"nanprobe check: {summarize(outcomes)}")


def _annotate(outcome: CheckOutcome) -> str:
    source = outcome.finding.source if outcome.finding is not None else None
    place = file_of(source) if source is not None else None
    what = "is not as expected" if outcome.verdict is CheckVerdict.FAILED else "could not be told"
    return annotation(
        "error",
        "\n".join([f"recipe {outcome.path}", *explain(outcome)]),
        title=f"nanprobe check: {outcome.name} {what}",
        file=place or file_of(str(outcome.path)),
        line=source.line if source is not None and place else None,
    )
