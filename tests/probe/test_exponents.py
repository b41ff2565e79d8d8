"""Histograms that the probe takes are those a plain count of the same numbers gives."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanprobe.loss_scale.histograms import histogram_of
from nanprobe.probe import exponents
from nanprobe.probe.exponents import GradientSweep

NORMAL = 2.0**-126
MIDDLE = (1 + 2**-8) ** 2 - 1  # how far the square of a bin's middle is from that of its lower edge
# Whole powers of two and zeros are drawn on purpose: they sit on the edges of bins, and on the flush threshold.
numbers = st.one_of(
    st.floats(width=32, min_value=NORMAL),
    st.floats(width=32, max_value=-NORMAL),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]),
    st.integers(-126, 127).map(lambda e: math.ldexp(1.0, e)),
)


def take(values, loss_scale=1.0):
    """The histogram of one parameter's gradient, through the tap that sees it in a run."""
    sweep = GradientSweep("float16", lambda: "layer", lambda tensor: "layer.weight")
    weight = torch.zeros(len(values), requires_grad=True)
    key = sweep._describe("aten.mm", "input", weight)
    sweep.before_backward(loss_scale)
    sweep._look(key, torch.tensor(values, dtype=torch.float32))
    (histogram,) = sweep.after_backward(step=3)
    return histogram


def plain(values, loss_scale=1.0):
    return histogram_of(values, name="layer.weight", layer="layer", step=3, loss_scale=loss_scale)


def check(found, expected, tolerance):
    """Everything exact but the sums of squares."""
    assert found.sums_of_squares == pytest.approx(expected.sums_of_squares, rel=tolerance)
    for field in found.__slots__:
        if field != "sums_of_squares" and (field != "offset" or expected.counts):
            assert getattr(found, field) == getattr(expected, field), field


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=40))
def test_small_gradients_equal_a_plain_count(values):
    check(take(values), plain(values), tolerance=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.lists(numbers, min_size=1, max_size=40))
def test_large_gradients_equal_a_plain_count(values):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exponents, "_SMALL", 0)
        patch.setattr(exponents, "_CHUNK", 16)
        check(take(values), plain(values), tolerance=MIDDLE)


def test_a_large_gradient_without_a_special_number():
    values = (torch.randn(30_000, generator=torch.Generator().manual_seed(0)) * 1e-4).tolist()
    check(take(values), plain(values), tolerance=MIDDLE)


@settings(deadline=None, max_examples=30)
@given(st.lists(numbers, min_size=1, max_size=40))
def test_the_device_s_way_equals_a_plain_count(values):
    """Run here on the CPU: the same operations, whatever the device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exponents, "_count_on_host", exponents._count_on_device)
        found, expected = take(values), plain(values)
    if expected.nonfinite:  # then the end of the largest exponent stands for the largest number
        assert expected.abs_max <= found.abs_max <= 2 * expected.abs_max or not expected.counts
        return
    check(found, expected, tolerance=MIDDLE)


@settings(deadline=None)
@given(st.lists(st.floats(width=32, min_value=2.0**-60, max_value=2.0**60), min_size=1), st.integers(-20, 32))
def test_a_loss_scale_that_is_a_power_of_two_only_moves_bins(values, exponent):
    scale = 2.0**exponent
    found = take([value * scale for value in values], loss_scale=scale)
    assert found.loss_scale == scale
    unscaled = found.at_scale(1.0)
    check(unscaled, plain(values), tolerance=1e-6)


@pytest.mark.parametrize("scale", [1000.0, 3.0, 0.1, 65535.0])
def test_a_script_s_scale_that_is_no_power_of_two(scale):
    """Gradients are brought to the nearest power of two, so that what is left without the scale is the same."""
    values = [1.1e-3, -2.3e-5, 7.7, 0.0, 4.1e-8]
    found = take([float(np.float32(value * scale)) for value in values], loss_scale=scale)
    assert math.log2(found.loss_scale).is_integer()
    assert abs(math.log2(found.loss_scale / scale)) <= 0.5
    assert found.unscaled_abs_max == pytest.approx(7.7, rel=1e-6)
    assert found.at_scale(1.0).counts == plain(values).counts
    assert found.at_scale(1.0).offset == plain(values).offset


def test_overflow_is_judged_at_the_script_s_own_scale():
    sweep = GradientSweep("float16", lambda: "layer", lambda tensor: None)
    for largest, overflows in ((65519.0, False), (65520.0, True), (-65520.0, True), (math.nan, True)):
        sweep.before_backward(1000.0)
        sweep._look(sweep._describe("aten.mm", "input", torch.zeros(2)), torch.tensor([1.0, largest]))
        assert sweep.overflows(sweep.after_backward(0)) is overflows


def test_the_same_tensor_has_the_same_name_in_every_step():
    sweep = GradientSweep("float16", lambda: "block", lambda tensor: None)
    names = []
    for step in range(2):
        keys = [sweep._describe("aten.linear", "output", torch.zeros(1)) for _ in range(2)]
        sweep.before_backward(1.0)
        for key in keys:
            sweep._look(key, torch.ones(1))
        names.append([h.name for h in sweep.after_backward(step)])
    assert names == [["block:linear.output", "block:linear.output#2"]] * 2


def test_what_is_no_float32_gradient_is_passed_over():
    sweep = GradientSweep("float16", lambda: None, lambda tensor: None)
    key = sweep._describe("aten.mm", "input", torch.zeros(1))
    sweep.before_backward(1.0)
    sweep._look(key, torch.zeros(0))
    sweep._look(key, torch.zeros(3, dtype=torch.float64))
    assert sweep.after_backward(0) == []


def test_a_gradient_that_is_no_dense_memory():
    sweep = GradientSweep("float16", lambda: None, lambda tensor: None)
    key = sweep._describe("aten.mm", "input", torch.zeros(1))
    sweep.before_backward(1.0)
    sweep._look(key, torch.tensor(0.25).expand(3, 4))
    sweep._look(key, torch.arange(1.0, 13.0).reshape(3, 4).t())
    first, second = sweep.after_backward(0)
    assert (first.name, first.layer) == ("mm.input", "")
    assert (first.offset, first.counts, first.powers) == (-2, (12,), (12,))
    assert (second.counts, second.abs_max) == ((1, 2, 4, 5), 12.0)
