"""How long before a failure its cause could be seen: signs of the same kind at the same place, never later ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from builders import (
    Step,
    half_step,
    healthy_steps,
    parameters,
    run,
    stats,
    step_record,
    trace,
)
from nanprobe.diagnosis import diagnose, steps_to_rerun
from nanprobe.diagnosis.first_warning import first_warning, with_first_warning
from nanprobe.findings import Finding, Kind, Severity
from nanprobe.records import ExternalKind, Phase, StageName, StageTrace, StepRecord
from probe.sessions import AMP_FACTS
from stages import run_stage

INF = float("inf")
SCALE = 1024.0


def found(code: str, step: int | None, kind: Kind = Kind.OVERFLOW, **details: object) -> Finding:
    return Finding(code, kind, Severity.ERROR, code, StageName.AMP, step, **details)  # type: ignore[arg-type]


def words(finding: Finding, stage: StageTrace) -> tuple[int, str] | None:
    sign = first_warning(finding, stage)
    return None if sign is None else (sign.step, sign.words)


def low_gradients(*steps: StepRecord, names: tuple[str, ...] = ("a.weight", "b.weight"), first: int = 0) -> StageTrace:
    """An amp stage in which every gradient is made in FP16 and cast up."""
    deep = half_step(first, SCALE)
    for name in names:
        cast = deep.op("_to_copy", out=stats(), phase=Phase.BACKWARD, node="ToCopyBackward0")
        deep.ops[cast] = replace(deep.ops[cast], outputs=(stats(dtype="float16"),))
        deep.grad(name, cast)
    return trace(StageName.AMP, deep, steps=steps, parameters=parameters(*names))


def growing(*sizes: float, other: float = 1.0, scale: float = SCALE) -> StageTrace:
    return low_gradients(*(step_record(k, grads=(g, other), loss_scale=scale) for k, g in enumerate(sizes)))


# The gradient on its way to the end of the format.


def test_a_scaled_gradient_with_little_headroom() -> None:
    stage = growing(100.0, 9e3, 2e4, 3e4, INF)
    assert words(found("NP103", 4, module="a"), stage) == (2, "the gradient of a.weight had 1.7 bits of headroom left")


def test_more_than_two_bits_of_headroom_is_no_warning() -> None:
    assert words(found("NP103", 4, module="a"), growing(100.0, 9e3, 1.6e4, 1.6e4, INF)) is None


def test_the_gradient_of_another_module_is_no_warning() -> None:
    assert words(found("NP103", 4, module="b"), growing(100.0, 9e3, 2e4, 3e4, INF)) is None


def test_where_no_module_is_known_what_broke_is_looked_at() -> None:
    stage = growing(100.0, 9e3, 2e4, INF, other=3e4)
    assert words(found("NP103", 3), stage) == (2, "the gradient of a.weight had 1.7 bits of headroom left")


def test_a_gradient_made_in_fp32_has_no_such_end() -> None:
    stage = replace(growing(100.0, 3e4, INF), deep_steps=())
    assert words(found("NP103", 2, module="a"), stage) is None


def test_a_gradient_too_large_without_a_scale_is_judged_without_it() -> None:
    stage = growing(3e4, 3e4 * SCALE, INF)
    told = "the gradient, loss scale taken out, of a.weight had 1.1 bits of headroom left"
    assert words(found("NP102", 2, module="a"), stage) == (1, told)


def test_steps_that_were_skipped_for_calibration_are_no_warning() -> None:
    assert words(found("NP103", 4, module="a"), growing(INF, INF, 10.0, 10.0, INF)) is None


# Operations in the steps that were looked at.


def activation(step: int, peak: float, at: int = 14, inf: int = 0, **details: object) -> Step:
    deep = half_step(step)
    out = stats(dtype="float16", peak=peak, inf=inf, shadow_peak=1e6 if inf else peak)
    origin = deep.op("mul", deep.external(), out=out, at=at, module="ff", **details)
    if inf:
        deep.grad("a.weight", deep.op("mm", deep.read(origin), out=stats(nan=4, dtype="float16"), at=99))
    return deep


def test_an_activation_on_its_way_to_the_end() -> None:
    stage = trace(StageName.AMP, activation(0, 900.0), activation(8, 4e4), activation(9, 6e4, inf=2))
    verdict = diagnose(run(stage)).verdict
    assert verdict is not None
    assert verdict.why.endswith(
        "Could be seen 1 step earlier: at step 8 mul at ff (line 14) reached 40000, which left 0.7 bits of headroom."
    )
    assert verdict.evidence["first_warning_step"] == 8
    assert verdict.evidence["first_warning_steps_earlier"] == 1


def test_an_activation_of_another_line_is_no_warning() -> None:
    stage = trace(StageName.AMP, activation(0, 900.0), activation(8, 4e4, at=20), activation(9, 6e4, inf=2))
    verdict = diagnose(run(stage)).verdict
    assert verdict is not None and "first_warning" not in verdict.evidence
    assert "Could be seen" not in verdict.why


def test_the_steps_before_a_loss_that_breaks_are_looked_at() -> None:
    steps = (*healthy_steps(20), step_record(20, INF, (INF, INF), skipped=True))
    assert steps_to_rerun(trace(StageName.AMP, half_step(0), steps=steps)) == (12, 16, 18, 19, 20)
    assert steps_to_rerun(trace(StageName.FP32, Step(0), steps=steps)) == (20,)
    assert steps_to_rerun(trace(StageName.FP16, half_step(0), steps=steps, as_written=False)) == (20,)
    early = (*healthy_steps(3), step_record(3, INF, (INF, INF), skipped=True))
    assert steps_to_rerun(trace(StageName.AMP, half_step(0), steps=early)) == (1, 2, 3)


def test_state_and_weights_on_their_way_to_the_end() -> None:
    deep = half_step(5)
    deep.external(ExternalKind.OPTIMIZER_STATE, "exp_avg_sq", stats(dtype="float16", peak=5e4))
    stage = trace(StageName.FP16, deep, parameters=parameters("a.weight", "b.weight", dtype="float16"))
    assert words(found("NP105", 9, parameter="exp_avg_sq"), stage) == (
        5,
        "exp_avg_sq held 50000, which left 0.4 bits of headroom",
    )
    steps = tuple(step_record(k, weight_abs_max=(2.0 ** (k + 9), 1.0)) for k in range(7))
    heavy = replace(stage, steps=steps)
    assert words(found("NP105", 6, parameter="a.weight"), heavy) == (5, "a.weight had 2.0 bits of headroom left")


def test_a_constant_that_was_lost_all_along() -> None:
    def guard(step: int) -> Step:
        deep = half_step(step)
        deep.op("clamp_min", deep.external(), out=stats(dtype="float16", flushed=0), scalars=(1e-12,), at=15)
        return deep

    stage = trace(StageName.AMP, guard(0), guard(9))
    lost = found("NP203", 9, Kind.UNDERFLOW, op="aten.clamp_min.Tensor", source=guard(0).ops[0].source,
                 phase=Phase.FORWARD)  # fmt: skip
    assert words(lost, stage) == (0, "the constant 1e-12 at line 15 was 0 in float16")


# The gradient on its way to zero, the scale on its way down, updates that begin to be rounded away.


def test_a_gradient_below_the_smallest_normal_number() -> None:
    stage = growing(1.0, 1e-3, 5e-5, 2e-6, 0.0)
    sign = words(found("NP201", 4, Kind.UNDERFLOW, parameters=("a.weight",)), stage)
    assert sign is not None
    assert sign[0] == 2 and "5e-05, below the smallest normal number of float16 (6.1e-05)" in sign[1]


def test_a_share_flushed_that_rises() -> None:
    deep = half_step(3)
    deep.grad("a.weight", flushed=0.3, made_of=stats())
    stage = trace(StageName.AMP, deep)
    lost = found("NP201", 9, Kind.UNDERFLOW, parameters=("a.weight",))
    assert words(lost, stage) == (3, "30% of the gradient of a.weight was flushed to 0")
    assert words(replace(lost, parameters=("b.weight",)), stage) is None


def test_a_loss_scale_that_falls_further_than_calibration() -> None:
    scales = [65536.0 / 2**k for k in range(30)]
    steps = tuple(step_record(k, loss_scale=s, skipped=True, grads=(INF, 1.0)) for k, s in enumerate(scales))
    stage = trace(StageName.AMP, steps=steps)
    assert words(found("NP204", 29, Kind.UNDERFLOW), stage) == (5, "the loss scale had fallen from 65536 to 2048")
    assert words(found("NP204", 29, Kind.UNDERFLOW), replace(stage, steps=steps[:5])) is None


def test_updates_that_begin_to_be_rounded_away() -> None:
    deep = half_step(0)
    deep.update("a.weight", dtype="bfloat16", swallowed_fraction=0.6, changed_fraction=0.4)
    stage = trace(StageName.FP16, deep)
    swallowed = found("NP202", 9, Kind.UNDERFLOW, parameters=("a.weight",))
    assert words(swallowed, stage) == (0, "60% of the update of a.weight was rounded away")


# Growth.


def test_divergence_could_be_seen_when_the_leader_passed_its_threshold() -> None:
    losses = [2.0, 2.0, 2.0, 30.0, 5e3, 7e5, 1e8, 1e12, 1e13]
    steps = tuple(step_record(k, v, grads=(v, v / 2)) for k, v in enumerate(losses))
    verdict = diagnose(run(trace(steps=steps))).verdict
    assert verdict is not None and verdict.code == "NP501"
    assert verdict.evidence["first_warning_step"] == 4
    assert verdict.evidence["first_warning"] == "the loss had passed 1000 times its start"


def test_growth_of_a_gradient_names_the_parameter() -> None:
    sizes = [1.0, 1.0, 1.0, 5e3, 7e5, 1e8, 1e12]
    steps = tuple(step_record(k, None, grads=(0.1, g)) for k, g in enumerate(sizes))
    grown = found("NP501", 6, Kind.DIVERGENCE, evidence={"grew_first": "gradient"})
    told = "the gradient had passed 1000 times its start, most of all in b.weight"
    assert words(grown, trace(steps=steps)) == (3, told)


# What holds for all of them.

_CODES = ["NP101", "NP102", "NP103", "NP105", "NP106", "NP201", "NP202", "NP203", "NP204", "NP501", "NP301", "NP601"]
_SIZES = st.one_of(st.floats(2.0**-24, 65504.0), st.sampled_from([0.0, INF, 3e4, 5e-6]))


@given(st.sampled_from(_CODES), st.lists(st.tuples(_SIZES, _SIZES, _SIZES), min_size=1, max_size=12), st.data())
def test_never_at_or_after_the_failing_step_and_blind_to_order(
    code: str, sizes: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    names = ("a.weight", "a.bias", "b.weight")
    failing = data.draw(st.integers(0, len(sizes) - 1))
    order = data.draw(st.permutations(range(3)))
    scales = [SCALE / 2**k for k in range(len(sizes))]

    def stage(places: list[int] | range) -> StageTrace:
        steps = (
            step_record(
                k, grads=[row[p] for p in places], loss_scale=scales[k], weight_abs_max=[row[p] for p in places]
            )
            for k, row in enumerate(sizes)
        )
        return low_gradients(*steps, names=tuple(names[p] for p in places))

    finding = found(code, failing, module="a", evidence={"grew_first": "gradient"})
    sign = first_warning(finding, stage(range(3)))
    assert first_warning(finding, stage(order)) == sign
    assert sign is None or 0 <= sign.step < failing
    if failing == 0:
        assert sign is None


@pytest.mark.parametrize("code", _CODES)
def test_a_finding_without_a_sign_stays_as_it_is(code: str) -> None:
    finding = found(code, 7, module="a")
    assert with_first_warning(finding, trace(StageName.AMP)) is finding
    assert with_first_warning(replace(finding, step=None), trace(StageName.AMP)) is not None


def test_one_step_is_one_step() -> None:
    told = with_first_warning(found("NP103", 3, module="a"), growing(1.0, 2e4, 1.0, INF)).why
    assert "Could be seen 2 steps earlier: at step 1 the gradient" in told


def test_gradients_of_a_real_stage_are_known_to_be_made_in_half() -> None:
    """Autocast casts a weight's gradient up; its writer still tells in which format it was made."""

    def loop() -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1))
        opt = torch.optim.SGD(net.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
        x = torch.randn(8, 4)
        for k in range(16):
            with torch.autocast("cpu", torch.float16):
                loss = net(x).float().pow(2).sum() * 2.0**k
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()

    stage = run_stage(loop, StageName.AMP, deep=(0,), facts=AMP_FACTS)
    broken = next(s.index for s in stage.steps if s.skipped)
    told = "the gradient of 2.weight had 1.7 bits of headroom left"
    assert words(found("NP103", broken, module="2"), stage) == (broken - 2, told)
    late = found("NP103", len(stage.steps) - 1, module="1")
    assert words(late, stage) is None  # as large as those of module 0, but a layer norm works in FP32
    assert words(replace(late, module="0"), stage) is not None
