"""One stage with one fault each: the code, the place, and the near miss that must stay silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from builders import (
    Step,
    batch,
    half_step,
    healthy_steps,
    parameters,
    specimen,
    stats,
    step_record,
    trace,
    with_steps,
)
from nanprobe.diagnosis import findings_of
from nanprobe.findings import Finding, Kind, Severity
from nanprobe.records import BatchRecord, ExternalKind, ExternalRecord, Phase, StageName, StageTrace

NAN = float("nan")
INF = float("inf")
DEAD = stats(nan=4, peak=0.0, shadow_nan=4, shadow_peak=0.0)
HALF_INF = stats(inf=4, dtype="float16", shadow_peak=1e5)
HALF_NAN = stats(nan=4, dtype="float16")


def bad_gradient(step: Step, origin: int, name: str = "a.weight") -> None:
    """A gradient that the operation's fault has reached."""
    bad = stats(nan=4, shadow_nan=0 if step.shadow_dtype == "float32" else 4, dtype=step.ops[origin].outputs[0].dtype)
    last = step.op("mm", step.read(origin), out=bad, phase=Phase.BACKWARD, node="MmBackward0", at=99)
    step.grad(name, last)


def fp32(build: Callable[[Step], int], **details: object) -> StageTrace:
    step = Step()
    bad_gradient(step, build(step))
    return trace(StageName.FP32, step, **details)


def amp(build: Callable[[Step], int], scale: float | None = None, **details: object) -> StageTrace:
    step = half_step(loss_scale=scale)
    bad_gradient(step, build(step))
    return trace(StageName.AMP, step, **details)


def only(stage: StageTrace) -> Finding:
    errors = [f for f in findings_of(stage) if f.severity is Severity.ERROR]
    assert len(errors) == 1, errors
    return errors[0]


def silent(stage: StageTrace) -> bool:
    return not [f for f in findings_of(stage) if f.severity is not Severity.NOTE]


# Graph: operation, autograd node, code.
GRAPH_CASES = [
    ("log", None, "NP401"),
    ("log1p", None, "NP401"),
    ("sqrt", None, "NP402"),
    ("div", "SqrtBackward0", "NP402"),
    ("mul", "RsqrtBackward0", "NP402"),
    ("pow", None, "NP403"),
    ("mul", "PowBackward0", "NP403"),
    ("div", None, "NP404"),
    ("reciprocal", None, "NP404"),
    ("div", "LinalgVectorNormBackward0", "NP405"),
    ("_cdist_backward", "CdistBackward0", "NP405"),
    ("std", None, "NP406"),
    ("mul", "StdBackward0", "NP406"),
    ("exp", "LogsumexpBackward0", "NP407"),
    ("rsqrt", "AcosBackward0", "NP409"),
    ("asin", None, "NP409"),
    ("reciprocal", "Atan2Backward0", "NP410"),
    ("exp", None, "NP411"),
    ("sinh", None, "NP411"),
    ("native_batch_norm", None, "NP413"),
    ("div", "LinalgSvdBackward0", "NP415"),
    ("div", "LinalgEighBackward0", "NP415"),
    ("div", "CumprodBackward0", "NP416"),
    ("div", "ProdBackward1", "NP416"),
    ("lgamma", None, "NP417"),
    ("nobody_knows", None, "NP400"),
]


@pytest.mark.parametrize(("op", "node", "code"), GRAPH_CASES)
def test_graph_faults_by_operation_and_node(op: str, node: str | None, code: str) -> None:
    phase = Phase.BACKWARD if node else Phase.FORWARD
    finding = only(fp32(lambda s: s.op(op, s.external(), out=DEAD, at=7, node=node, phase=phase)))
    assert (finding.code, finding.kind, finding.source and finding.source.line) == (code, Kind.GRAPH, 7)


def test_a_masked_row_is_blamed_on_the_softmax() -> None:
    def build(step: Step) -> int:
        masked = step.op("masked_fill", step.external(), out=stats(inf=4, shadow_inf=4), deliberate=True, at=6)
        return step.op("_softmax", step.read(masked), out=DEAD, at=7)

    finding = only(fp32(build))
    assert (finding.code, finding.source and finding.source.line) == ("NP407", 7)
    assert "on purpose" in finding.why


def test_a_mask_that_is_selected_away_is_silent() -> None:
    step = Step()
    masked = step.op("masked_fill", step.external(), out=stats(inf=2, shadow_inf=2), deliberate=True)
    step.grad("a.weight", step.op("_softmax", step.read(masked)))
    assert silent(trace(StageName.FP32, step))


def test_offending_values_are_in_the_words() -> None:
    finding = only(fp32(lambda s: s.op("log", s.external(), out=DEAD, specimens=(specimen(-INF, -INF, -0.25),))))
    assert "log of -0.25" in finding.title


# Data.


def test_nan_in_a_batch_names_rows_and_samples() -> None:
    bad = stats((8, 3), nan=2, shadow_nan=2)
    details = {"rows": (1, 6), "columns": (2,), "batch_index": 11, "dataset_indices": tuple(range(80, 88))}
    finding = only(fp32(lambda s: s.op("mse_loss", s.external(ExternalKind.BATCH, "y", bad, **details), out=DEAD)))
    assert (finding.code, finding.kind) == ("NP301", Kind.DATA)
    assert finding.batch is not None
    assert (finding.batch.index, finding.batch.rows, finding.batch.dataset_indices) == (11, (1, 6), (81, 86))
    assert finding.batch.columns == (2,)


def test_nan_in_another_sample_of_a_data_set_held_in_one_tensor_is_counted_in_the_batch() -> None:
    """The data set's storage was measured at the sample read first; the batch says where the NaN is."""
    field = ExternalRecord(
        1, ExternalKind.BATCH, "1", stats((8, 3), nan=1), (6,), (2,), 11, dataset_indices=tuple(range(80, 88))
    )
    handed = BatchRecord(0, 11, tuple(range(80, 88)), (field,))

    def stacked(step: Step) -> int:
        sample = step.external(ExternalKind.BATCH, None, stats((3,)))
        return step.op("stack", replace(sample, nan_count=1, shadow_nan_count=1), out=DEAD)

    finding = only(fp32(stacked, batches=(handed,)))
    assert finding.title == "1 NaN in field 1 of batch 11"
    assert finding.why.startswith("field 1 of batch 11 holds 1 NaN among 24 elements")
    assert finding.batch is not None and finding.batch.dataset_indices == (86,)


def test_a_parameter_that_is_nan_at_the_start_is_named() -> None:
    bad = stats((4, 4), nan=16, shadow_nan=16, peak=0.0)
    finding = only(fp32(lambda s: s.op("cat", s.external(ExternalKind.PARAMETER, "a.weight", bad), out=DEAD)))
    assert (finding.code, finding.kind, finding.parameter) == ("NP304", Kind.DATA, "a.weight")


def test_a_parameter_poisoned_by_an_earlier_step_is_a_consequence() -> None:
    step = Step(5)
    bad = stats((4, 4), nan=16, shadow_nan=16, peak=0.0)
    bad_gradient(step, step.op("cat", step.external(ExternalKind.PARAMETER, "a.weight", bad), out=DEAD))
    assert silent(trace(StageName.FP32, step))


def test_memory_that_was_never_filled_is_the_parameter_on_its_line() -> None:
    from nanprobe.records import Source

    source = Source("/work/train.py", 20, "self.bg = nn.Parameter(torch.empty(4, 4))")
    bad = stats((4, 4), nan=16, shadow_nan=16, peak=0.0)
    finding = only(
        fp32(
            lambda s: s.op("empty", out=bad, source=source, at=20),
            parameters=parameters("net.weight", "net.bg"),
        )
    )
    assert (finding.code, finding.parameter) == ("NP304", "net.bg")


def test_nan_written_as_a_marker_is_data() -> None:
    finding = only(fp32(lambda s: s.op("fill_", s.external(), out=DEAD, deliberate=True, at=9)))
    assert (finding.code, finding.kind, finding.source and finding.source.line) == ("NP301", Kind.DATA, 9)


def test_every_label_ignored() -> None:
    finding = only(fp32(lambda s: s.op("nll_loss_forward", s.external(), out=DEAD, at=52)))
    assert (finding.code, finding.kind, finding.source and finding.source.line) == ("NP303", Kind.DATA, 52)


def test_the_mean_of_an_empty_selection() -> None:
    finding = only(fp32(lambda s: s.op("mean", s.external(made_of=stats((0,))), out=DEAD)))
    assert finding.code == "NP303"


def test_a_mean_over_elements_is_not_called_empty() -> None:
    finding = only(fp32(lambda s: s.op("mean", s.external(made_of=stats((3,))), out=DEAD)))
    assert finding.code != "NP303"


def test_ctc_with_an_input_that_is_too_short() -> None:
    inf = stats((4,), inf=1, shadow_inf=1)
    finding = only(fp32(lambda s: s.op("_ctc_loss", s.external(), out=inf, rows=(2,))))
    assert (finding.code, finding.kind) == ("NP306", Kind.DATA)
    assert finding.batch is not None and finding.batch.rows == (2,)


def beyond_fp32(input_peak: float, typical: float = 1.0) -> StageTrace:
    step = Step(4)
    outside = step.external(ExternalKind.BATCH, "x", stats((8, 4), peak=input_peak), batch_index=4)
    square = step.op("mse_loss", outside, out=stats((), inf=1, shadow_peak=1e60), at=44)
    bad_gradient(step, square)
    batches = tuple(batch(k, k, typical if k != 4 else input_peak) for k in range(5))
    return trace(StageName.FP32, step, batches=batches)


def test_an_absurd_value_in_one_batch() -> None:
    finding = only(beyond_fp32(3e29))
    assert (finding.code, finding.kind, finding.source and finding.source.line) == ("NP305", Kind.DATA, 44)
    assert "3e+29" in finding.title and "below 1" in finding.title


def test_a_large_value_that_is_usual_is_not_absurd() -> None:
    assert only(beyond_fp32(1e12, typical=9e11)).code == "NP108"


def test_targets_that_are_no_probabilities() -> None:
    def stage(peak: float, loss: float) -> StageTrace:
        step = Step()
        target = step.external(ExternalKind.BATCH, "mask", stats(peak=peak))
        step.op("binary_cross_entropy_with_logits", step.external(), target, at=52)
        return with_steps(trace(StageName.FP32, step), step_record(3, loss))

    finding = only(stage(255.0, -20.0))
    assert (finding.code, finding.kind) == ("NP302", Kind.DATA)
    assert "255" in finding.title and "divide" in finding.remedies[0].text
    assert silent(stage(1.0, 0.7))


# Overflow.


def test_an_activation_beyond_the_format() -> None:
    finding = only(amp(lambda s: s.op("linear", s.external(), out=HALF_INF, module="ff.wo", at=27)))
    assert (finding.code, finding.kind, finding.module) == ("NP101", Kind.OVERFLOW, "ff.wo")
    assert finding.evidence["limit"] == 65504.0
    assert "100000" in finding.title and "65504" in finding.title


def test_the_same_in_a_raw_stage_put_around_is_a_note() -> None:
    stage = amp(lambda s: s.op("linear", s.external(), out=HALF_INF))
    raw = replace(stage, name=StageName.FP16, as_written=False)
    assert {f.severity for f in findings_of(raw)} == {Severity.NOTE}


def test_a_loss_beyond_the_format() -> None:
    def build(step: Step) -> int:
        step.loss_writers = (0,)
        return step.op("sum", step.external(), out=stats((), inf=1, dtype="float16", shadow_peak=7e4))

    assert only(amp(build)).code == "NP104"


def scaled(peak: float, scale: float, **details: object) -> StageTrace:
    step = half_step(loss_scale=scale)
    overflow = stats(inf=1, dtype="float16", shadow_peak=peak)
    grad = step.op("mm", step.external(), out=overflow, phase=Phase.BACKWARD, node="MmBackward0", at=17)
    step.grad("a.weight", grad)
    return trace(StageName.AMP, step, **details)


def skipping(*skipped: int, count: int = 50, scale: float = 65536.0) -> dict[str, object]:
    steps = (
        step_record(k, skipped=k in skipped, loss_scale=scale, grads=(INF if k in skipped else 1.0, 1.0))
        for k in range(count)
    )
    return {"steps": tuple(steps)}


def test_a_scaler_that_calibrates_is_silent() -> None:
    assert silent(scaled(1e5, 65536.0, **skipping(0, 1, 2)))


def test_a_rare_skip_after_growth_is_silent() -> None:
    assert silent(scaled(1e5, 65536.0, **skipping(0, 31)))


def test_a_scale_that_overflows_again_and_again() -> None:
    finding = only(scaled(1e5, 65536.0, **skipping(*range(5, 50, 3))))
    assert (finding.code, finding.kind, finding.source and finding.source.line) == ("NP103", Kind.OVERFLOW, 17)
    assert "15 of 50" in finding.why


def test_a_scaler_put_in_from_outside_only_warns() -> None:
    stage = scaled(1e5, 65536.0, as_written=False, **skipping(*range(5, 50, 3)))
    assert [f.severity for f in findings_of(stage)] == [Severity.WARNING]


def test_a_gradient_too_large_even_unscaled() -> None:
    finding = only(scaled(65536.0 * 1e6, 65536.0, **skipping(0)))
    assert (finding.code, finding.evidence["loss_scale"]) == ("NP102", 65536.0)


def gradient_norm(times: int, *, reads_gradient: bool = True) -> StageTrace:
    step = half_step(loss_scale=32768.0)
    for _ in range(times):
        grad = step.op("mm", step.external(), out=stats(dtype="float16"), phase=Phase.BACKWARD, node="MmBackward0")
        read = grad if reads_gradient else step.op("linear", step.external(), out=stats(dtype="float16"))
        step.op("pow", step.read(read), out=HALF_INF, phase=Phase.UPDATE, at=30)
    step.grad("a.weight", 0)
    return trace(StageName.FP16, step)


def test_a_norm_of_finite_gradients_that_overflows() -> None:
    finding = only(gradient_norm(3))
    assert (finding.code, finding.source and finding.source.line) == ("NP107", 30)


def test_a_norm_that_overflows_once_is_a_scaler_finding_its_place() -> None:
    assert silent(gradient_norm(1))


def test_a_metric_that_overflows_is_silent() -> None:
    assert silent(gradient_norm(3, reads_gradient=False))


# Underflow.


def test_a_lost_eps() -> None:
    def build(step: Step) -> int:
        guard = step.op("clamp_min", step.external(), out=stats(dtype="float16", flushed=4), scalars=(1e-12,), at=15)
        return step.op("div", step.external(), step.read(guard), out=HALF_NAN, at=16)

    finding = only(amp(build))
    assert (finding.code, finding.kind, finding.source and finding.source.line) == ("NP203", Kind.UNDERFLOW, 15)
    assert "1e-12" in finding.title


def flushed(lost: float, **details: object) -> StageTrace:
    step = half_step()
    cast = stats(dtype="float16", flushed=4, shadow_peak=6e-9, peak=0.0)
    grad = step.op("_to_copy", step.external(), out=cast, phase=Phase.BACKWARD, node="ToCopyBackward0", at=42)
    for name in ("ray.0.weight", "ray.2.weight"):
        step.grad(name, grad, made_of=stats(shadow_peak=6e-9), lost=lost)
    return trace(StageName.AMP, step, parameters=parameters("ray.0.weight", "ray.2.weight", "enc.weight"), **details)


def test_a_flushed_gradient_names_the_common_module_and_the_cast() -> None:
    finding = only(flushed(0.97))
    assert (finding.code, finding.module, finding.source and finding.source.line) == ("NP201", "ray", 42)
    assert finding.parameters == ("ray.0.weight", "ray.2.weight")


@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_a_gradient_that_keeps_most_of_its_norm_is_no_error(lost: float) -> None:
    assert silent(flushed(lost))


def test_gradients_that_are_zero_in_both_runs_are_healthy() -> None:
    step = half_step()
    zero = stats(peak=0.0, dtype="float16", shadow_peak=0.0, zeros=4)
    step.grad("a.weight", step.op("mm", step.external(), out=zero, phase=Phase.BACKWARD))
    assert silent(trace(StageName.AMP, step))


def swallowing(fraction: float, dtype: str = "bfloat16", other: float = 0.0) -> StageTrace:
    step = half_step(9)
    step.update(
        "a.weight", dtype=dtype, swallowed_fraction=fraction, changed_fraction=1 - fraction, update_abs_max=1e-6
    )
    step.update("b.weight", dtype=dtype, swallowed_fraction=other, changed_fraction=1 - other)
    return trace(StageName.FP16, step, dtype="bfloat16")


def test_updates_that_are_rounded_away() -> None:
    finding = only(swallowing(0.99, other=0.95))
    assert (finding.code, finding.parameter, finding.source and finding.source.line) == ("NP202", "a.weight", 90)


def test_one_small_parameter_standing_still_is_a_warning() -> None:
    assert [f.severity for f in findings_of(swallowing(0.99))] == [Severity.WARNING]


def test_fp32_weights_swallow_nothing() -> None:
    assert silent(swallowing(0.99, dtype="float32", other=0.95))


@pytest.mark.parametrize("norm", [0.0, 1e-9])
def test_weight_decay_alone_is_nothing_to_lose(norm: float) -> None:
    """Gradients that are 0 in the re-check too teach nothing; one that FP16 flushed would have."""
    step = half_step(9)
    for name in ("a.weight", "b.weight"):
        step.update(name, dtype="bfloat16", swallowed_fraction=1.0, changed_fraction=0.0, update_abs_max=1e-6)
        step.grad(name, made_of=stats(peak=0.0, dtype="bfloat16", shadow_peak=norm, zeros=4), norm=norm)
    still = trace(StageName.FP16, step, dtype="bfloat16", steps=healthy_steps(10, grads=(0.0, 0.0)))
    assert ("NP202" in {f.code for f in findings_of(still)}) == (norm > 0.0)


# Divergence.


def exploding(*losses: float) -> StageTrace:
    step = Step(len(losses))
    overflow = step.op("mse_loss", step.external(ExternalKind.PARAMETER, "a.weight", stats(peak=1e19)),
                       out=stats((), inf=1, shadow_peak=1e40))  # fmt: skip
    bad_gradient(step, overflow)
    steps = tuple(step_record(k, loss, grads=(loss, loss)) for k, loss in enumerate(losses))
    return trace(StageName.FP32, step, steps=(*steps, step_record(len(losses), INF, grads=(NAN, NAN))))


def test_growth_before_the_overflow_is_divergence() -> None:
    finding = only(exploding(2.0, 30.0, 4e4, 7e9, 1e20, 1e33))
    assert (finding.code, finding.kind) == ("NP501", Kind.DIVERGENCE)
    assert "0.1" in finding.remedies[0].text  # the learning rate


def test_no_growth_before_the_overflow_is_not() -> None:
    assert only(exploding(2.0, 2.1, 1.9, 2.0)).code == "NP108"


def test_a_loss_that_only_grows_is_divergence_too() -> None:
    steps = tuple(step_record(k, 10.0**k, grads=(10.0**k, 1.0)) for k in range(12))
    assert only(trace(StageName.FP32, steps=steps)).code == "NP501"


def test_a_loss_that_jumped_once_has_not_diverged() -> None:
    steps = tuple(step_record(k, *((1.0, (1.0, 1.0)) if k < 4 else (1e6, (1e6, 1.0)))) for k in range(12))
    assert silent(trace(StageName.FP32, steps=steps))


def test_a_loss_that_starts_near_zero_has_not_diverged() -> None:
    steps = tuple(step_record(k, 1e-9 * 10.0**k, grads=(1e-6 * 10.0**k, 1.0)) for k in range(9))
    assert silent(trace(StageName.FP32, steps=steps))


# Everything at once.


def test_a_healthy_stage_is_silent() -> None:
    step = half_step(loss_scale=65536.0)
    step.grad("a.weight", step.op("mm", step.external(), phase=Phase.BACKWARD))
    steps = healthy_steps(50, grads=(0.1, None))
    for name in StageName:
        assert findings_of(trace(name, step, steps=steps)) == ()


def test_unused_and_frozen_parameters_and_a_loss_of_zero_are_healthy() -> None:
    steps = tuple(step_record(k, 0.0, grads=(0.0, None)) for k in range(5))
    assert findings_of(trace(StageName.FP32, steps=steps)) == ()


def test_a_symptom_that_nothing_explains_is_said_to_be_unexplained() -> None:
    steps = (*healthy_steps(4), step_record(4, NAN, grads=(NAN, 1.0), nonfinite_weights=("a.weight",)))
    finding = only(trace(StageName.FP32, steps=steps))
    assert (finding.code, finding.step) == ("NP400", 4)
    assert "could not tell" in finding.why


# State that outlives a step.


def moments(inf: int, step_index: int = 9) -> StageTrace:
    step = half_step(step_index)
    made_of = stats((4,), inf=inf, peak=0.0, dtype="float16", shadow_inf=inf)
    state = step.external(ExternalKind.OPTIMIZER_STATE, "exp_avg_sq", made_of)
    zero = stats(peak=0.0, dtype="float16", shadow_peak=0.0)
    step.update("a.weight", step.op("addcdiv_", state, out=zero, phase=Phase.UPDATE), dtype="float16")
    return trace(StageName.FP16, step)


def test_a_second_moment_that_overflowed() -> None:
    finding = only(moments(4))
    assert (finding.code, finding.kind, finding.parameter) == ("NP105", Kind.OVERFLOW, "exp_avg_sq")


def test_a_finite_moment_is_silent() -> None:
    assert silent(moments(0))


def test_a_buffer_that_overflowed_while_every_gradient_is_fine() -> None:
    step = half_step(4)
    running = step.external(ExternalKind.BUFFER, "bn.running_var", stats((4,), dtype="float16"))
    step.op("native_batch_norm", running, out=(stats((8, 4)), HALF_INF), at=12, module="bn")
    step.grad("a.weight", step.op("mm", step.external(), phase=Phase.BACKWARD))
    steps = (*healthy_steps(4), step_record(4, nonfinite_buffers=("bn.running_var",)))
    finding = only(trace(StageName.FP16, step, steps=steps))
    assert (finding.code, finding.module) == ("NP101", "bn")


def test_a_saturated_softmax_is_no_fault_but_its_logarithm_is() -> None:
    def build(step: Step) -> int:
        p = step.op("_softmax", step.external(), out=stats(dtype="float16", flushed=1), at=14)
        return step.op("log", step.read(p), out=stats(inf=1, dtype="float16"), at=19)

    finding = only(amp(build))
    assert (finding.code, finding.source and finding.source.line) == ("NP203", 19)


def test_an_exponential_behind_an_overflow_is_the_place() -> None:
    def build(step: Step) -> int:
        std = step.op("exp", step.external(made_of=stats(peak=60.0)), out=stats(peak=1e25), at=20)
        return step.op("mse_loss", std, out=stats((), inf=1, shadow_peak=1e50), at=26)

    finding = only(fp32(build))
    assert (finding.code, finding.source and finding.source.line) == ("NP411", 20)


def test_one_wild_update_is_divergence() -> None:
    first, second = Step(0), Step(1)
    first.external(ExternalKind.PARAMETER, "a.weight", stats((4, 4), peak=1.3))
    wild = second.external(ExternalKind.PARAMETER, "a.weight", stats((4, 4), peak=2e12))
    bad_gradient(second, second.op("mm", wild, out=stats(inf=1, shadow_peak=1e40)))
    steps = (
        step_record(0, 5e11, grads=(None, None), weight_abs_max=(2e12, 1.0)),
        step_record(1, NAN, grads=(NAN, None), weight_abs_max=(None, None)),
    )
    assert only(trace(StageName.FP32, first, second, steps=steps)).code == "NP501"


def test_a_square_of_weights_that_grew_is_divergence_and_not_the_squares_fault() -> None:
    step = Step(29)
    residual = step.op("sub", step.external(made_of=stats(peak=1e19)), out=stats(peak=1.1e19))
    squared = step.op("pow", step.read(residual), out=stats(peak=1.3e38), at=12)
    bad_gradient(step, step.op("sum", step.read(squared), out=stats((), inf=1, shadow_peak=2e39), at=12))
    steps = tuple(
        step_record(k, 3.0 * 10.0**k, grads=(10.0**k, None), weight_abs_max=(10.0 ** (k / 2), 1.0)) for k in range(29)
    )
    steps += (step_record(29, INF, grads=(1e19, None), weight_abs_max=(4e18, 1.0)),)
    assert only(trace(StageName.FP32, step, steps=steps)).code == "NP501"


def noise(peak: float, **details: object) -> StageTrace:
    """Equal numbers are subtracted: 0 in FP16, rounding noise or a small difference in FP32."""
    step = half_step(9)
    centred = step.op(
        "sub", step.external(made_of=stats(peak=1.0, dtype="float16")),
        out=stats(peak=0.0, dtype="float16", flushed=4, shadow_peak=peak), at=20,
    )  # fmt: skip
    dead = stats(peak=0.0, dtype="float16", flushed=4, shadow_peak=1e-9)
    step.grad("a.weight", step.op("mm", step.external(), centred, out=dead, phase=Phase.BACKWARD), lost=1.0)
    return trace(StageName.AMP, step, **details)


def test_rounding_noise_that_fp16_turns_into_zero_is_no_loss() -> None:
    assert silent(noise(3e-8))
    assert only(noise(1e-4)).code == "NP201"


def test_a_flush_in_one_step_of_a_stage_put_around_is_a_warning() -> None:
    fine = half_step(0)
    fine.grad("a.weight", fine.op("mm", fine.external(), phase=Phase.BACKWARD))
    stage = noise(1e-4, as_written=False)
    both = replace(stage, deep_steps=(fine.done(), *stage.deep_steps))
    assert [f.severity for f in findings_of(both)] == [Severity.WARNING]
    assert only(stage).code == "NP201"


@pytest.mark.parametrize(("largest", "code"), [(21.0, "NP501"), (3.0, "NP108")])
def test_weights_that_grew_tenfold_before_an_overflow_of_fp32(largest: float, code: str) -> None:
    step = Step(2)
    grown = step.external(ExternalKind.PARAMETER, "a.weight", stats((4, 4), peak=largest))
    bad_gradient(step, step.op("pow", grown, out=stats(inf=1, shadow_peak=1e40)))
    steps = tuple(step_record(k, 4.0, weight_abs_max=(w, 1.0)) for k, w in enumerate((0.5, 1.0, largest)))
    assert only(trace(StageName.FP32, step, steps=(*steps[:2], replace(steps[2], loss=INF)))).code == code


def hidden_overflow(error: float, dtype: str = "float16") -> StageTrace:
    """A square overflows and is divided by: every gradient is finite, one is so far from its re-check."""
    step = half_step()
    square = step.op("mul", step.external(), out=stats(inf=2, dtype="float16", shadow_peak=2e5), at=11)
    scaled = step.op("div", step.external(), step.read(square), out=stats(dtype=dtype), at=12)
    gradient = step.op("mm", step.read(scaled), phase=Phase.BACKWARD)
    step.grad("a.weight", gradient, relative_error=error)
    return trace(StageName.AMP, step, as_written=True)


def test_an_inf_that_leaves_wrong_gradients_and_no_nan_is_overflow() -> None:
    finding = only(hidden_overflow(0.4))
    assert (finding.code, finding.source and finding.source.line) == ("NP101", 11)
    assert "40% away from its FP32 re-check" in finding.why


def test_an_inf_that_leaves_the_gradients_right_does_no_harm() -> None:
    assert silent(hidden_overflow(0.002))
