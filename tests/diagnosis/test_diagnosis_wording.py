"""How findings put operations, places and scales into words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import Step, half_step, line, parameters, stats, step_record, trace
from nanprobe.diagnosis import findings_of
from nanprobe.diagnosis.wording import op_label, place_label, scale_figure, times
from nanprobe.findings import Finding
from nanprobe.records import OpRecord, Phase, StageName

HALF_ZERO = stats(peak=0.0, dtype="float16", flushed=4, shadow_peak=1e-8)


@pytest.mark.parametrize(
    ("scale", "text"), [(65536.0, "65536"), (2.0**23, "2**23"), (3e6, "3e+06"), (0.5, "0.5"), (float("inf"), "Inf")]
)
def test_scales(scale: float, text: str) -> None:
    assert scale_figure(scale) == text


def test_counts() -> None:
    assert (times(1), times(12)) == ("once", "12 times")


def op(name: str, **details: object) -> OpRecord:
    step = Step()
    step.op(name, step.external(), **details)
    return step.ops[0]


@pytest.mark.parametrize(
    ("name", "node", "text"),
    [
        ("mul", None, "mul"),
        ("_to_copy", None, "cast"),
        ("_to_copy", "ToCopyBackward0", "cast (backward)"),
        ("div", "SqrtBackward0", "sqrt (backward)"),
        ("mul", "MseLossBackward0", "mse_loss (backward)"),
        ("div", "FakeQuantizeBackward", "fake_quantize (backward)"),
    ],
)
def test_operations(name: str, node: str | None, text: str) -> None:
    assert op_label(op(name, node=node)) == text


def test_a_layer_that_has_a_number_for_a_name() -> None:
    assert place_label(op("mul", module="4", at=7)) == "module 4 (line 7)"
    assert place_label(op("mul", module="layers.4", at=7)) == "layers.4 (line 7)"


def eps_flushed(at: int) -> Finding:
    """An update that divides by a flushed constant, on line `at`; the optimizer steps on line 90."""
    step = half_step()
    guarded = step.op(
        "add_", step.external(made_of=stats(peak=0.0, dtype="float16")), out=HALF_ZERO, at=at, phase=Phase.UPDATE,
        scalars=(1e-8,),
    )  # fmt: skip
    step.op(
        "addcdiv_", step.external(), guarded, out=stats(inf=4, dtype="float16"), at=at, phase=Phase.UPDATE
    )  # fmt: skip
    step.update("a.weight", 1, dtype="float16", inf_count=4, changed_fraction=0.0)
    steps = (step_record(0, source=line(90), nonfinite_weights=("a.weight",)),)
    stage = trace(StageName.FP16, step, steps=steps, parameters=parameters("a.weight", dtype="float16"))
    (finding,) = [f for f in findings_of(stage) if f.code == "NP203"]
    return finding


def test_the_eps_of_an_optimizer_is_called_so_and_has_remedies_of_its_own() -> None:
    finding = eps_flushed(at=90)
    assert finding.title.startswith("the optimizer's eps, 1e-08, is 0 in float16 at line 90")
    assert len(finding.remedies) == 2
    assert "FP32" in finding.remedies[0].text
    assert "eps=1e-4" in finding.remedies[1].text


def test_a_constant_in_the_scripts_own_update_is_just_a_constant() -> None:
    finding = eps_flushed(at=41)
    assert finding.title.startswith("the constant 1e-08 is 0 in float16 at line 41")
    assert "compute line 41 in FP32" in finding.remedies[0].text
    assert "optimizer" not in " ".join(remedy.text for remedy in finding.remedies)


@pytest.mark.parametrize(("largest", "scale"), [(1e-3, "2**23"), (0.5, "32768"), (2.0, "8192")])
def test_the_scale_that_a_flushed_gradient_is_given_leaves_room_for_the_largest_gradient(
    largest: float, scale: str
) -> None:
    dead = stats(peak=0.0, dtype="float16", flushed=4, shadow_peak=1.9e-10)
    step = half_step()
    step.op("ones_like", step.external(), phase=Phase.BACKWARD)  # in FP32, where there is room
    step.grad("a.weight", step.op("_to_copy", step.external(), out=dead, phase=Phase.BACKWARD), lost=1.0)
    stage = trace(StageName.AMP, step, steps=(step_record(0, grads=(0.0, largest)),))
    (finding,) = [f for f in findings_of(stage) if f.code == "NP201"]
    assert f"GradScaler(init_scale={scale})" in finding.remedies[0].text


def test_a_divergence_is_told_from_its_first_value_on() -> None:
    steps = tuple(step_record(k, 10.0 ** (2 * k), grads=(10.0**k, 1.0)) for k in range(12))
    (finding,) = [f for f in findings_of(trace(StageName.FP32, steps=steps)) if f.code == "NP501"]
    assert "loss went from 1 to 1e+22" in finding.title
    assert finding.evidence["loss_start"] == 1.0
    renamed = replace(steps[0], loss=2.0)
    (finding,) = [f for f in findings_of(trace(StageName.FP32, steps=(renamed, *steps[1:]))) if f.code == "NP501"]
    assert finding.evidence["loss_start"] == 2.0
