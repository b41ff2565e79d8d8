"""The step at which a fault without a NaN began: looked at again, named, and never asked of a healthy stage."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from builders import Step, half_step, healthy_steps, parameters, stats, step_record, trace
from nanprobe.diagnosis import findings_of, steps_to_rerun
from nanprobe.diagnosis.onset import dead_gradients, still_weights
from nanprobe.findings import Severity
from nanprobe.records import ExternalKind, InputRecord, Phase, StageName, StageTrace, StepRecord

INF = float("inf")
TINY = 2.0**-24  # FP16's smallest step


def dying(*dead: tuple[int, ...], count: int = 20, to: float = 0.0) -> tuple[StepRecord, ...]:
    """Steps in which the gradient of parameter k is gone in the steps of `dead[k]`."""
    return tuple(step_record(k, grads=[to if k in steps else 0.1 for steps in dead]) for k in range(count))


def amp(*deep: Step, **details: object) -> StageTrace:
    return trace(StageName.AMP, *deep, **details)


def test_the_first_dead_gradient_and_the_first_step_with_most_are_looked_at() -> None:
    late = (half_step(0), half_step(19))
    stage = amp(*late, steps=dying(tuple(range(5, 20)), tuple(range(9, 20))))
    assert steps_to_rerun(stage) == (5, 9)


def test_a_gradient_of_one_or_two_of_the_smallest_steps_is_gone() -> None:
    for size, found in ((TINY, (7,)), (2 * TINY, (7,)), (1.5 * TINY, ()), (3 * TINY, ())):
        assert steps_to_rerun(amp(steps=dying((7,), (), to=size))) == found


def test_what_was_never_alive_has_not_died() -> None:
    assert steps_to_rerun(amp(steps=dying(tuple(range(20)), ()))) == ()


def test_a_gradient_that_is_zero_in_fp32_too_is_no_symptom() -> None:
    quiet = dying((4, 5), ())
    assert steps_to_rerun(amp(steps=quiet), trace(steps=quiet)) == ()
    assert steps_to_rerun(amp(steps=dying((4, 5, 6), ())), trace(steps=quiet)) == (6,)


def test_rounding_noise_is_not_missed() -> None:
    step = Step()
    step.grad("a.weight", relative_error=0.8)
    step.grad("b.weight", relative_error=1e-7)
    assert steps_to_rerun(amp(steps=dying((4,), ())), trace(StageName.FP32, step)) == ()
    assert steps_to_rerun(amp(steps=dying((), (4,))), trace(StageName.FP32, step)) == (4,)


def test_a_raw_stage_put_around_is_looked_at_once() -> None:
    steps = dying(tuple(range(5, 20)), tuple(range(9, 20)))
    raw = trace(StageName.FP16, half_step(0), half_step(19), steps=steps, as_written=False)
    assert steps_to_rerun(raw) == ()
    assert steps_to_rerun(replace(raw, deep_steps=raw.deep_steps[:1])) == (9,)


@given(st.integers(2, 30), st.permutations([0.1, 3e-5, 1.0]))
def test_a_stage_with_every_gradient_alive_is_never_run_twice(count: int, grads: list[float]) -> None:
    names = ("a.weight", "b.weight", "c.weight")
    stage = amp(
        half_step(0), half_step(count - 1), parameters=parameters(*names), steps=healthy_steps(count, grads=grads)
    )
    assert steps_to_rerun(stage, trace(steps=stage.steps, parameters=stage.parameters)) == ()


@given(st.permutations(range(4)), st.integers(1, 18))
def test_the_order_of_parameters_does_not_matter(order: list[int], first: int) -> None:
    names = ("a.weight", "b.weight", "c.weight", "d.weight")
    dead = (tuple(range(first, 20)), (19,), (), tuple(range(min(19, first + 1), 20)))
    stage = amp(parameters=parameters(*(names[k] for k in order)), steps=dying(*(dead[k] for k in order)))
    plain = amp(parameters=parameters(*names), steps=dying(*dead))
    assert dead_gradients(stage) == dead_gradients(plain)


# Weights that stand still.


def standing(since: int, *, state: float = 0.0, swallowed: float = 0.0, count: int = 20) -> StageTrace:
    """The largest weight of a.weight moves until `since`; the last deep step shows why it does not any more."""
    first, last = half_step(0), half_step(count - 1)
    for step, share in ((first, 0.0), (last, swallowed)):
        step.update("a.weight", dtype="float16", changed_fraction=1.0 - share, swallowed_fraction=share)
        step.update("b.weight", dtype="float16")
    if state:
        last.external(ExternalKind.OPTIMIZER_STATE, "exp_avg_sq", stats(inf=4, dtype="float16", peak=0.0))
        last.updates[0] = replace(last.updates[0], changed_fraction=0.0)
    steps = tuple(step_record(k, weight_abs_max=(1.0 + 0.01 * min(k, since - 1), 1.0 + 0.01 * k)) for k in range(count))
    return trace(StageName.FP16, first, last, steps=steps)


def test_swallowed_updates_are_looked_at_where_the_weight_last_moved_no_more() -> None:
    assert steps_to_rerun(standing(8, swallowed=0.95)) == (8,)


def test_state_that_overflowed_is_looked_at_where_the_weight_last_moved_no_more() -> None:
    assert steps_to_rerun(standing(13, state=INF)) == (13,)


def test_a_weight_that_stands_still_for_no_reason_seen_is_left_alone() -> None:
    assert still_weights(standing(8)) == ()  # a learning rate of 0 at the end does that too


def test_two_steps_without_a_change_are_no_onset() -> None:
    assert still_weights(standing(18, swallowed=0.95)) == ()


# Optimizer state that overflows in the step looked at.


def overflowing_state(scale: float, *, into_weights: bool = False) -> StageTrace:
    step = half_step(6)
    state = step.external(ExternalKind.OPTIMIZER_STATE, "exp_avg_sq", stats(dtype="float16", peak=6e4))
    grad = step.op("mm", step.external(), out=stats(dtype="float16"), phase=Phase.BACKWARD, node="MmBackward0")
    kept = step.op("mul_", state, out=stats(dtype="float16", peak=6e4), phase=Phase.UPDATE, at=38)
    broken = stats(inf=2, dtype="float16", peak=6e4, shadow_peak=scale)
    sum_ = step.op("addcmul_", step.read(kept), step.read(grad), out=broken, phase=Phase.UPDATE, at=38)
    bad = {"nan_count": 4, "shadow_nan_count": 0} if into_weights else {}
    step.grad("a.weight", grad)
    step.update("a.weight", sum_, dtype="float16", **bad)
    return trace(StageName.FP16, step)


def test_state_that_overflows_is_named_with_its_figures() -> None:
    errors = [f for f in findings_of(overflowing_state(1.4e5)) if f.severity is Severity.ERROR]
    assert [(f.code, f.step, f.parameter) for f in errors] == [("NP105", 6, "exp_avg_sq")]
    assert errors[0].source is not None and errors[0].source.line == 38
    assert errors[0].evidence["bits_over"] > 1.0  # type: ignore[operator]


def test_state_that_overflows_is_no_norm_of_gradients() -> None:
    assert "NP107" not in {f.code for f in findings_of(overflowing_state(1.4e5))}


def test_state_that_stays_within_its_format_is_silent() -> None:
    step = half_step(6)
    state = step.external(ExternalKind.OPTIMIZER_STATE, "exp_avg_sq", stats(dtype="float16", peak=6e4))
    step.update("a.weight", step.op("mul_", state, out=stats(dtype="float16", peak=6e4), phase=Phase.UPDATE))
    assert findings_of(trace(StageName.FP16, step)) == ()


def test_a_tensor_of_the_scripts_own_is_no_state() -> None:
    step = half_step(6)
    record = step.external(ExternalKind.CONSTANT, None, stats(dtype="float16"))
    assert isinstance(record, InputRecord)
    step.op("mul_", record, out=stats(inf=2, dtype="float16", shadow_peak=1e5), phase=Phase.UPDATE)
    assert findings_of(trace(StageName.FP16, step)) == ()


def test_a_raw_stage_put_around_is_not_run_again_for_swallowed_updates() -> None:
    assert steps_to_rerun(replace(standing(8, swallowed=0.95), as_written=False)) == ()
