"""Options of the commands: what their values mean, and which are refused. Every refusal is a UsageError."""

from __future__ import annotations

import math
from typing import TypeVar

from nanprobe.errors import ExitCode, UsageError
from nanprobe.findings import Diagnosis, Kind, Severity, Status
from nanprobe.records import StageName

T = TypeVar("T")

DTYPES = {"fp16": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16"}
DEVICES = {name: name for name in ("auto", "cpu", "cuda")}
_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.NOTE)  # gravest first


def choose(option: str, value: str, choices: dict[str, T]) -> T:
    """The choice an option names; case does not matter."""
    if value.lower() not in choices:
        raise UsageError(f"{option} {value}: expected one of {', '.join(choices)}")
    return choices[value.lower()]


def at_least(option: str, value: int, least: int) -> int:
    """The option's number, refused when it is too small."""
    if value < least:
        raise UsageError(f"{option} {value}: expected a whole number of at least {least}")
    return value


def positive(option: str, value: float) -> float:
    """The option's number, refused unless it is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option} {value:g}: expected a finite number above 0")
    return value


def parse_list(value: str) -> list[str]:
    """The items of a comma-separated list, in lower case."""
    return [item.strip().lower() for item in value.split(",") if item.strip()]


def parse_stages(value: str) -> tuple[StageName, ...]:
    """The stages of `--stages`, in the order they run."""
    names = {stage.value: stage for stage in StageName}
    asked = parse_list(value)
    for item in asked or [value]:
        if item not in names:
            raise UsageError(
                f"--stages: {item!r} is no stage; expected some of {', '.join(names)}, separated by commas"
            )
    return tuple(stage for name, stage in names.items() if name in asked)


class FailOn:
    """Which findings make the exit code 1."""

    def __init__(self, severities: frozenset[Severity], kinds: frozenset[Kind]) -> None:
        self._severities, self._kinds = severities, kinds

    @classmethod
    def parse(cls, value: str) -> FailOn:
        """From `--fail-on`: a severity stands for itself and graver ones, a kind for its errors and warnings."""
        severities: set[Severity] = set()
        kinds: set[Kind] = set()
        for item in parse_list(value):
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
        return any(
            finding.severity in self._severities
            or (finding.kind in self._kinds and finding.severity is not Severity.NOTE)
            for finding in diagnosis.findings
        )


def exit_code(diagnosis: Diagnosis, failing: FailOn, interrupted: bool) -> ExitCode:
    """How `nanprobe diagnose` ends."""
    if failing.matches(diagnosis):
        return ExitCode.FAILING
    if interrupted or diagnosis.status is Status.INCONCLUSIVE:
        return ExitCode.INCONCLUSIVE
    return ExitCode.HEALTHY


def parse_scales(value: str | None) -> tuple[float, ...]:
    """The loss scales of `--scales`: numbers, `2**16` or `2^16`, separated by commas."""
    return tuple(_parse_scale(item) for item in parse_list(value or ""))


def _parse_scale(item: str) -> float:
    base, _, power = item.replace("**", "^").partition("^")
    try:
        scale = float(base) ** float(power) if power else float(base)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise UsageError(f"--scales: {item!r} is no number; expected some like 1,1024,2**16") from error
    if isinstance(scale, complex) or not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"--scales: {item} is no loss scale; expected finite numbers above 0")
    return scale
