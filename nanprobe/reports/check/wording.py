"""What every check report says in words: the summary, a difference, and how to look closer."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from nanprobe.recipe.comparison import describe_finding
from nanprobe.recipe.outcome import CheckOutcome, CheckVerdict, Difference
from nanprobe.reports.excerpt import show_line
from nanprobe.reports.numbers import count_noun, show_seconds

VERDICTS: dict[CheckVerdict, str] = {
    CheckVerdict.PASSED: "as expected",
    CheckVerdict.FAILED: "differs",
    CheckVerdict.INCONCLUSIVE: "could not tell",
}


def summarize(outcomes: Sequence[CheckOutcome], seconds: float | None = None) -> str:
    """All checks in one line: "2 of 3 as expected, 1 differs, in 7.1 s"; `seconds` are those that the user waited."""
    count = Counter(outcome.verdict for outcome in outcomes)
    passed, total = count[CheckVerdict.PASSED], len(outcomes)
    parts = [f"{count_noun(total, 'recipe')} as expected" if passed == total else f"{passed} of {total} as expected"]
    if failed := count[CheckVerdict.FAILED]:
        parts.append(f"{failed} {'differs' if failed == 1 else 'differ'}")
    if unknown := count[CheckVerdict.INCONCLUSIVE]:
        parts.append(f"{unknown} could not be told")
    return ", ".join(parts if seconds is None else [*parts, f"in {show_seconds(seconds)}"])


def show_difference(difference: Difference) -> str:
    """One difference on one line."""
    return f"{difference.what}: expected {difference.expected}, found {difference.found}"


def show_found(outcome: CheckOutcome) -> str | None:
    """The verdict of the diagnosis and its place; None where there is none."""
    finding = outcome.finding
    if finding is None:
        return None
    place = f" ({show_line(finding.source)})" if finding.source is not None else ""
    return f"{describe_finding(finding)}{place}"


def list_closer(outcome: CheckOutcome) -> list[str]:
    """Commands that show the whole run."""
    directories = [outcome.run_directory, outcome.sweep_directory]
    return [f"nanprobe report {shlex.quote(directory)}" for directory in directories if directory is not None]


def explain(outcome: CheckOutcome) -> list[str]:
    """Everything a reader needs of a check that is not as expected, a line each."""
    lines = [show_difference(difference) for difference in outcome.comparison.differences]
    lines += outcome.comparison.reasons
    if (found := show_found(outcome)) is not None:
        lines.append(f"the verdict: {found}")
    return lines + [f"look closer: {command}" for command in list_closer(outcome)]
