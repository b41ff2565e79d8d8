"""Float formats: every limit derived from the bit layout, none typed in. No torch here.

Source: IEEE 754-2019 section 3.4 for fp16, fp32, fp64; the OCP OFP8 specification for e4m3 and e5m2; bf16 is
fp32 with 16 mantissa bits removed. Rounding is to nearest, ties to even, as in PyTorch's casts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanprobe.errors import UsageError


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """One binary float format, told by its bit layout."""

    name: str  # PyTorch's name of the dtype, e.g. "float16"
    exponent_bits: int
    mantissa_bits: int  # stored ones, without the implicit leading 1
    has_infinity: bool = True  # False: the top exponent holds numbers too, and only all ones is NaN (e4m3fn)

    @property
    def bits(self) -> int:
        """Width of the format in bits, sign included."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is taken from the stored exponent to get the true one."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite binade: 15 for fp16."""
        return self.bias if self.has_infinity else self.bias + 1

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number: -14 for fp16."""
        return 1 - self.bias

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger number: 2^-10 for fp16."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def max(self) -> float:
        """Largest finite number: 65504 for fp16."""
        steps_below_next_binade = 1 if self.has_infinity else 2  # e4m3fn gives its topmost value to NaN
        return math.ldexp(2.0 - steps_below_next_binade * self.eps, self.max_exponent)

    @property
    def overflow_threshold(self) -> float:
        """Where rounding leaves the format: half a step above `max`, 65520 for fp16; inf for fp64 (no float holds it).

        The threshold itself becomes Inf (ties go to even). In e4m3, which has no Inf, it still rounds to `max`, and
        what lies above is lost: saturated to `max` by PyTorch from 2.13, NaN before. `overflows` knows the difference.
        """
        half_step = math.ldexp(self.eps, self.max_exponent - 1)
        return self.max + half_step

    @property
    def min_normal(self) -> float:
        """Smallest number with full precision: 2^-14 for fp16."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        """Smallest number above zero: 2^-24 for fp16."""
        return math.ldexp(1.0, self.min_exponent - self.mantissa_bits)

    @property
    def flush_threshold(self) -> float:
        """Largest magnitude that rounds to 0: 2^-25 for fp16 (the tie goes to even, which is 0); 0.0 for fp64."""
        return self.min_subnormal / 2

    def overflows(self, x: float) -> bool:
        """Whether a finite `x` rounds to something beyond `max`: Inf, or what a format without Inf has for it."""
        magnitude = abs(x)
        if not math.isfinite(magnitude):
            return False
        return magnitude >= self.overflow_threshold if self.has_infinity else magnitude > self.overflow_threshold

    def flushes(self, x: float) -> bool:
        """Whether a non-zero `x` is 0 once rounded to this format."""
        return 0.0 < abs(x) <= self.flush_threshold

    def highest_scale(self, x: float) -> float:
        """The highest power of two that a finite `x` can be multiplied by without overflow; infinite for 0."""
        if x == 0.0:
            return math.inf
        exponent = math.floor(math.log2(self.max) - math.log2(abs(x))) + 1  # one too many, for the rounding at the end
        while self.overflows(math.ldexp(x, exponent)):
            exponent -= 1
        return math.ldexp(1.0, exponent)

    def bits_over(self, x: float) -> float:
        """How many bits |x| lies above `max`, log2(|x| / max): negative inside, -inf for 0, NaN for NaN."""
        magnitude = abs(x)
        if magnitude == 0.0:
            return -math.inf
        if not math.isfinite(magnitude):
            return magnitude  # inf or NaN: math.log2 would refuse neither, but the difference could
        return math.log2(magnitude) - math.log2(self.max)  # not the quotient, which may underflow

    def headroom_bits(self, x: float) -> float:
        """How many times |x| can be doubled before it leaves `max`: the negative of `bits_over`."""
        return -self.bits_over(x)


FP16 = FloatFormat("float16", exponent_bits=5, mantissa_bits=10)
BF16 = FloatFormat("bfloat16", exponent_bits=8, mantissa_bits=7)
FP32 = FloatFormat("float32", exponent_bits=8, mantissa_bits=23)
FP64 = FloatFormat("float64", exponent_bits=11, mantissa_bits=52)
E4M3 = FloatFormat("float8_e4m3fn", exponent_bits=4, mantissa_bits=3, has_infinity=False)
E5M2 = FloatFormat("float8_e5m2", exponent_bits=5, mantissa_bits=2)

FORMATS = (FP16, BF16, FP32, FP64, E4M3, E5M2)

_ALIASES = {
    "fp16": FP16,
    "half": FP16,
    "bf16": BF16,
    "fp32": FP32,
    "float": FP32,
    "fp64": FP64,
    "double": FP64,
    "e4m3": E4M3,
    "e4m3fn": E4M3,
    "e5m2": E5M2,
}
_BY_NAME = {**{fmt.name: fmt for fmt in FORMATS}, **_ALIASES}


def format_named(name: str) -> FloatFormat:
    """The format called `name`: PyTorch's name ("float16", "torch.float16") or a short one ("fp16", "bf16", "e4m3").

    Raises UsageError for a name that is none of them.
    """
    fmt = _BY_NAME.get(name.strip().lower().removeprefix("torch."))
    if fmt is None:
        raise UsageError(f"unknown float format {name!r}; expected one of {', '.join(sorted(_BY_NAME))}")
    return fmt
