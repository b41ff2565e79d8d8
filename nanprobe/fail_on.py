"""Which findings make a run fail: the meaning of `--fail-on`, and of `fail_on` in a recipe."""

from __future__ import annotations

from nanprobe.errors import UsageError
from nanprobe.findings import Diagnosis, Finding, Kind, Severity

_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)  # gravest first


class FailOn:
    """Which findings make the exit code 1."""

    def __init__(self, severities: frozenset[Severity], kinds: frozenset[Kind]) -> None:
        self._severities, self._kinds = severities, kinds

    @classmethod
    def parse(cls, value: str) -> FailOn:
        """From `--fail-on`: a severity stands for itself and graver ones, a kind for its errors and warnings."""
        severities: set[Severity] = set()
        kinds: set[Kind] = set()
        for item in [part.strip().lower() for part in value.split(",") if part.strip()]:
            if item in [severity.value for severity in Severity]:
                severities.update(_SEVERITIES[: _SEVERITIES.index(Severity(item)) + 1])
            elif item in [kind.value for kind in Kind]:
                kinds.add(Kind(item))
            elif item != "none":
                known = [*(s.value for s in _SEVERITIES), *(k.value for k in Kind), "none"]
                raise UsageError(f"--fail-on: {item!r} is unknown; expected some of {', '.join(known)}")
        return cls(frozenset(severities), frozenset(kinds))

    def matches(self, diagnosis: Diagnosis) -> bool:
        """Whether any finding is one that fails."""
        return self.first(diagnosis) is not None

    def first(self, diagnosis: Diagnosis) -> Finding | None:
        """The first finding that fails, the verdict before the others; None when there is none."""
        return next(filter(self.fails, diagnosis.findings), None)

    def fails(self, finding: Finding) -> bool:
        """Whether this finding is one that fails."""
        of_kind = finding.kind in self._kinds and finding.severity is not Severity.NOTE
        return finding.severity in self._severities or of_kind
