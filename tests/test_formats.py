"""Limits are derived from the bit layout and must be those of PyTorch's own casts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanprobe.errors import UsageError
from nanprobe.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, FP64, FloatFormat, format_named

CASTABLE = [fmt for fmt in FORMATS if fmt is not FP64]  # float64 is what we cast from


def cast(x: float, fmt: FloatFormat) -> float:
    """What PyTorch makes of `x` in `fmt`, as a Python float."""
    # from float32, because PyTorch rounds twice on the way from float64 to a narrow format
    source = torch.float64 if fmt is FP32 else torch.float32
    return float(torch.tensor(x, dtype=source).to(getattr(torch, fmt.name)).double())


def neighbour(x: float, towards: float, fmt: FloatFormat) -> float:
    """The next float beside `x` in the precision that `cast` starts from."""
    source = torch.float64 if fmt is FP32 else torch.float32
    return float(torch.nextafter(torch.tensor(x, dtype=source), torch.tensor(towards, dtype=source)))


def is_lost(rounded: float, fmt: FloatFormat) -> bool:
    """Whether a cast result says that its input was out of range."""
    return not math.isfinite(rounded) if fmt.has_infinity else rounded != rounded or abs(rounded) == fmt.max


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_limits_are_those_of_finfo(fmt: FloatFormat) -> None:
    info = torch.finfo(getattr(torch, fmt.name))
    assert fmt.max == info.max
    assert fmt.min_normal == info.smallest_normal
    assert fmt.eps == info.eps
    assert fmt.bits == info.bits


def test_the_numbers_everyone_knows() -> None:
    assert FP16.max == 65504 and FP16.overflow_threshold == 65520
    assert FP16.min_normal == 2**-14 and FP16.min_subnormal == 2**-24 and FP16.flush_threshold == 2**-25
    assert E4M3.max == 448 and E5M2.max == 57344
    assert FP64.overflow_threshold == math.inf and FP64.flush_threshold == 0.0


@pytest.mark.parametrize("fmt", CASTABLE, ids=lambda fmt: fmt.name)
def test_overflow_starts_exactly_at_the_threshold(fmt: FloatFormat) -> None:
    edge = fmt.overflow_threshold
    inside, outside = neighbour(edge, 0.0, fmt), neighbour(edge, math.inf, fmt)
    assert cast(inside, fmt) == fmt.max and not fmt.overflows(inside)
    assert is_lost(cast(edge, fmt), fmt) and fmt.overflows(edge) is fmt.has_infinity
    assert is_lost(cast(outside, fmt), fmt) and fmt.overflows(outside) and fmt.overflows(-outside)


@pytest.mark.parametrize("fmt", CASTABLE, ids=lambda fmt: fmt.name)
def test_flush_ends_exactly_at_the_threshold(fmt: FloatFormat) -> None:
    edge = fmt.flush_threshold
    outside = neighbour(edge, math.inf, fmt)
    assert cast(edge, fmt) == 0.0 and fmt.flushes(edge)
    assert not fmt.flushes(outside)
    assert cast(outside, fmt) == fmt.min_subnormal
    assert not fmt.flushes(0.0)


def test_bf16_casts_keep_subnormals() -> None:
    assert cast(BF16.min_subnormal, BF16) == BF16.min_subnormal
    assert cast(BF16.flush_threshold * 1.5, BF16) == BF16.min_subnormal


@pytest.mark.parametrize("fmt", CASTABLE, ids=lambda fmt: fmt.name)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_any_number_overflows_or_flushes_as_the_cast_does(fmt: FloatFormat, x: float) -> None:
    rounded = cast(x, fmt)
    assert not fmt.overflows(x) or is_lost(rounded, fmt)
    assert math.isfinite(rounded) or fmt.overflows(x)
    assert fmt.flushes(x) is (x != 0.0 and rounded == 0.0)


@given(exponent=st.integers(-200, 200))
def test_bits_over_counts_doublings(exponent: int) -> None:
    assert FP16.bits_over(FP16.max * 2.0**exponent) == pytest.approx(exponent)
    assert FP16.headroom_bits(-FP16.max * 2.0**exponent) == pytest.approx(-exponent)


def test_bits_over_of_what_is_not_a_plain_number() -> None:
    assert FP16.bits_over(0.0) == -math.inf
    assert FP16.bits_over(-math.inf) == math.inf
    assert math.isnan(FP16.bits_over(math.nan))
    assert FP32.bits_over(5e-324) < -1000  # the quotient would have underflowed
    assert not FP16.overflows(math.inf)  # it has not just overflowed: it came as Inf


@pytest.mark.parametrize(
    ("name", "fmt"),
    [("float16", FP16), ("fp16", FP16), ("torch.float16", FP16), ("BF16", BF16), ("e4m3", E4M3), ("half", FP16)],
)
def test_formats_are_found_by_every_name(name: str, fmt: FloatFormat) -> None:
    assert format_named(name) is fmt


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown float format 'fp12'; expected one of .*fp16"):
        format_named("fp12")


@given(st.sampled_from([FP16, BF16]), st.floats(1e-30, 1e4))
def test_the_highest_scale_is_the_last_that_does_not_overflow(fmt: FloatFormat, x: float) -> None:
    scale = fmt.highest_scale(x)
    assert math.frexp(scale)[0] == 0.5
    assert not fmt.overflows(x * scale) and fmt.overflows(-x * scale * 2)
    assert fmt.highest_scale(0.0) == math.inf
