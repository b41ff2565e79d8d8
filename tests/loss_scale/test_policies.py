"""Scaler policies: PyTorch's against its own GradScaler, the others against tables worked out from their sources."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanprobe.formats import FP16
from nanprobe.loss_scale.policies import (
    APEX,
    DEEPSPEED,
    FAIRSEQ,
    KERAS,
    MEGATRON,
    NAMED_POLICIES,
    PYTORCH,
    ScalerPolicy,
    ScalerState,
)
from nanprobe.loss_scale.replay import (
    Path,
    block_length,
    extend_path,
    judge_policy,
    replay,
    scales_by_step,
)

OVERFLOWS = st.lists(st.booleans(), max_size=60)


def run(policy: ScalerPolicy, overflows: list[bool]) -> list[float]:
    """The scale after each step."""
    state, scales = ScalerState.start(policy), []
    for overflow in overflows:
        state.update(overflow)
        scales.append(state.scale)
    return scales


def path(grad_abs_max: list[float], flushed: float = 0.0) -> Path:
    table = np.full((len(grad_abs_max), 33), flushed)
    return Path(FP16, np.array(grad_abs_max, np.float64), table, np.arange(len(grad_abs_max)))


@settings(max_examples=40, deadline=None)
@given(
    overflows=OVERFLOWS,
    interval=st.integers(1, 5),
    growth=st.sampled_from([2.0, 1.5, 4.0]),
    backoff=st.sampled_from([0.5, 0.3]),
    init=st.sampled_from([2.0**16, 1000.0, 2.0**126]),
)
def test_pytorch_is_pytorch(overflows: list[bool], interval: int, growth: float, backoff: float, init: float) -> None:
    settings_ = {"growth_factor": growth, "backoff_factor": backoff, "growth_interval": interval}
    scaler = torch.amp.GradScaler("cpu", init_scale=init, **settings_)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    theirs = []
    for overflow in overflows:
        scaler.scale(torch.zeros(()))  # creates the scale, as a first use does
        weight.grad = torch.tensor([torch.inf if overflow else 0.0])
        scaler.step(optimizer)
        scaler.update()
        theirs.append(scaler.get_scale())
    assert run(replace(PYTORCH, init_scale=init, **settings_), overflows) == theirs


def test_pytorch_defaults_are_pytorchs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.amp.GradScaler("cpu")
    assert scaler.get_scale() == PYTORCH.init_scale
    assert scaler.get_growth_interval() == PYTORCH.growth_interval
    assert scaler.get_growth_factor() == PYTORCH.growth_factor
    assert scaler.get_backoff_factor() == PYTORCH.backoff_factor


@pytest.mark.parametrize(
    ("policy", "init", "interval"),
    [
        (PYTORCH, 2**16, 2000),
        (KERAS, 2**15, 2000),
        (DEEPSPEED, 2**16, 1000),
        (MEGATRON, 2**32, 1000),
        (FAIRSEQ, 2**15, 2000),
        (APEX, 2**16, 2000),
    ],
)
def test_documented_defaults(policy: ScalerPolicy, init: float, interval: int) -> None:
    assert (policy.init_scale, policy.growth_interval) == (init, interval)
    assert (policy.growth_factor, policy.backoff_factor) == (2.0, 0.5)


@pytest.mark.parametrize("policy", [DEEPSPEED, MEGATRON])
def test_hysteresis_forgives_one_overflow_and_is_refilled_by_growth_only(policy: ScalerPolicy) -> None:
    start = policy.init_scale
    short = replace(policy, growth_interval=2)
    first_forgiven = run(short, [True, False, True, True])
    assert first_forgiven == [start, start, start / 2, start / 4]
    after_growth = run(short, [True, False, False, True, True])
    assert after_growth == [start, start, 2 * start, 2 * start, start]


def test_the_lowest_scale() -> None:
    low = {"init_scale": 2.0, "hysteresis": 1}
    assert run(replace(MEGATRON, **low), [True] * 3) == [1.0, 1.0, 1.0]
    state = ScalerState.start(replace(DEEPSPEED, **low))
    state.update(True)
    assert (state.scale, state.stopped) == (1.0, False)
    state.update(True)
    assert (state.scale, state.stopped) == (1.0, True)
    assert run(replace(PYTORCH, init_scale=1.0), [True] * 2) == [0.5, 0.25]


def test_fairseq_stops_before_its_lowest_scale() -> None:
    state = ScalerState.start(replace(FAIRSEQ, init_scale=2.0**-12))
    state.update(True)
    assert (state.scale, state.stopped) == (2.0**-13, False)
    state.update(True)
    assert (state.scale, state.stopped) == (2.0**-13, True)


def test_fairseq_tolerance_is_a_share_of_the_steps_since_the_last_change() -> None:
    tolerant = replace(FAIRSEQ, tolerance=0.5, growth_interval=100)
    start = tolerant.init_scale
    assert run(tolerant, [False, False, True]) == [start] * 3  # 1 of 3
    assert run(tolerant, [False, False, True, True]) == [start, start, start, start / 2]  # 2 of 4
    assert run(tolerant, [True]) == [start / 2]


def test_apex_does_not_grow_beyond_its_highest_scale() -> None:
    assert run(replace(APEX, growth_interval=1), [False] * 10)[-1] == 2.0**24


@settings(max_examples=60, deadline=None)
@given(
    grad_abs_max=st.lists(st.floats(2.0**-16, 2.0**20), min_size=1, max_size=80),
    policy=st.sampled_from(NAMED_POLICIES),
    interval=st.integers(1, 6),
    tolerance=st.sampled_from([0.0, 0.4]),
)
def test_a_replay_jumps_to_where_single_steps_lead(
    grad_abs_max: list[float], policy: ScalerPolicy, interval: int, tolerance: float
) -> None:
    policy = replace(policy, growth_interval=interval, tolerance=tolerance)
    state, scales, skipped = ScalerState.start(policy), [], 0
    for peak in grad_abs_max:
        scales.append(state.scale)
        overflow = FP16.overflows(peak * state.scale)
        skipped += overflow
        state.update(overflow)
        if state.stopped:
            break
    steps = path(grad_abs_max, flushed=0.25)
    told = replay(policy, steps)
    assert scales_by_step(policy, steps) == tuple(scales)
    assert (told.skipped_steps, told.lowest_scale, told.highest_scale) == (skipped, min(scales), max(scales))
    assert (told.stopped_at is not None) == state.stopped
    assert told.flushed_fraction is None or told.flushed_fraction == pytest.approx(0.25)


def test_a_step_that_is_never_finite_is_always_skipped() -> None:
    told = replay(replace(PYTORCH, init_scale=2.0**-148), path([float("inf")] * 4))
    assert (told.skipped_steps, told.effective_step_fraction, told.flushed_fraction) == (4, 0.0, None)


def test_the_flushed_share_is_that_of_the_scale_in_use() -> None:
    steps = path([1.0] * 4)
    steps.flushed[:] = 2.0 ** -np.arange(33)
    assert replay(replace(PYTORCH, init_scale=4.0), steps).flushed_fraction == 0.25
    assert replay(replace(PYTORCH, init_scale=5.0), steps).flushed_fraction == 0.25  # bounded from above
    assert replay(replace(PYTORCH, init_scale=0.25), steps).flushed_fraction == 1.0


def test_the_bootstrap_is_seeded_and_keeps_blocks_together() -> None:
    recorded = path([float(i) for i in range(1, 28)])
    first, again = (extend_path(recorded, 100, 2, seed=5) for _ in range(2))
    assert all((a.indices == b.indices).all() for a, b in zip(first, again, strict=True))
    assert not (first[0].indices == first[1].indices).all()
    assert [len(each) for each in first] == [100, 100]
    assert block_length(27) == 3 and block_length(1) == 1 and block_length(50) == 4
    jumps = np.diff(first[0].indices[:99].reshape(-1, 3), axis=1) % 27
    assert (jumps == 1).all()
    with pytest.raises(ValueError, match="no recorded steps"):
        extend_path(path([]), 10)


def test_a_policy_over_100_000_steps_rides_the_edge() -> None:
    recorded = path([4.7] * 10)
    outcome = judge_policy(PYTORCH, recorded, extend_path(recorded))
    # Down from 2^16 in 3 steps, then 2000 good steps at 2^13 and one skipped at 2^14, over and over.
    assert outcome.skipped_steps.mean == 3 + (100_000 - 3) // 2001
    assert outcome.recorded.skipped_steps == 3
    assert (outcome.lowest_scale, outcome.highest_scale) == (2.0**13, 2.0**16)
