"""How a check of one recipe ended: as expected or not, with what differs. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from nanprobe.findings import Finding, Status


class CheckVerdict(str, Enum):
    """Of one recipe, or of all together."""

    PASSED = "passed"
    FAILED = "failed"  # something is not as expected
    INCONCLUSIVE = "inconclusive"  # it could not be told


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as expected."""

    what: str  # the recipe's key: "expect.kind", "limits.max_skipped_steps"
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that differs, and everything that could not be told."""

    differences: tuple[Difference, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def verdict(self) -> CheckVerdict:
        """A difference is certain, whatever else could not be told."""
        if self.differences:
            return CheckVerdict.FAILED
        return CheckVerdict.INCONCLUSIVE if self.reasons else CheckVerdict.PASSED

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(self.differences + other.differences, self.reasons + other.reasons)


@dataclass(frozen=True, slots=True)
class SweepFacts:
    """What a recipe can expect of a sweep; names as in its JSON document."""

    status: Status
    reasons: tuple[str, ...] = ()
    lowest_scale: float | None = None  # of the safe window; None where no scale is safe
    highest_scale: float | None = None
    low_set_by: str | None = None
    high_set_by: str | None = None
    overflowing_layer: str | None = None  # of the conflict, where no scale is safe
    needing_layer: str | None = None


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One recipe's check."""

    name: str
    path: Path  # of the recipe
    comparison: Comparison
    seconds: float  # loading torch not counted
    status: Status | None = None  # of the diagnosis; None where none was made
    finding: Finding | None = None  # its verdict
    run_directory: str | None = None  # of the diagnosis
    sweep_directory: str | None = None
    about: str | None = None

    @property
    def verdict(self) -> CheckVerdict:
        """Whether it is as expected."""
        return self.comparison.verdict


def verdict_of(outcomes: tuple[CheckOutcome, ...]) -> CheckVerdict:
    """Of all together: one that failed decides, then one that could not be told."""
    verdicts = {outcome.verdict for outcome in outcomes}
    for verdict in (CheckVerdict.FAILED, CheckVerdict.INCONCLUSIVE):
        if verdict in verdicts:
            return verdict
    return CheckVerdict.PASSED
