"""What makes a treated run sound, and what only looks so: each rule with a case and a near miss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import builders
from nanprobe.findings import Kind
from nanprobe.records import Outcome, StageName, StageTrace, StepRecord
from nanprobe.remedies.candidate import Case
from nanprobe.remedies.judge import judge, steps_wanted
from nanprobe.remedies.sources import Sources
from remedies.cases import finding


def falling(count: int = 20, to: float = 0.1, **details: Any) -> tuple[StepRecord, ...]:
    return tuple(builders.step_record(k, loss=1.0 + (to - 1.0) * k / (count - 1), **details) for k in range(count))


def in_amp(**details: Any) -> Case:
    """An amp stage that fails beside an FP32 stage whose loss falls to a tenth."""
    fp32 = builders.trace(StageName.FP32, steps=falling())
    stages = (fp32, treated(name=StageName.FP16), treated())
    return Case(finding("NP101", None, StageName.AMP, **details), builders.run(*stages), Sources("."))


def in_fp32(code: str = "NP401", steps: tuple[StepRecord, ...] | None = None, step: int = 8) -> Case:
    """An fp32 stage that fails at a step; nothing else to compare with."""
    failing = builders.trace(StageName.FP32, steps=steps or falling(step + 1))
    return Case(finding(code, None, StageName.FP32, step=step), builders.run(failing), Sources("."))


def treated(steps: tuple[StepRecord, ...] | None = None, name: StageName = StageName.AMP, **details: Any) -> StageTrace:
    return builders.trace(name, steps=falling() if steps is None else steps, **details)


def test_a_run_like_that_of_fp32_is_verified() -> None:
    judgement = judge(in_amp(), treated())
    assert judgement.verified
    assert judgement.final_loss == judgement.reference_loss is not None
    assert judgement.gradient_error == 0.0


def test_it_runs_ten_steps_past_the_failing_one_at_least() -> None:
    assert steps_wanted(in_amp(step=3), 50) == 50
    assert steps_wanted(in_amp(step=45), 50) == 56


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMEOUT])
def test_a_run_that_does_not_end_is_refused(outcome: Outcome) -> None:
    judgement = judge(in_amp(), treated(outcome=outcome, reason="the script raised KeyError"))
    assert "did not end: the script raised KeyError" in (judgement.reason or "")


def test_a_run_that_ends_before_the_failing_step_is_refused() -> None:
    case = in_amp(step=15)
    assert "ended after 8 steps" in (judge(case, treated(falling(20)[:8])).reason or "")
    assert judge(case, treated(falling(20)[:14])).verified  # rows that are left out make an epoch a little shorter


def test_what_is_not_finite_is_refused_and_a_calibrating_scaler_is_not() -> None:
    steps = list(falling(loss_scale=1024.0, grads=(102.4, 102.4)))
    steps[2] = replace(steps[2], grad_abs_max=(math.inf, 0.1), skipped=True)
    assert judge(in_amp(), treated(tuple(steps))).verified
    steps[2] = replace(steps[2], skipped=False)
    assert not judge(in_amp(), treated(tuple(steps))).verified


def test_a_run_that_skips_most_steps_is_refused() -> None:
    steps = tuple(replace(s, skipped=s.index % 2 == 0, grad_abs_max=(math.inf, 0.1) if s.index % 2 == 0 else (0.1, 0.1))
                  for s in falling(loss_scale=1024.0))  # fmt: skip
    assert not judge(in_amp(), treated(steps)).verified


@pytest.mark.parametrize(("to", "verified"), [(0.1, True), (0.5, True), (0.8, False), (1.0, False), (1.2, False)])
def test_the_loss_falls_where_that_of_fp32_does(to: float, verified: bool) -> None:
    judgement = judge(in_amp(), treated(falling(to=to)))
    assert judgement.verified is verified
    assert verified or "where FP32's falls by" in (judgement.reason or "")


@pytest.mark.parametrize(("gradients", "verified"), [((0.1, 0.1), True), ((0.07, 0.1), True), ((0.01, 0.02), False)])
def test_the_first_gradients_are_those_of_fp32(gradients: tuple[float, float], verified: bool) -> None:
    judgement = judge(in_amp(), treated(falling(grads=gradients)))
    assert judgement.verified is verified
    assert verified or "off those of FP32" in (judgement.reason or "")


def test_the_loss_scale_is_taken_out_of_the_gradients() -> None:
    assert judge(in_amp(), treated(falling(grads=(102.4, 102.4), loss_scale=1024.0))).verified
    by_hand = treated(falling(grads=(102.4, 102.4)), StageName.FP16)  # a scale that the script puts on itself
    assert judge(replace(in_amp(), finding=finding("NP101", None, StageName.FP16)), by_hand).verified


@pytest.mark.parametrize(("error", "verified"), [(0.1, True), (0.49, True), (0.6, False)])
def test_gradients_are_near_their_re_check(error: float, verified: bool) -> None:
    step = builders.half_step()
    step.grad("a.weight", made_of=builders.stats(), relative_error=error)
    judgement = judge(in_amp(), replace(treated(), deep_steps=(step.done(),)))
    assert judgement.verified is verified
    assert judgement.gradient_error == pytest.approx(error)


def test_gradients_that_died_are_refused() -> None:
    dead = falling(grads=(0.0, 0.0))
    case = in_fp32(step=8)
    judgement = judge(case, treated(dead, StageName.FP32))
    assert "are 0 throughout" in (judgement.reason or "")
    some = falling(grads=(0.1, 0.0))
    assert "are 0 throughout" not in (judge(case, treated(some, StageName.FP32)).reason or "")


def test_a_new_fault_is_named() -> None:
    steps = (*falling(), builders.step_record(20, learning_rates=(math.nan,)))
    judgement = judge(in_amp(), treated(steps))
    assert judgement.next_finding is not None and judgement.next_finding.code == "NP608"
    assert (judgement.reason or "").startswith("then NP608")


def test_a_diverging_run_must_learn_again() -> None:
    case = in_fp32("NP501", tuple(builders.step_record(k, loss=10.0**k) for k in range(9)))
    assert case.finding.kind is Kind.DIVERGENCE
    assert judge(case, treated(falling(to=0.5), StageName.FP32)).verified
    assert "does not fall" in (judge(case, treated(falling(to=1.0), StageName.FP32)).reason or "")


def test_without_the_same_data_steps_are_not_compared() -> None:
    case = in_fp32(step=8)
    other = treated(falling(to=0.9, grads=(0.01, 0.02)), StageName.FP32)
    assert not judge(case, other).verified
    assert judge(case, other, same_data=False).verified


def test_noise_is_no_fall() -> None:
    noise = tuple(builders.step_record(k, loss=1.0 + 0.2 * (-1) ** k) for k in range(9))
    assert judge(in_fp32(steps=noise), treated(falling(to=1.0), StageName.FP32)).verified
