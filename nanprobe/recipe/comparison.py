"""A recipe's expectation beside what was found. Pure functions."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from nanprobe.findings import Diagnosis, Finding, Status
from nanprobe.recipe.limits import compare_limits
from nanprobe.recipe.model import Expectation, Place, Recipe, SweepExpectation
from nanprobe.recipe.outcome import Comparison, Difference, SweepFacts
from nanprobe.records import RunRecord


def compare_diagnosis(recipe: Recipe, run: RunRecord, diagnosis: Diagnosis) -> Comparison:
    """The verdict and the limits of a diagnosis against a recipe."""
    return _compare_status(recipe, diagnosis) + compare_limits(recipe.limits, run, diagnosis)


def _compare_status(recipe: Recipe, diagnosis: Diagnosis) -> Comparison:
    expect = recipe.expect
    if expect.status is Status.HEALTHY:
        if (finding := recipe.failing.first(diagnosis)) is not None:
            return _differ("expect.status", "healthy", f"{finding.severity.value}: {describe_finding(finding)}")
        return Comparison(reasons=diagnosis.reasons if diagnosis.status is Status.INCONCLUSIVE else ())
    if diagnosis.status is Status.INCONCLUSIVE is not expect.status:
        return Comparison(reasons=diagnosis.reasons)
    if diagnosis.status is not expect.status:
        return _differ("expect.status", describe_expectation(expect), describe_answer(diagnosis))
    return Comparison() if diagnosis.verdict is None else compare_verdict(expect, diagnosis.verdict)


def compare_verdict(expect: Expectation, verdict: Finding) -> Comparison:
    """The verdict of a failing run against what is expected of it; every difference is named."""
    differences = [
        *_one_of("expect.kind", expect.kinds, verdict.kind),
        *_one_of("expect.code", expect.codes, verdict.code),
        *_one_of("expect.stage", expect.stages, verdict.stage),
        *_one_of("expect.step", expect.steps, verdict.step),
        *_compare_place(expect.place, verdict),
    ]
    return Comparison(tuple(differences))


def _compare_place(place: Place, verdict: Finding) -> list[Difference]:
    source = verdict.source
    return [
        *_one_of("expect.place.line", place.lines, None if source is None else source.line),
        *_matches("expect.place.file", place.file, None if source is None else source.file.replace(os.sep, "/")),
        *_matches("expect.place.module", place.module, verdict.module),
        *_matches("expect.place.parameter", place.parameter, verdict.parameter),
    ]


def compare_sweep(expect: SweepExpectation, facts: SweepFacts) -> Comparison:
    """What a sweep found against what is expected of it."""
    if facts.status is Status.INCONCLUSIVE is not expect.status:
        return Comparison(reasons=facts.reasons)
    path = "expect.sweep_scale."
    differences = [
        *_one_of(path + "status", () if expect.status is None else (expect.status,), facts.status),
        *_one_of(path + "lowest_scale", expect.lowest_scale, facts.lowest_scale, show_scale),
        *_one_of(path + "highest_scale", expect.highest_scale, facts.highest_scale, show_scale),
    ]
    for name in ("low_set_by", "high_set_by", "overflowing_layer", "needing_layer"):
        differences += _matches(path + name, getattr(expect, name), getattr(facts, name))
    return Comparison(tuple(differences))


def describe_expectation(expect: Expectation) -> str:
    """In a few words: "failing: overflow NP101"."""
    words = [" or ".join(kind.value for kind in expect.kinds), " or ".join(expect.codes)]
    details = " ".join(word for word in words if word)
    return f"{expect.status.value}: {details}" if details else expect.status.value


def describe_answer(diagnosis: Diagnosis) -> str:
    """The status, and the verdict where there is one."""
    status, verdict = diagnosis.status.value, diagnosis.verdict
    return status if verdict is None else f"{status}: {describe_finding(verdict)}"


def describe_finding(finding: Finding) -> str:
    """Code, kind and title on one line."""
    return f"{finding.kind.value} {finding.code}, {' '.join(finding.title.split())}"


def show_scale(scale: float) -> str:
    """A loss scale as people write it: "2^16"; "48" where it is no power of two."""
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"


def _one_of(
    what: str, expected: Sequence[object], found: object, show: Callable[..., str] | None = None
) -> Iterable[Difference]:
    if not expected or found in expected:
        return []
    show = show or _show
    return [Difference(what, " or ".join(map(show, expected)), "none" if found is None else show(found))]


def _matches(what: str, pattern: str | None, found: str | None) -> Iterable[Difference]:
    if pattern is None or (found is not None and re.search(pattern, found)):
        return []
    return [Difference(what, f"/{pattern}/", "none" if found is None else found or "the root module")]


def _show(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _differ(what: str, expected: str, found: str) -> Comparison:
    return Comparison((Difference(what, expected, found),))
