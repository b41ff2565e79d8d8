"""What a report says of a stage as a whole: counts and firsts, worked out from its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from nanprobe.findings import Diagnosis, Severity
from nanprobe.records import Outcome, StageTrace, StepRecord


class Result(str, Enum):
    """How a stage went, in the word a reader sees."""

    OK = "ok"  # it ran, and nothing was found in it
    NOTED = "noted"  # it ran; warnings or notes were found, or a stage put around the script went non-finite
    BROKE = "broke"  # it ran, and an error was found in it
    NO_STEPS = "no steps"  # the script ended without an optimizer step
    CRASHED = "crashed"
    SKIPPED = "skipped"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage in numbers."""

    trace: StageTrace
    result: Result
    steps: int  # optimizer updates, those the scaler skipped too
    skipped_steps: int  # of them skipped by the scaler
    first_nonfinite_step: int | None  # index of the first step with a NaN or Inf in loss, gradients, weights or buffers


def summarize_stages(traces: tuple[StageTrace, ...], diagnosis: Diagnosis) -> tuple[StageSummary, ...]:
    """One summary a stage, in the order given."""
    return tuple(summarize_stage(trace, diagnosis) for trace in traces)


def summarize_stage(trace: StageTrace, diagnosis: Diagnosis) -> StageSummary:
    """The stage's counts, and how it went in the light of what was found in it."""
    return StageSummary(
        trace=trace,
        result=_judge(trace, diagnosis),
        steps=len(trace.steps),
        skipped_steps=sum(step.skipped for step in trace.steps),
        first_nonfinite_step=first_nonfinite_step(trace),
    )


def first_nonfinite_step(trace: StageTrace) -> int | None:
    """Index of the first step with a NaN or Inf in loss, gradients, weights or buffers; None when there is none."""
    return next((step.index for step in trace.steps if not is_finite_step(step)), None)


def is_finite_step(step: StepRecord) -> bool:
    """Whether everything that was measured of a step is finite."""
    numbers = (step.loss, *step.grad_abs_max)
    return not (step.nonfinite_weights or step.nonfinite_buffers) and all(
        number is None or math.isfinite(number) for number in numbers
    )


def _judge(trace: StageTrace, diagnosis: Diagnosis) -> Result:
    outcomes = {
        Outcome.CRASHED: Result.CRASHED,
        Outcome.SKIPPED: Result.SKIPPED,
        Outcome.TIMEOUT: Result.TIMED_OUT,
    }
    if trace.outcome in outcomes:
        return outcomes[trace.outcome]
    if not trace.steps:
        return Result.NO_STEPS
    severities = {finding.severity for finding in diagnosis.findings if finding.stage is trace.name}
    if Severity.ERROR in severities:
        return Result.BROKE
    # A skipped step's overflow is the scaler at work; one that went into the weights is not.
    unprotected = any(not step.skipped and not is_finite_step(step) for step in trace.steps)
    return Result.NOTED if severities or unprotected else Result.OK
