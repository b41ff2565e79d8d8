"""Checks as JUnit XML: one case a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from nanprobe.recipe.outcome import CheckOutcome, CheckVerdict
from nanprobe.reports.check.wording import explain, list_closer, show_difference, show_found
from nanprobe.reports.junit.cases import TestCase, render_suite

GROUP = "nanprobe.recipes"


class CheckJunitReport:
    """A suite with a case for each recipe, in the order they were given."""

    def render(self, outcomes: Sequence[CheckOutcome]) -> str:
        """The document, ending in a newline."""
        return render_suite("nanprobe check", [_make_case(outcome) for outcome in outcomes])


def _make_case(outcome: CheckOutcome) -> TestCase:
    text = "\n".join([f"recipe: {outcome.path}", *explain(outcome)])
    output = "\n".join(filter(None, [outcome.about, show_found(outcome), *list_closer(outcome)]))
    differences, reasons = outcome.comparison.differences, outcome.comparison.reasons
    return TestCase(
        name=outcome.name,
        group=GROUP,
        seconds=outcome.seconds,
        failure=("; ".join(map(show_difference, differences)), text) if differences else None,
        error=("; ".join(reasons), text) if outcome.verdict is CheckVerdict.INCONCLUSIVE else None,
        output=output if outcome.verdict is CheckVerdict.PASSED else "",
    )
