"""Expectation beside finding: every key with a hit and a near miss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import samples
from nanprobe.findings import Diagnosis, Finding, Kind, LayerRow, Severity, Status
from nanprobe.recipe import Recipe, build_recipe
from nanprobe.recipe.comparison import compare_diagnosis, compare_sweep, show_scale
from nanprobe.recipe.limits import compare_seconds
from nanprobe.recipe.outcome import CheckOutcome, CheckVerdict, Comparison, Difference, SweepFacts, verdict_of
from nanprobe.records import Outcome, RunRecord, Source, StageName

FINDING = Finding(
    code="NP101",
    kind=Kind.OVERFLOW,
    severity=Severity.ERROR,
    title="it overflows",
    stage=StageName.AMP,
    step=12,
    module="encoder.layers.3",
    parameter=None,
    source=Source("/project/models/net.py", 41, "h = h * h"),
)
FAILING = Diagnosis(Status.FAILING, FINDING, (FINDING,), ())


def recipe(text: str) -> Recipe:
    return build_recipe(text, Path("recipe.yaml"))


def run(amp_changes: dict[str, object] | None = None) -> RunRecord:
    stages = [samples.stage(StageName.FP32), samples.stage(StageName.FP16), samples.stage(StageName.AMP)]
    stages[2] = replace(stages[2], **(amp_changes or {}))  # type: ignore[arg-type]
    return samples.run("/run", *stages)


def whats(comparison: Comparison) -> list[str]:
    assert comparison.reasons == ()
    return [difference.what for difference in comparison.differences]


@pytest.mark.parametrize(
    ("expect", "missed"),
    [
        ("failing", []),
        ("{kind: overflow}", []),
        ("{kind: [graph, overflow]}", []),
        ("{kind: graph}", ["expect.kind"]),
        ("{code: np101, stage: amp, step: [11, 12]}", []),
        ("{code: NP102, stage: fp16, step: 13}", ["expect.code", "expect.stage", "expect.step"]),
        ("{place: {line: [40, 41], file: 'net[.]py$', module: '^encoder[.]'}}", []),
        ("{place: {line: 40, file: train}}", ["expect.place.line", "expect.place.file"]),
        ("{place: {module: '^layers'}}", ["expect.place.module"]),
        ("{place: {parameter: weight}}", ["expect.place.parameter"]),
        ("healthy", ["expect.status"]),
        ("inconclusive", ["expect.status"]),
    ],
)  # fmt: skip
def test_the_verdict(expect: str, missed: list[str]) -> None:
    assert whats(compare_diagnosis(recipe(f"expect: {expect}"), run(), FAILING)) == missed


def test_what_differs_is_said_in_words() -> None:
    comparison = compare_diagnosis(recipe("expect: {kind: [graph, data], place: {parameter: weight}}"), run(), FAILING)
    assert comparison.differences == (
        Difference("expect.kind", "graph or data", "overflow"),
        Difference("expect.place.parameter", "/weight/", "none"),
    )
    comparison = compare_diagnosis(recipe("steps: 1"), run(), FAILING)
    assert comparison.differences == (Difference("expect.status", "healthy", "error: overflow NP101, it overflows"),)


@pytest.mark.parametrize(
    ("fail_on", "severity", "passes"),
    [
        ("error", Severity.WARNING, True),
        ("warning", Severity.WARNING, False),
        ("misuse", Severity.WARNING, False),
        ("misuse", Severity.NOTE, True),
        ("graph", Severity.WARNING, True),
    ],
)
def test_healthy_means_that_nothing_of_fail_on_was_found(fail_on: str, severity: Severity, passes: bool) -> None:
    finding = Finding("NP614", Kind.MISUSE, severity, "steps are skipped", StageName.AMP)
    diagnosis = Diagnosis(Status.HEALTHY, None, (finding,), ())
    assert whats(compare_diagnosis(recipe(f"fail_on: {fail_on}"), run(), diagnosis)) == (
        [] if passes else ["expect.status"]
    )


def test_what_could_not_be_told_is_no_difference() -> None:
    unknown = Diagnosis(Status.INCONCLUSIVE, None, (), (), ("amp: timed out",))
    for expect in ("healthy", "failing", "{kind: graph}"):
        comparison = compare_diagnosis(recipe(f"expect: {expect}"), run(), unknown)
        assert (comparison.verdict, comparison.reasons) == (CheckVerdict.INCONCLUSIVE, ("amp: timed out",))
    assert compare_diagnosis(recipe("expect: inconclusive"), run(), unknown).verdict is CheckVerdict.PASSED


def layers(*rows: tuple[str, float | None, float | None]) -> tuple[LayerRow, ...]:
    return tuple(
        samples.layer(name, flushed_fraction={"fp16": 0.9, "amp": flushed}, headroom_bits=bits)
        for name, flushed, bits in rows
    )


def limited(limits: str, layers: tuple[LayerRow, ...] = (), **amp: object) -> Comparison:
    healthy = Diagnosis(Status.HEALTHY, None, (), layers)
    return compare_diagnosis(recipe(f"limits: {{{limits}}}"), run(amp), healthy)


def test_skipped_steps() -> None:
    steps = tuple(samples.step(i, skipped=i < 3) for i in range(10))
    assert whats(limited("max_skipped_steps: 3", steps=steps)) == []
    (difference,) = limited("max_skipped_steps: 2", steps=steps).differences
    assert difference == Difference("limits.max_skipped_steps", "at most 2", "3 of 10 steps in the amp stage")


def test_flushed_share_of_the_worst_parameter_in_the_scripts_own_stage() -> None:
    rows = layers(("a.weight", 0.1, 3.0), ("b.weight", 0.25, 1.5), ("c.weight", None, None))
    assert whats(limited("max_flushed_fraction: 0.25", rows)) == []
    (difference,) = limited("max_flushed_fraction: 0.2", rows).differences
    assert difference == Difference("limits.max_flushed_fraction", "at most 0.2", "0.25 of b.weight in the amp stage")


def test_headroom_of_the_tightest_parameter() -> None:
    rows = layers(("a.weight", 0.0, 3.0), ("b.weight", 0.0, 1.5))
    assert whats(limited("min_headroom_bits: 1.5", rows)) == []
    (difference,) = limited("min_headroom_bits: 2", rows).differences
    assert difference == Difference("limits.min_headroom_bits", "at least 2", "1.5 in b.weight")


@pytest.mark.parametrize("limit", ["max_skipped_steps: 3", "max_flushed_fraction: 1", "min_headroom_bits: 0"])
def test_a_limit_that_was_not_measured_could_not_be_told(limit: str) -> None:
    comparison = limited(limit, (), steps=(), outcome=Outcome.SKIPPED)
    assert comparison.verdict is CheckVerdict.INCONCLUSIVE
    assert comparison.reasons[0].startswith(f"limits.{limit.split(':')[0]}: no low-precision stage ran far enough")


def test_seconds() -> None:
    limits = recipe("limits: {max_seconds: 2}").limits
    assert compare_seconds(limits, 2.0).verdict is CheckVerdict.PASSED
    assert compare_seconds(limits, 2.06).differences == (Difference("limits.max_seconds", "at most 2 s", "2.1 s"),)


@pytest.mark.parametrize(
    ("expect", "missed"),
    [
        ("healthy", []),
        ("failing", ["status"]),
        ("{lowest_scale: 2**4, highest_scale: [2^15, 2^16]}", []),
        ("{lowest_scale: 32, highest_scale: 2^15}", ["lowest_scale", "highest_scale"]),
        ("{low_set_by: embed, high_set_by: ^head$}", []),
        ("{low_set_by: head, overflowing_layer: head}", ["low_set_by", "overflowing_layer"]),
    ],
)
def test_a_sweep(expect: str, missed: list[str]) -> None:
    facts = SweepFacts(Status.HEALTHY, (), 16.0, 65536.0, "embed.weight", "head")
    sweep = recipe(f"expect: {{sweep_scale: {expect}}}").expect.sweep
    assert sweep is not None
    assert whats(compare_sweep(sweep, facts)) == [f"expect.sweep_scale.{key}" for key in missed]


def test_a_sweep_that_could_not_tell() -> None:
    sweep = recipe("expect: {sweep_scale: failing}").expect.sweep
    assert sweep is not None
    assert compare_sweep(sweep, SweepFacts(Status.INCONCLUSIVE, ("no gradients",))).reasons == ("no gradients",)


def test_scales_in_words() -> None:
    assert [show_scale(scale) for scale in (1.0, 65536.0, 48.0, 0.5)] == ["2^0", "2^16", "48", "2^-1"]


def test_one_difference_decides_for_all() -> None:
    def outcome(comparison: Comparison) -> CheckOutcome:
        return CheckOutcome("x", Path("x"), comparison, 1.0)

    passed, unknown = outcome(Comparison()), outcome(Comparison(reasons=("?",)))
    failed = outcome(Comparison((Difference("a", "b", "c"),), ("?",)))
    assert verdict_of((passed, passed)) is CheckVerdict.PASSED
    assert verdict_of((passed, unknown)) is CheckVerdict.INCONCLUSIVE
    assert verdict_of((passed, unknown, failed)) is CheckVerdict.FAILED
