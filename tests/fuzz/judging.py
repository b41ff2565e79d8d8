"""Whether a diagnosis is right about a program: what has to be found, and what was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from fuzz.faults import Trace
from fuzz.oracle import Course, gradient_error, in_full, in_low, lost_norm, run_plain
from fuzz.programs import Program
from fuzz.rendering import render, spoilt_row
from nanprobe.findings import Diagnosis, Finding, Severity, Status

# Between these shares the oracle leaves the judgement open: a finding and silence are both right. Source: DESIGN
# section 6 (half of the norm, nine in ten elements), and what the first step alone says about all of them.
LOST = (0.25, 0.8)
STILL = (0.6, 0.97)
# How far gradients are from FP32's before they count as wrong; FP16's rounding alone stays below the first.
WRONG = (0.03, 0.4)
# So many skipped steps of a few are a search for the scale.
CALIBRATION = 1


class Grade(Enum):
    """How a diagnosis did."""

    RIGHT = "right kind and place"
    KIND = "right kind, wrong place"
    WRONG = "wrong kind"
    MISSED = "missed"
    FALSE_ALARM = "false alarm"
    HEALTHY = "left alone"


@dataclass(frozen=True)
class Expected:
    """What a right diagnosis says."""

    failing: bool | None  # None: both are right
    kinds: frozenset[str] = frozenset()
    codes: frozenset[str] = frozenset()
    lines: tuple[int, ...] = ()  # empty: any


def expect(program: Program) -> Expected | None:
    """What has to be found in a program; None when the program is no example of anything (wrong by itself)."""
    expected = _expect(program)
    if expected is not None and expected.failing is False and not _is_sound(replace(program, fault=None)):
        return None
    return expected


def _expect(program: Program) -> Expected | None:
    fault = program.fault
    if fault is None:
        return Expected(False)
    about = fault.about
    lines = _lines(program)
    if about.codes:
        return Expected(True, about.kinds, about.codes, lines)
    full = run_plain(in_full(program))
    if about.trace is Trace.FULL:
        if full.wrong:
            return Expected(True, about.kinds, lines=lines)
        low = run_plain(in_low(program))
        return Expected(True, about.kinds | {"overflow", "underflow"}, lines=lines) if low.poisoned else Expected(False)
    if full.wrong or full.grown:
        return None
    low = run_plain(in_low(program))
    found = _bites(program, full, low)
    return Expected(found, about.kinds, lines=() if found is None else lines)


def _lines(program: Program) -> tuple[int, ...]:
    """The lines that a verdict may name; empty where any will do, or where the row counts."""
    assert program.fault is not None
    marks = render(program).marks
    # A label or token is met by the line that looks it up; what is spoilt otherwise, by its row (`_place_is_right`).
    met_by = {"bad_label": "loss", "labels_ignored": "loss", "bad_token": "stem"}.get(program.fault.kind, "culprit")
    return () if program.fault.about.anywhere else marks.get(met_by, ())


def _bites(program: Program, full: Course, low: Course) -> bool | None:
    """Whether a fault that only low precision has leaves a trace; None when it is on the edge."""
    assert program.fault is not None
    trace = program.fault.about.trace
    if trace is Trace.FLUSH:
        return _between(lost_norm(full, low), LOST)
    if trace is Trace.STILL:
        return _between(low.still_fraction, STILL)
    if low.poisoned:
        return True
    if low.hits:
        errors = [gradient_error(full, low, number) for number in low.hits]
        seen = [error for error in errors if error is not None]
        if seen:
            return _between(max(seen), WRONG)
        # Every gradient is beyond the format: for the scale alone, or without one too?
        unscaled = run_plain(replace(in_low(program), init_scale=1.0))
        return True if unscaled.bad_gradients else None
    # At a scale of 1 there is no scale to blame: a gradient that overflows there is the fault itself.
    if low.bad_gradients and program.init_scale <= 1.0:
        return True
    if low.bad_gradients > CALIBRATION or low.last_dead - full.last_dead:
        return None
    return False


def _between(share: float, edges: tuple[float, float]) -> bool | None:
    return None if edges[0] <= share <= edges[1] else share > edges[1]


def _is_sound(program: Program) -> bool:
    """Whether a program without a fault really has none: plainly finite, nothing flushed, nothing standing still."""
    full = run_plain(in_full(program))
    if full.wrong or full.grown:
        return False
    low = run_plain(in_low(program))
    if low.poisoned or low.bad_gradients > CALIBRATION or low.last_dead - full.last_dead:
        return False
    return lost_norm(full, low) < LOST[0] and (program.precision != "half" or low.still_fraction < STILL[0])


def judge(program: Program, expected: Expected, diagnosis: Diagnosis) -> Grade:
    """How the diagnosis did."""
    errors = [f for f in diagnosis.findings if f.severity is Severity.ERROR]
    verdict = diagnosis.verdict
    if expected.failing is False or (expected.failing is None and verdict is None):
        return Grade.HEALTHY if diagnosis.status is Status.HEALTHY and not errors else Grade.FALSE_ALARM
    named = verdict or next((f for f in diagnosis.findings if f.code in expected.codes), None)
    if named is None:
        return Grade.MISSED
    if named.kind.value not in expected.kinds or (expected.codes and named.code not in expected.codes):
        return Grade.WRONG
    return Grade.RIGHT if _place_is_right(program, expected, named) else Grade.KIND


def _place_is_right(program: Program, expected: Expected, finding: Finding) -> bool:
    if expected.lines and (finding.source is None or finding.source.line not in expected.lines):
        return False
    spoilt = render(program).marks.get("spoilt", ())
    if not expected.lines and spoilt:
        made_here = finding.source is not None and finding.source.line in spoilt
        return made_here or _row_is_right(program, finding)
    return True


def _row_is_right(program: Program, finding: Finding) -> bool:
    """The spoilt row of the batch, or its index in the data set, is the one that is named."""
    assert program.fault is not None
    place = finding.batch
    if place is None:
        return False
    if place.dataset_indices:
        return place.dataset_indices == (spoilt_row(program),)
    return program.data in ("list", "loader") and place.rows == (program.fault.row,)
