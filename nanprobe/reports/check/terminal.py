"""The check for people: a line for each recipe as soon as it is known, what differs below it, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.recipe.outcome import CheckOutcome, CheckVerdict
from nanprobe.reports.check.wording import VERDICTS, list_closer, show_found, summarize
from nanprobe.reports.numbers import show_seconds
from nanprobe.reports.terminal.canvas import Canvas, clean, pad, shorten_middle

SIGNS = {
    CheckVerdict.PASSED: ("✔", "green"),
    CheckVerdict.FAILED: ("✖", "red"),
    CheckVerdict.INCONCLUSIVE: ("?", "yellow"),
}
_VERDICT_WIDTH = max(map(len, VERDICTS.values()))
_SECONDS_WIDTH = len("9 min 59 s")
_LONGEST_NAME = 36  # cells


@dataclass(frozen=True, slots=True)
class CheckTerminalReport:
    """Lines in the width; only commands may be longer, to stay whole."""

    width: int = 80
    color: bool = False
    name_width: int = _LONGEST_NAME  # cells of the column of names

    def render(self, outcomes: Sequence[CheckOutcome]) -> str:
        """All outcomes and the summary."""
        return "".join(map(self.render_outcome, outcomes)) + self.render_summary(outcomes)

    def render_outcome(self, outcome: CheckOutcome) -> str:
        """One recipe's line, and what is not as expected below it."""
        canvas = Canvas(self.width, self.color)
        sign, color = SIGNS[outcome.verdict]
        width = min(self.name_width, _LONGEST_NAME, max(self.width - 44, 12))
        name = pad(shorten_middle(clean(outcome.name), width), width)
        verdict = pad(VERDICTS[outcome.verdict], _VERDICT_WIDTH)
        seconds = pad(show_seconds(outcome.seconds), _SECONDS_WIDTH, right=True)
        what = ", ".join(_short(difference.what) for difference in outcome.comparison.differences)
        canvas.line((f"{sign} ", color), (name, "bold"), f"  {verdict}{seconds}", (f"  {what}" if what else "", "dim"))
        _draw_details(canvas, outcome)
        return canvas.text()

    def render_summary(self, outcomes: Sequence[CheckOutcome], seconds: float | None = None) -> str:
        """The last line, with the time that all took together."""
        canvas = Canvas(self.width, self.color)
        canvas.line((summarize(outcomes, seconds), "bold"))
        return canvas.text() if len(outcomes) == 1 else "\n" + canvas.text()


def _draw_details(canvas: Canvas, outcome: CheckOutcome) -> None:
    """What was expected and what was found, why it could not be told, and how to look closer."""
    if outcome.verdict is CheckVerdict.PASSED:
        return
    differences = outcome.comparison.differences
    canvas.rows([(each.what, f"expected {each.expected}, found {each.found}") for each in differences], indent=4)
    for reason in outcome.comparison.reasons:
        canvas.paragraph(reason, lead=["• "], indent=4)
    if (found := show_found(outcome)) is not None:
        canvas.paragraph(found, lead=[("verdict  ", "dim")], indent=4)
    for command in list_closer(outcome):
        canvas.line("    ", ("closer   ", "dim"), (command, "cyan"), whole=True)


def _short(what: str) -> str:
    """A recipe's key without the part that goes without saying."""
    return what.removeprefix("expect.").removeprefix("limits.")
