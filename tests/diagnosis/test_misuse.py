"""AMP misuse from the calls of a stage: each rule with its breach and its near miss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import (
    Step,
    call,
    calls,
    error,
    half_step,
    healthy_steps,
    parameters,
    run,
    stats,
    step_record,
    trace,
)
from nanprobe.diagnosis import diagnose, findings_of
from nanprobe.diagnosis.refusals import refused_autocast
from nanprobe.findings import Kind, Severity, Status
from nanprobe.records import CallRecord, ExternalKind, Outcome, Phase, StageName, StageTrace

GOOD_LOOP = (
    "optimizer.zero_grad",
    "scaler.scale",
    "backward",
    "scaler.unscale_",
    "clip_grad_norm_",
    "scaler.step",
    "optimizer.step",
    "scaler.update",
)


def amp(made: tuple[CallRecord, ...], **details: object) -> StageTrace:
    steps = healthy_steps(5, loss_scale=1024.0)
    return trace(StageName.AMP, **{"calls": made, "steps": steps, **details})


def codes(stage: StageTrace, *severities: Severity) -> list[str]:
    wanted = severities or (Severity.ERROR,)
    return [f.code for f in findings_of(stage) if f.severity in wanted]


def test_the_loop_of_the_documentation_is_silent() -> None:
    assert findings_of(amp(calls(*GOOD_LOOP))) == ()


def test_clip_before_unscale() -> None:
    made = calls("optimizer.zero_grad", "scaler.scale", "backward", "clip_grad_norm_", "scaler.step", "optimizer.step",
                 "scaler.update")  # fmt: skip
    (finding,) = findings_of(amp(made))
    assert (finding.code, finding.kind, finding.source and finding.source.line) == ("NP601", Kind.MISUSE, 53)


def test_clip_without_a_scale_is_silent() -> None:
    made = calls("optimizer.zero_grad", "backward", "clip_grad_norm_", "optimizer.step")
    assert findings_of(amp(made, steps=healthy_steps(5))) == ()


def test_step_on_scaled_gradients() -> None:
    made = calls("optimizer.zero_grad", "scaler.scale", "backward", "optimizer.step")
    assert codes(amp(made)) == ["NP602"]


def test_step_on_gradients_unscaled_by_scaler_is_silent() -> None:
    made = calls(
        "optimizer.zero_grad", "scaler.scale", "backward", "scaler.unscale_", "optimizer.step", "scaler.update"
    )
    assert codes(amp(made)) == []


def test_step_on_gradients_unscaled_by_hand_is_silent() -> None:
    step = half_step(loss_scale=1024.0)
    grad = step.op("mm", step.external(), phase=Phase.BACKWARD)
    step.op("mul_", grad, phase=Phase.UPDATE, scalars=(1 / 1024.0,))
    made = calls("optimizer.zero_grad", "scaler.scale", "backward", "optimizer.step")
    assert codes(amp(made, deep_steps=(step.done(),))) == []


def test_update_never_called() -> None:
    made = calls("optimizer.zero_grad", "scaler.scale", "backward", "scaler.step", "optimizer.step")
    assert codes(amp(made)) == ["NP603"]


def test_a_single_step_without_update_is_silent() -> None:
    made = calls("optimizer.zero_grad", "scaler.scale", "backward", "scaler.step", "optimizer.step", steps=1)
    assert codes(amp(made)) == []


def micro(*names: str, count: int = 4) -> tuple[CallRecord, ...]:
    return calls("scaler.scale", "backward", *names, steps=count)


def test_update_on_every_micro_batch() -> None:
    step = calls("scaler.step", "optimizer.step", "optimizer.zero_grad", "scaler.update", steps=1)
    made = (micro("scaler.update") + micro(count=1) + step) * 3
    assert codes(amp(made)) == ["NP604"]


def test_accumulation_done_right_is_silent() -> None:
    step = calls("scaler.step", "optimizer.step", "scaler.update", "optimizer.zero_grad", steps=1)
    assert codes(amp((micro(count=4) + step) * 3)) == []


def test_an_update_after_a_step_left_out_now_and_then_is_silent() -> None:
    step = calls("scaler.step", "optimizer.step", "scaler.update", "optimizer.zero_grad", steps=1)
    left_out = calls("scaler.update", "optimizer.zero_grad", steps=1)
    made = (micro(count=1) + step) * 8 + (micro(count=1) + left_out) * 2
    assert codes(amp(made)) == []


def test_clip_of_an_optimizer_that_was_not_unscaled() -> None:
    made = (
        call("scaler.scale"),
        call("backward"),
        call("scaler.unscale_", optimizer="Adam"),
        call("clip_grad_norm_", at=14, optimizer="Adam"),
        call("clip_grad_norm_", at=15, optimizer="Adam#2"),
    )
    (finding,) = [f for f in findings_of(amp(made)) if f.code == "NP615"]
    assert finding.source is not None and finding.source.line == 15


def test_steps_inside_one_autocast_context() -> None:
    inside = calls("scaler.scale", "backward", "scaler.step", "optimizer.step", "scaler.update", "optimizer.zero_grad")
    stage = amp((call("autocast.enter", at=8), *inside, call("autocast.exit")))
    (finding,) = [f for f in findings_of(stage) if f.code == "NP606"]
    assert (finding.severity, finding.source and finding.source.line) == (Severity.ERROR, 8)


def test_one_step_in_each_autocast_context_is_no_error() -> None:
    once = calls("autocast.enter", "scaler.scale", "backward", "scaler.step", "optimizer.step", "scaler.update",
                 "optimizer.zero_grad", "autocast.exit")  # fmt: skip
    assert codes(amp(once)) == []


def piling_up(peak: float, *made: CallRecord) -> StageTrace:
    step = half_step(4)
    fresh = step.op("mm", step.external(), phase=Phase.BACKWARD)
    old = step.external(ExternalKind.BATCH, None, stats((4,), peak=peak))
    for name in ("a.weight", "b.weight"):
        step.grad(name, step.op("add_", old, fresh, phase=Phase.BACKWARD, node="AccumulateGrad"))
    return trace(StageName.FP32, calls=made or calls("backward", "optimizer.step"), deep_steps=(step.done(),))


def test_gradients_that_are_never_cleared() -> None:
    assert codes(piling_up(0.5)) == ["NP616"]


def test_gradients_cleared_by_hand_are_silent() -> None:
    assert codes(piling_up(0.0)) == []  # p.grad.zero_() leaves zeros to add to


def test_gradients_of_an_accumulation_are_silent() -> None:
    assert codes(piling_up(0.5, *calls("backward", "backward", "optimizer.step", "optimizer.zero_grad"))) == []


def test_a_step_for_every_micro_batch() -> None:
    made = calls("backward", "optimizer.step", steps=12) + calls("optimizer.zero_grad", steps=3)
    (code,) = codes(piling_up(0.5, *made))
    assert code == "NP604"


def test_a_loss_cut_off_from_the_parameters() -> None:
    stage = trace(StageName.FP32, steps=healthy_steps(10, grads=(None, None)), calls=(call("backward", at=28),))
    (finding,) = findings_of(stage)
    assert (finding.code, finding.source and finding.source.line) == ("NP607", 28)


def test_some_parameters_without_gradient_are_silent() -> None:
    assert findings_of(trace(StageName.FP32, steps=healthy_steps(10, grads=(None, 0.1)))) == ()


def test_frozen_parameters_are_not_expected_to_have_any() -> None:
    frozen = parameters("a.weight", "b.weight", requires_grad=False)
    stage = trace(StageName.FP32, steps=healthy_steps(10, grads=(None, None)), parameters=frozen)
    assert findings_of(stage) == ()


def test_a_learning_rate_that_is_nan() -> None:
    poisoned = step_record(0, learning_rates=(float("nan"),), nonfinite_weights=("a.weight",))
    diagnosis = diagnose(run(trace(StageName.FP32, steps=(poisoned,))))
    assert diagnosis.verdict is not None
    assert (diagnosis.verdict.code, diagnosis.verdict.source and diagnosis.verdict.source.line) == ("NP608", 90)


REFUSALS = [
    ("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.", "NP609"),
    ("Attempting to unscale FP16 gradients.", "NP610"),
    ("No inf checks were recorded prior to update.", "NP604"),
    ("No inf checks were recorded for this optimizer.", "NP607"),
    ("element 0 of tensors does not require grad and does not have a grad_fn", "NP607"),
    ("value cannot be converted to type at::Half without overflow", "NP109"),
    ("Attempted unscale_ but _scale is None. Your script did not use scaler.scale(loss or outputs) earlier", "NP619"),
    ("Target 4 is out of bounds.", "NP302"),
    ("linalg.cholesky: The factorization could not be completed: not positive-definite", "NP415"),
    (
        "Expected parameter scale of Normal to satisfy the constraint GreaterThan(0), but found invalid values: [-0.5]",
        "NP417",
    ),
    ("all elements of input should be between 0 and 1", "NP412"),
    ("all elements of target should be between 0 and 1", "NP302"),
    ("Expected more than 1 value per channel when training, got input size [1, 8]", "NP413"),
]


@pytest.mark.parametrize(("message", "code"), REFUSALS)
def test_what_pytorch_refuses(message: str, code: str) -> None:
    stage = amp((), error=error(message), outcome=Outcome.CRASHED)
    (finding,) = [f for f in findings_of(stage) if f.severity is Severity.ERROR]
    assert (finding.code, finding.source and finding.source.line) == (code, 70)


@pytest.mark.parametrize(
    "message",
    [
        "linalg.svd: The algorithm failed to converge because the input matrix contained non-finite values.",
        "Expected parameter logits to satisfy the constraint IndependentConstraint(), but found invalid values: [nan]",
    ],
)
def test_an_exception_about_nan_is_left_to_the_walk_back(message: str) -> None:
    assert findings_of(amp((), error=error(message), outcome=Outcome.CRASHED)) == ()


def test_any_other_exception_is_no_misuse() -> None:
    stage = amp((), error=error("shape mismatch"), outcome=Outcome.CRASHED)
    assert findings_of(stage) == ()
    assert diagnose(run(stage)).status is Status.INCONCLUSIVE


def unscaled_twice(*between: str) -> StageTrace:
    made = (
        *calls("scaler.scale", "backward", "scaler.unscale_", "scaler.step", "scaler.update", steps=3),
        call("scaler.unscale_", 3, 34, optimizer="SGD"),
        *(call(name, 3) for name in between),
        call("scaler.unscale_", 3, 34, optimizer="SGD"),
    )
    message = "unscale_() has already been called on this optimizer since the last update()."
    return amp(made, error=error(message), outcome=Outcome.CRASHED)


def test_a_step_left_early_is_told_from_unscaling_every_micro_batch() -> None:
    assert codes(unscaled_twice("optimizer.zero_grad", "backward")) == ["NP617"]
    first = unscaled_twice("backward")
    made = tuple(c for c in first.calls if c.step == 3)
    assert codes(amp(made, error=first.error, outcome=Outcome.CRASHED)) == ["NP605"]


def test_bf16_with_a_scaler_is_a_warning() -> None:
    facts = {"autocast_dtype": "bfloat16", "scaler_enabled": True}
    assert codes(amp((), facts=facts), Severity.WARNING) == ["NP612"]
    assert codes(amp((), facts={**facts, "scaler_enabled": False}), Severity.WARNING) == []


def test_fp16_without_a_scaler_is_a_warning() -> None:
    facts = {"autocast_dtype": "float16", "scaler_enabled": False}
    assert codes(amp((), facts=facts), Severity.WARNING) == ["NP611"]
    assert codes(amp((), facts={**facts, "scaler_enabled": True}), Severity.WARNING) == []


def scaled_gradients(*factors: float) -> tuple[StageTrace, StageTrace]:
    plain = trace(StageName.FP32, steps=(step_record(0, grads=(0.5, 0.25)),))
    grads = [g * 1024.0 * f for g, f in zip((0.5, 0.25), factors, strict=True)]
    return plain, trace(StageName.AMP, steps=(step_record(0, grads=grads, loss_scale=1024.0),))


def test_gradients_out_of_proportion_behind_one_function() -> None:
    verdict = diagnose(run(*scaled_gradients(1 / 1024.0, 1.0))).verdict
    assert verdict is not None
    assert (verdict.code, verdict.parameters) == ("NP613", ("a.weight",))


@pytest.mark.parametrize("factor", [1.0, 0.9, 3.0])
def test_gradients_that_differ_by_rounding_are_silent(factor: float) -> None:
    assert diagnose(run(*scaled_gradients(factor, 1.0))).status is Status.HEALTHY


def test_rounding_noise_is_in_no_proportion() -> None:
    """The bias before a softmax has a gradient of exactly 0: what rounding leaves of it differs by any factor."""
    plain, scaled = scaled_gradients(1024.0, 1.0)
    deep = Step(0)
    deep.grad("a.weight", deep.op("mm", deep.external(), phase=Phase.BACKWARD), relative_error=4.0)
    noise = replace(plain, deep_steps=(deep.done(),))
    assert diagnose(run(plain, scaled)).status is Status.FAILING
    assert diagnose(run(noise, scaled)).status is Status.HEALTHY


def custom_backward(node: str, *scalars: float, op: str = "div") -> StageTrace:
    step = half_step(loss_scale=4096.0)
    for scalar in scalars:
        step.op(op, step.external(), phase=Phase.BACKWARD, node=node, scalars=(scalar,), at=15)
    return trace(StageName.AMP, step)


def test_a_backward_function_that_divides_by_the_scale() -> None:
    verdict = diagnose(run(custom_backward("ReverseBackward", -4096.0))).verdict
    assert verdict is not None
    assert (verdict.code, verdict.source and verdict.source.line) == ("NP613", 15)


@pytest.mark.parametrize(
    "stage",
    [
        custom_backward("DivBackward0", 4096.0),  # PyTorch's own: the loss scale itself is taken through it
        custom_backward("ReverseBackward", 2.0),
        custom_backward("ReverseBackward", 4096.0, 1 / 4096.0),  # out and in again
    ],
)
def test_other_backward_functions_are_silent(stage: StageTrace) -> None:
    assert diagnose(run(stage)).status is Status.HEALTHY


def tensor_in_backward(kind: ExternalKind, peak: float, *, from_gradient: bool = False) -> StageTrace:
    step = half_step(loss_scale=4096.0)
    grad = step.op("mm", step.external(), phase=Phase.BACKWARD)
    number = step.external(kind, None, stats((), peak=peak))
    given = step.op("mul", number, phase=Phase.BACKWARD, out=stats((), peak=peak)) if from_gradient else number
    step.op("mul", grad, given, phase=Phase.BACKWARD, node="RoundBackward", at=15)
    return trace(StageName.AMP, step)


def test_a_backward_function_that_multiplies_by_a_tensor_of_the_scale() -> None:
    verdict = diagnose(run(tensor_in_backward(ExternalKind.CONSTANT, 4096.0))).verdict
    assert verdict is not None
    assert (verdict.code, verdict.source and verdict.source.line) == ("NP613", 15)


def test_the_scale_in_the_gradient_of_a_loss_is_silent() -> None:
    for stage in (
        tensor_in_backward(ExternalKind.CONSTANT, 3.0),
        tensor_in_backward(ExternalKind.CONSTANT, 4096.0, from_gradient=True),
    ):
        assert diagnose(run(stage)).status is Status.HEALTHY


def scheduled(moves: int, skipped: int) -> StageTrace:
    steps = tuple(step_record(k, skipped=k < skipped, loss_scale=65536.0 / 2 ** min(k, skipped)) for k in range(20))
    return amp(calls(*GOOD_LOOP, steps=20) + calls("lr_scheduler.step", steps=moves), steps=steps)


def test_a_schedule_that_runs_on_while_steps_are_skipped() -> None:
    assert codes(scheduled(20, 4), Severity.WARNING) == ["NP618"]
    assert codes(scheduled(1, 4), Severity.WARNING) == []  # by epoch
    assert codes(scheduled(20, 2), Severity.WARNING) == []  # calibration


def test_many_skipped_steps_are_a_warning() -> None:
    assert codes(scheduled(0, 7), Severity.WARNING) == ["NP614"]


def test_many_skipped_steps_name_the_layer_that_overflows() -> None:
    bad = float("inf")
    steps = tuple(
        step_record(k, grads=(bad, bad) if k % 3 == 2 else (0.1, 0.1), skipped=k % 3 == 2, loss_scale=1024.0 - k)
        for k in range(30)
    )
    (finding,) = [f for f in findings_of(amp(calls(*GOOD_LOOP, steps=30), steps=steps)) if f.code == "NP614"]
    assert finding.parameter == "b.weight" and "b.weight" in finding.remedies[0].text


def test_behind_a_loss_that_is_not_finite_no_gradient_is_named() -> None:
    bad = float("nan")
    steps = tuple(
        step_record(
            k, bad if k % 3 == 2 else 1.0, grads=(bad, bad) if k % 3 == 2 else (0.1, 0.1), skipped=k % 3 == 2,
            loss_scale=1024.0 - k,
        )
        for k in range(30)
    )  # fmt: skip
    (finding,) = [f for f in findings_of(amp(calls(*GOOD_LOOP, steps=30), steps=steps)) if f.code == "NP614"]
    assert finding.parameter is None


def pinned(*scales: float, made: int = 0) -> StageTrace:
    """Every fifth step is skipped; with `made`, in a loop that makes a scaler every so many steps."""
    period = made or 5
    steps = tuple(step_record(k, skipped=k % period == (0 if made else 4), loss_scale=s) for k, s in enumerate(scales))
    new = tuple(call("scaler.init", k, 8, enabled=True) for k in range(0, len(scales), made)) if made else ()
    return amp((*new, *calls(*GOOD_LOOP, steps=len(scales))), steps=steps)


def test_a_scale_that_never_falls() -> None:
    assert "NP621" in codes(pinned(*[65536.0] * 30))


def test_a_scaler_that_is_made_in_the_loop() -> None:
    stage = pinned(*[65536.0, 32768.0, 32768.0, 32768.0, 32768.0, 32768.0] * 5, made=6)
    (finding,) = [f for f in findings_of(stage) if f.code == "NP621"]
    assert finding.source is not None and finding.source.line == 8 and "new GradScaler" in finding.why


def test_a_scale_that_falls_once_is_silent() -> None:
    assert "NP621" not in codes(pinned(*[65536.0] * 5, *[32768.0] * 25), *Severity)


def test_two_scalers_are_silent() -> None:
    stage = pinned(*[65536.0 / 2 ** (k // 5) for k in range(30)])
    two = tuple(call("scaler.init", 0, at, enabled=True) for at in (8, 9))
    assert "NP621" not in codes(replace(stage, calls=(*two, *stage.calls)), *Severity)


def resumed(*before: CallRecord, scaler: int = 0, skipped: int = 3) -> StageTrace:
    use = (call("scaler.scale", scaler=scaler), call("backward"), call("scaler.step", optimizer="SGD"))
    scales = [65536.0 / 2**k for k in range(skipped)]
    steps = [step_record(k, skipped=True, loss_scale=scale) for k, scale in enumerate(scales)]
    steps += [step_record(k, loss_scale=65536.0 / 2**skipped) for k in range(skipped, 20)]
    return amp((*before, *use), steps=tuple(steps))


LOADED = call("optimizer.load_state_dict", at=38, optimizer="SGD", stepped=True)


def test_a_scaler_that_is_not_restored() -> None:
    (finding,) = [f for f in findings_of(resumed(LOADED)) if f.code == "NP620"]
    assert (finding.severity, finding.source and finding.source.line) == (Severity.WARNING, 38)
    (finding,) = [f for f in findings_of(resumed(call("torch.load", scale=2048.0), LOADED)) if f.code == "NP620"]
    assert "2048" in finding.why


def test_a_scaler_that_is_not_restored_and_fits_is_a_note() -> None:
    assert codes(resumed(LOADED, skipped=0), Severity.NOTE) == ["NP620"]


@pytest.mark.parametrize(
    "before",
    [
        (LOADED, call("scaler.load_state_dict", scaler=0)),
        (call("scaler.load_state_dict", scaler=0), LOADED),
        (call("torch.load", scale=None),),  # pretrained weights for fine-tuning
        (call("optimizer.load_state_dict", optimizer="SGD", stepped=False),),
        (call("optimizer.load_state_dict", optimizer="Adam", stepped=True),),  # another one, stepped without a scaler
        (call("scaler.scale", scaler=0), LOADED),  # back to the best weights, with the scaler in use
    ],
)
def test_a_scaler_that_may_start_afresh_is_silent(before: tuple[CallRecord, ...]) -> None:
    assert "NP620" not in codes(resumed(*before), *Severity)


def test_a_loss_that_was_never_scaled() -> None:
    plain, scaled = scaled_gradients(1.0, 1 / 1024.0)
    made = (call("scaler.scale"), call("backward", at=29), call("backward", at=30), call("scaler.step"))
    verdict = diagnose(run(plain, replace(scaled, calls=made))).verdict
    assert verdict is not None
    assert (verdict.code, verdict.source and verdict.source.line) == ("NP619", 30)


def test_a_loss_scaled_by_hand_is_silent() -> None:
    plain, scaled = scaled_gradients(1.0, 1.0)
    made = (call("backward", at=30), call("scaler.step"), call("scaler.update"))
    assert diagnose(run(plain, replace(scaled, calls=made))).status is Status.HEALTHY


MIXED = (
    "Index put requires the source and destination dtypes match, got Float for the destination and Half for the source."
)


def put_around(message: str, kind: str = "RuntimeError", **details: object) -> StageTrace:
    plain: dict[str, object] = {"as_written": False, "facts": {"autocast": "nanprobe"}}
    return amp((), error=error(message, kind), outcome=Outcome.CRASHED, **{**plain, **details})


def test_what_is_refused_under_an_autocast_of_nanprobes_own() -> None:
    said = refused_autocast(put_around(MIXED))
    assert said is not None and said.startswith("RuntimeError: Index put requires") and said.endswith("train.py:70")
    assert refused_autocast(put_around("expected scalar type Float but found Half")) is not None
    assert refused_autocast(put_around("\"lu_cpu\" not implemented for 'Half'", "NotImplementedError")) is not None


@pytest.mark.parametrize(
    "stage",
    [
        put_around(MIXED, as_written=True),  # the script's own autocast: its own fault
        put_around(MIXED, facts={"autocast": "script"}),
        put_around("The size of tensor a (3) must match the size of tensor b (4)"),
        put_around(MIXED, "ValueError"),
        put_around("Attempting to unscale FP16 gradients. dtype"),  # has a finding of its own
        amp(()),
    ],
)
def test_what_no_narrower_autocast_would_cure(stage: StageTrace) -> None:
    assert refused_autocast(stage) is None
