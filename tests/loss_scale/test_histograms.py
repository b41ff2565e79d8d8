"""Exponent histograms: what they hold, how they move with the scale, merge, and travel."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanprobe.loss_scale.histograms import ExponentHistogram, exponent_of, histogram_of, merge_histograms

FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES = st.lists(FINITE, max_size=40)


def make(values: list[float], **changes: object) -> ExponentHistogram:
    return histogram_of(values, name="w", layer="fc", **changes)  # type: ignore[arg-type]


def test_bins_begin_at_powers_of_two() -> None:
    histogram = make([0.0, 1.0, -1.5, 2.0, 3.999, 4.0, math.nan, math.inf])
    assert (histogram.offset, histogram.counts) == (0, (2, 2, 1))
    assert histogram.powers == (1, 1, 1)
    assert (histogram.zeros, histogram.nonfinite, histogram.numel) == (1, 2, 8)
    assert histogram.abs_max == 4.0
    assert histogram.sums_of_squares[0] == 1.0 + 1.5**2


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_the_exponent_brackets_the_value(value: float) -> None:
    assert 2.0 ** exponent_of(value) <= value < 2.0 ** (exponent_of(value) + 1)


@given(VALUES, st.integers(-20, 20))
def test_another_scale_only_moves_the_bins(values: list[float], bits: int) -> None:
    moved = make(values).at_scale(2.0**bits)
    direct = make([value * 2.0**bits for value in values], loss_scale=2.0**bits)
    assert moved.counts == direct.counts and moved.powers == direct.powers
    assert moved.abs_max == direct.abs_max and moved.unscaled_abs_max == make(values).abs_max
    if moved.counts:
        assert moved.offset == direct.offset
        assert moved.sums_of_squares == pytest.approx(direct.sums_of_squares)


@given(VALUES, VALUES)
def test_merging_is_as_measuring_both_at_once(first: list[float], second: list[float]) -> None:
    merged = merge_histograms([make(first), make([v * 4 for v in second], loss_scale=4.0, step=1)])
    whole = make([*first, *second])
    assert (merged.counts, merged.zeros, merged.abs_max) == (whole.counts, whole.zeros, whole.abs_max)
    assert merged.unscaled_norm == pytest.approx(whole.unscaled_norm)
    if whole.counts:
        assert merged.offset == whole.offset and merged.powers == whole.powers


def test_different_tensors_do_not_merge() -> None:
    with pytest.raises(ValueError, match="histograms of one tensor"):
        merge_histograms([make([1.0]), histogram_of([1.0], name="b", layer="fc")])


@given(VALUES)
def test_a_trip_through_json_keeps_everything_that_counts(values: list[float]) -> None:
    histogram = make(values, loss_scale=8.0)
    back = ExponentHistogram.from_plain(json.loads(json.dumps(histogram.to_plain(), allow_nan=False)) | {"new": 1})
    assert back.sums_of_squares == pytest.approx(histogram.sums_of_squares, rel=1e-5)
    assert (back.counts, back.powers, back.abs_max) == (histogram.counts, histogram.powers, histogram.abs_max)
    assert (back.name, back.layer, back.kind, back.step) == ("w", "fc", "parameter", 0)


@pytest.mark.parametrize("scale", [0.0, -2.0, 3.0, 1000.0, math.inf, math.nan])
def test_a_scale_that_is_no_power_of_two_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="not a power of two"):
        make([1.0], loss_scale=scale)


def test_bins_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        ExponentHistogram("w", "", "parameter", 0, 1.0, 0, (1, 2), (1.0,), 0, 0, 2.0)
    with pytest.raises(ValueError, match="kind is 'buffer'"):
        ExponentHistogram("w", "", "buffer", 0, 1.0, 0, (), (), 0, 0, 0.0)
