"""Options of the commands: what their values mean, and which are refused. Every refusal is a UsageError."""

from __future__ import annotations

import math
from typing import TypeVar

from nanprobe.errors import ExitCode, UsageError
from nanprobe.fail_on import FailOn
from nanprobe.findings import Diagnosis, Status
from nanprobe.notation import parse_number
from nanprobe.records import StageName

T = TypeVar("T")

DEVICES = {name: name for name in ("auto", "cpu", "cuda")}
STATUS_CODES = {
    Status.HEALTHY: ExitCode.HEALTHY,
    Status.FAILING: ExitCode.FAILING,
    Status.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


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
    scale = parse_number(item)
    if scale is None and item.lstrip("+-") not in ("inf", "infinity", "nan"):
        raise UsageError(f"--scales: {item!r} is no number; expected some like 1,1024,2**16")
    if scale is None or scale <= 0:
        raise UsageError(f"--scales: {item} is no loss scale; expected finite numbers above 0")
    return float(scale)
