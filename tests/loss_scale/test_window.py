"""The window: equal to PyTorch's own casts at every scale, and well-behaved in between."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loss_scale import sweeps
from nanprobe.formats import BF16, E4M3, E5M2, FP16, FloatFormat
from nanprobe.loss_scale.histograms import ACTIVATION, ExponentHistogram, histogram_of
from nanprobe.loss_scale.outcomes import SCALE_EXPONENTS, predict_outcomes
from nanprobe.loss_scale.window import Limits, Window, find_layer_windows, find_step_windows, find_window

FORMATS = [FP16, BF16, E4M3, E5M2]
# Full float32 mantissas, exact powers of two and the thresholds themselves; wide enough to flush and to overflow.
GRADIENTS = st.lists(
    st.one_of(
        st.floats(-1e5, 1e5, width=32),
        st.floats(-(2.0**-20), 2.0**-20, width=32),
        st.integers(-60, 20).map(lambda e: 2.0**e),
    ),
    min_size=1,
    max_size=30,
)


def one(values: list[float], scale: float = 1.0, **changes: object) -> ExponentHistogram:
    return histogram_of([v * scale for v in values], name="w", layer="fc", loss_scale=scale, **changes)  # type: ignore[arg-type]


def window_of(histograms: list[ExponentHistogram], fmt: FloatFormat = FP16, limits: Limits | None = None) -> Window:
    return find_window(predict_outcomes(histograms, fmt), fmt, limits or Limits())


@settings(deadline=None)
@given(values=GRADIENTS, fmt=st.sampled_from(FORMATS), exponent=st.sampled_from(SCALE_EXPONENTS))
def test_every_scale_is_as_pytorch_casts(values: list[float], fmt: FloatFormat, exponent: int) -> None:
    row = predict_outcomes([one(values, 2.0**16)], fmt).scale_rows()[exponent]
    scaled = torch.tensor(values, dtype=torch.float64).mul(2.0**exponent).float()
    cast = scaled.to(getattr(torch, fmt.name)).double()
    flushed = (cast == 0) & (scaled != 0)
    # The cast of a float8 format without Inf saturates or makes NaN; the format knows which inputs it loses.
    lost = torch.tensor([fmt.overflows(v) for v in scaled.tolist()])
    assert not fmt.has_infinity or bool((lost == ~cast.isfinite()).all())
    assert row.overflowing_tensors == int(lost.any())
    assert row.flushed_elements == int(flushed.sum())
    assert row.undecided == 0
    whole = scaled.double().norm()
    if whole:
        assert row.lost_norm_fraction == pytest.approx(float(scaled.double()[flushed].norm() / whole), abs=1e-9)


@given(values=GRADIENTS, exponent=st.sampled_from(SCALE_EXPONENTS))
def test_without_powers_the_flushed_count_is_bounded(values: list[float], exponent: int) -> None:
    exact = predict_outcomes([one(values)], FP16).scale_rows()[exponent]
    rough = predict_outcomes([replace(one(values), powers=())], FP16).scale_rows()[exponent]
    assert rough.flushed_elements <= exact.flushed_elements <= rough.flushed_elements + rough.undecided


@given(values=GRADIENTS, fmt=st.sampled_from(FORMATS))
def test_a_higher_scale_flushes_no_more_and_overflows_no_less(values: list[float], fmt: FloatFormat) -> None:
    rows = predict_outcomes([one(values)], fmt).scale_rows()
    for lower, higher in itertools.pairwise(rows):
        assert higher.flushed_elements <= lower.flushed_elements
        assert higher.lost_norm_fraction <= lower.lost_norm_fraction + 1e-12
        assert higher.overflowing_tensors >= lower.overflowing_tensors


@settings(deadline=None, max_examples=30)
@given(peak=st.floats(1.0, 2.0), bits=st.integers(-2, 1))
def test_larger_gradients_move_the_window_down_by_as_many_bits(peak: float, bits: int) -> None:
    # Between 2^-14 and 2^-40, so that neither edge comes to an end of the axis.
    values = [peak * 2.0**-14, *(peak * 2.0**-e for e in range(15, 40))]
    values += [value * 1.5 for value in values[10:]] * 20
    before, after = window_of([one(values)]), window_of([one([v * 2.0**bits for v in values])])
    for edge in ("lowest_scale", "highest_scale"):
        assert 0 <= math.log2(getattr(before, edge)) - bits <= 32
        assert getattr(after, edge) == getattr(before, edge) * 2.0**-bits


@given(values=GRADIENTS, measured=st.integers(0, 24))
def test_the_scale_it_was_measured_at_does_not_matter(values: list[float], measured: int) -> None:
    assert window_of([one(values)]) == window_of([one(values, 2.0**measured)])


@given(first=GRADIENTS, second=GRADIENTS)
def test_more_tensors_never_widen_the_window(first: list[float], second: list[float]) -> None:
    both = [one(first), replace(one(second), name="v", layer="other", kind=ACTIVATION)]
    joint, alone = window_of(both), window_of(both[:1])
    assert (joint.highest_scale or 0) <= (alone.highest_scale or 0)
    assert (joint.lowest_scale or math.inf) >= (alone.lowest_scale or math.inf)
    assert window_of(both[::-1]).highest_scale == joint.highest_scale


def test_the_largest_gradient_sets_the_upper_edge_exactly() -> None:
    below, at = math.nextafter(65520 / 2**10, 0), 65520 / 2**10
    assert window_of([one([below])]).highest_scale == 2.0**10
    assert window_of([one([at])]).highest_scale == 2.0**9


def test_the_flush_threshold_itself_is_flushed() -> None:
    assert window_of([one([2.0**-25])]).lowest_scale == 2.0
    assert window_of([one([math.nextafter(2.0**-25, 1)])]).lowest_scale == 1.0


def test_a_long_tail_that_carries_no_norm_is_let_go_and_one_that_does_is_not() -> None:
    tail = window_of([one([1.0, *[1e-9] * 900])])
    assert tail.lowest_scale == 1.0
    heavy = window_of([one([2e-4] + [1e-8] * 1000)])
    assert heavy.low_set_by == "fc" and heavy.lowest_scale == 4.0


def test_edges_outside_the_range_are_told_apart() -> None:
    tiny, huge = window_of([one([1e-20])]), window_of([one([1e6])])
    assert (tiny.lowest_scale, tiny.highest_scale, tiny.high_set_by) == (None, 2.0**32, None)
    assert (huge.highest_scale, huge.overflows_from, huge.high_set_by) == (None, 1.0, "fc")
    assert not tiny.is_safe and not huge.is_safe and tiny.bits is None


def test_zeros_need_nothing_and_nonfinite_ones_are_never_safe() -> None:
    assert window_of([one([0.0, 0.0])]) == Window(1.0, 2.0**32)
    assert window_of([one([1.0, math.nan])]).highest_scale is None


def test_layers_and_steps_have_windows_of_their_own() -> None:
    histograms = sweeps.model(sweeps.TRANSFORMER)
    outcomes = predict_outcomes(histograms, FP16)
    layers = {row.layer: row for row in find_layer_windows(outcomes, FP16, Limits())}
    assert list(layers) == list(sweeps.TRANSFORMER)
    assert layers["head"].window.high_set_by == "head.weight"
    assert layers["head"].tensors == 2 and layers["head"].grad_abs_max == 4.7
    overall = find_window(outcomes, FP16, Limits())
    assert (overall.high_set_by, overall.highest_scale, overall.overflows_from) == ("head", 2.0**13, 2.0**14)
    steps = find_step_windows(outcomes, FP16, Limits())
    assert [step.step for step in steps] == list(range(sweeps.STEPS))
    assert overall.highest_scale == min(step.window.highest_scale or 0 for step in steps)


def test_tensors_are_counted_once_over_steps() -> None:
    rows = predict_outcomes(sweeps.model({"head": 4.7}), FP16).scale_rows()
    assert (rows[16].overflowing_tensors, rows[16].overflowing_steps) == (2, sweeps.STEPS)
    assert rows[13].overflowing_tensors == 0
