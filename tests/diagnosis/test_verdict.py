"""One root cause, an honest status, and the per-layer table."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from builders import (
    Step,
    call,
    error,
    half_step,
    healthy_steps,
    parameters,
    run,
    stats,
    step_record,
    trace,
)
from nanprobe.diagnosis import diagnose, fails, steps_to_rerun
from nanprobe.findings import Severity, Status
from nanprobe.plan import SETUP_STEP
from nanprobe.records import ExternalKind, Outcome, Phase, StageName, StageTrace

NAN, INF = float("nan"), float("inf")


def faulty(name: StageName, op: str, at: int, step_index: int = 0, **details: object) -> StageTrace:
    """A stage whose step goes wrong in one operation; an overflow in low precision, a graph fault in FP32."""
    step = Step(step_index) if name is StageName.FP32 else half_step(step_index)
    bad = stats(nan=4, shadow_nan=4) if name is StageName.FP32 else stats(inf=4, dtype="float16", shadow_peak=1e5)
    origin = step.op(op, step.external(), out=bad, at=at)
    step.grad("a.weight", origin)
    return trace(name, step, **details)


def test_what_pytorch_says_of_a_nan_is_no_second_cause() -> None:
    step = Step(7)
    root = step.op("sqrt", step.external(), out=stats(nan=4, shadow_nan=4), at=12)
    step.op("sigmoid", step.read(root), out=stats((), nan=1, shadow_nan=1), at=13)
    said = error("all elements of input should be between 0 and 1", step=7)
    stage = trace(StageName.FP32, step, steps=healthy_steps(7), outcome=Outcome.CRASHED, error=said)
    assert [f.code for f in diagnose(run(stage)).findings] == ["NP402"]


def test_every_stage_good_is_healthy() -> None:
    diagnosis = diagnose(run(*(trace(name) for name in StageName)))
    assert (diagnosis.status, diagnosis.verdict, diagnosis.findings, diagnosis.reasons) == (
        Status.HEALTHY,
        None,
        (),
        (),
    )


def test_fp32_comes_before_precision() -> None:
    diagnosis = diagnose(run(faulty(StageName.FP32, "log", 5, 9), faulty(StageName.AMP, "linear", 7, 0)))
    assert diagnosis.verdict is not None
    assert (diagnosis.verdict.stage, diagnosis.status) == (StageName.FP32, Status.FAILING)
    assert diagnosis.findings[0] is diagnosis.verdict
    assert len(diagnosis.findings) == 2


def test_as_written_comes_before_what_was_put_around() -> None:
    around = faulty(StageName.FP16, "linear", 5, 0, as_written=False)
    written = faulty(StageName.AMP, "linear", 7, 9)
    verdict = diagnose(run(trace(), around, written)).verdict
    assert verdict is not None and verdict.source is not None
    assert (verdict.stage, verdict.source.line) == (StageName.AMP, 7)


def test_amp_put_around_is_an_error_and_a_raw_stage_put_around_is_not() -> None:
    assert fails(faulty(StageName.AMP, "linear", 5, as_written=False))
    assert not fails(faulty(StageName.FP16, "linear", 5, as_written=False))
    assert fails(faulty(StageName.FP16, "linear", 5))


def test_the_earliest_step_is_the_verdict() -> None:
    steps = []
    for index, at in ((12, 30), (4, 20)):
        step = half_step(index)
        bad = stats(inf=4, dtype="float16", shadow_peak=1e5)
        step.grad("a.weight", step.op("linear", step.external(), out=bad, at=at))
        steps.append(step)
    verdict = diagnose(run(trace(StageName.AMP, *steps))).verdict
    assert verdict is not None and verdict.source is not None
    assert (verdict.step, verdict.source.line) == (4, 20)


def test_a_misuse_that_explains_the_failure_is_the_root() -> None:
    calls = tuple(
        call(name, k, optimizer="SGD") for k in range(3) for name in ("scaler.scale", "backward", "optimizer.step")
    )
    stage = faulty(StageName.AMP, "linear", 7, calls=calls, steps=healthy_steps(5, loss_scale=1024.0))
    diagnosis = diagnose(run(stage))
    assert diagnosis.verdict is not None
    assert diagnosis.verdict.code == "NP602"
    assert "NP101" in [f.code for f in diagnosis.findings]


def test_an_exception_after_the_fault_is_mentioned_and_no_verdict() -> None:
    stage = faulty(StageName.FP32, "log", 5, outcome=Outcome.CRASHED, error=error("probs must be finite", "ValueError"))
    verdict = diagnose(run(stage)).verdict
    assert verdict is not None
    assert verdict.code == "NP401"
    assert "ValueError: probs must be finite" in verdict.why


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        (
            trace(outcome=Outcome.CRASHED, steps=(), error=error("no such file", "FileNotFoundError")),
            "FileNotFoundError",
        ),
        (trace(outcome=Outcome.TIMEOUT, reason="no step for 600 s"), "600"),
        (trace(outcome=Outcome.SKIPPED, steps=(), reason="not asked for"), "not asked for"),
        (trace(steps=()), "without a training step"),
        (trace(outcome=Outcome.CRASHED, steps=(), reason="killed (signal 9)"), "signal 9"),
    ],
)
def test_a_stage_that_did_not_run_is_never_healthy(stage: StageTrace, word: str) -> None:
    diagnosis = diagnose(run(trace(), stage))
    assert diagnosis.status is Status.INCONCLUSIVE
    assert any(word in reason for reason in diagnosis.reasons)


def test_no_stage_at_all_is_inconclusive() -> None:
    assert diagnose(run()).status is Status.INCONCLUSIVE


def test_the_order_of_parameters_does_not_matter() -> None:
    verdicts = set()
    for order in itertools.permutations(("ray.0.weight", "ray.2.bias", "enc.weight")):
        step = half_step()
        flushed = stats(dtype="float16", flushed=4, shadow_peak=6e-9, peak=0.0)
        cast = step.op("_to_copy", step.external(), out=flushed, phase=Phase.BACKWARD, at=42)
        fine = step.op("mm", step.external(), phase=Phase.BACKWARD)
        for name in order:
            if name.startswith("ray"):
                step.grad(name, cast, made_of=stats(shadow_peak=6e-9), lost=0.9)
            else:
                step.grad(name, fine)
        stage = trace(StageName.AMP, step, parameters=parameters(*order), steps=healthy_steps(3, grads=(0.1,) * 3))
        verdicts.add(repr(diagnose(run(stage)).verdict))
    assert len(verdicts) == 1


def test_the_order_of_gradients_does_not_matter_for_an_overflow() -> None:
    def build(names: tuple[str, ...]) -> str:
        step = half_step()
        born = step.op("linear", step.external(), out=stats(inf=1, dtype="float16", shadow_peak=1e5), at=3)
        later = step.op("mm", step.read(born), out=stats(nan=4, dtype="float16"), phase=Phase.BACKWARD)
        for name in names:
            step.grad(name, later)
        return repr(diagnose(run(trace(StageName.AMP, step))).verdict)

    assert build(("a.weight", "b.weight")) == build(("b.weight", "a.weight"))


# Which steps to look at again.


def test_a_healthy_stage_is_never_run_again() -> None:
    assert steps_to_rerun(trace()) == ()


def test_the_step_that_poisoned_the_weights_is_looked_at() -> None:
    steps = (*healthy_steps(6), step_record(6, NAN, (NAN, NAN), nonfinite_weights=("a.weight",)))
    assert steps_to_rerun(trace(steps=steps)) == (6,)


def test_skips_are_sampled_first_last_and_after_good_runs() -> None:
    bad = {0, 1, 2, 12, 13, 25, 40, 41, 49}
    steps = tuple(
        step_record(k, skipped=k in bad, loss_scale=64.0, grads=(INF if k in bad else 1.0, 1.0)) for k in range(50)
    )
    chosen = steps_to_rerun(trace(StageName.AMP, steps=steps))
    assert {0, 12, 25, 40, 49} <= set(chosen)
    assert len(chosen) <= 8


def test_steps_that_were_looked_at_are_not_asked_for_again() -> None:
    steps = (*healthy_steps(6), step_record(6, NAN, (NAN, NAN)))
    assert steps_to_rerun(trace(StageName.FP32, Step(6), steps=steps)) == ()


def test_a_step_in_which_gradients_died_is_looked_at() -> None:
    steps = tuple(step_record(k, grads=(0.0 if k == 5 else 0.1, 0.1)) for k in range(8))
    assert steps_to_rerun(trace(StageName.AMP, steps=steps)) == (5,)
    assert steps_to_rerun(trace(StageName.FP32, steps=steps)) == ()


def test_what_came_in_broken_asks_for_the_setup() -> None:
    step = Step()
    outside = step.external(ExternalKind.PARAMETER, "a.weight", stats(nan=4, shadow_nan=4))
    step.grad("a.weight", step.op("mm", outside, out=stats(nan=4, shadow_nan=4)))
    assert steps_to_rerun(trace(StageName.FP32, step)) == (SETUP_STEP,)


def test_a_step_that_ended_the_script_is_looked_at() -> None:
    crashed = trace(steps=healthy_steps(7), outcome=Outcome.CRASHED, error=error("NaN loss", step=7))
    left = trace(steps=healthy_steps(7), outcome=Outcome.CRASHED, reason="ended itself with exit status 1")
    assert steps_to_rerun(crashed) == steps_to_rerun(left) == (7,)


def test_a_loss_that_made_the_script_stop_before_backward_is_followed() -> None:
    step = Step(7)
    ratio = step.op("div", step.external(), out=stats(nan=4, shadow_nan=4), at=12)
    step.op("mean", step.read(ratio), out=stats((), nan=1, shadow_nan=1), at=13)
    stage = trace(StageName.FP32, step, steps=healthy_steps(7), outcome=Outcome.CRASHED, error=error("NaN", step=7))
    verdict = diagnose(run(stage)).verdict
    assert verdict is not None and verdict.source is not None
    assert (verdict.code, verdict.source.line) == ("NP404", 12)


# The per-layer table.


def test_layers_hold_unscaled_gradients_and_scaled_headroom() -> None:
    plain = trace(steps=(step_record(0, grads=(0.5, 1.0)),))
    scaled = trace(StageName.AMP, steps=(step_record(0, grads=(512.0, INF), loss_scale=1024.0),))
    first, second = diagnose(run(plain, scaled)).layers
    assert first.grad_abs_max == {"fp32": 0.5, "amp": 0.5}
    assert first.headroom_bits == pytest.approx(7.0, abs=0.01)
    assert (second.headroom_bits, second.nonfinite_steps) == (None, {"fp32": 0, "amp": 1})


def test_layers_of_a_module_at_fault_carry_its_kind() -> None:
    stage = faulty(StageName.AMP, "linear", 5)
    deep = stage.deep_steps[0]
    stage = replace(stage, deep_steps=(replace(deep, ops=tuple(replace(o, module="a") for o in deep.ops)),))
    kinds = {row.name: row.kind and row.kind.value for row in diagnose(run(stage)).layers}
    assert kinds == {"a.weight": "overflow", "b.weight": None}


def test_notes_do_not_colour_a_layer() -> None:
    stage = faulty(StageName.FP16, "linear", 5, as_written=False)
    diagnosis = diagnose(run(trace(), stage))
    assert {f.severity for f in diagnosis.findings} == {Severity.NOTE}
    assert all(row.kind is None for row in diagnosis.layers)
