"""Scaler settings with the numbers behind them: where to start, and how often to try a higher scale.

Rules, all our choice:

- init_scale: 2 bits below the highest safe scale where the window is wide enough, so that gradients four times larger
  than any recorded still fit; no higher than 2^16 (PyTorch's default) unless the window begins above that, because a
  scale that already keeps every gradient gains nothing from being larger; never below the window.
- growth_interval: every growth beyond the window costs a skipped step and gains nothing. 5000 where the recorded steps
  overflow again and again (at least twice) or differ by 2 bits or more; 1000 where the window begins less than 2 bits
  below init_scale, because gradients shrink as training goes on; PyTorch's 2000 otherwise. (5000 is what paid off for
  segmentation; see the scenario recipes.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.formats import FloatFormat
from nanprobe.loss_scale.policies import PYTORCH, ScalerPolicy
from nanprobe.loss_scale.replay import Path, replay
from nanprobe.loss_scale.result import Advice
from nanprobe.loss_scale.window import StepWindow, Window

HIGH_MARGIN_BITS = 2  # between init_scale and the highest safe scale
LOW_MARGIN_BITS = 2  # between the lowest safe scale and init_scale, below which growth should come soon
USUAL_INIT_SCALE = PYTORCH.init_scale
SHORT_INTERVAL, USUAL_INTERVAL, LONG_INTERVAL = 1000, PYTORCH.growth_interval, 5000
REPEATED = 2  # overflows in the recorded steps
SPREAD_BITS = 2  # between the median step's highest safe scale and the lowest of them


@dataclass(frozen=True, slots=True)
class Pressure:
    """How hard the recorded steps push against a scaler."""

    policy: ScalerPolicy  # the script's own, or PyTorch's
    overflows: int  # skipped steps when the policy is replayed over the recorded steps
    first_scale: float
    last_scale: float  # lowest scale it comes to
    spread_bits: float  # between the median step's highest safe scale and the lowest

    @property
    def is_high(self) -> bool:
        """Whether growing the scale is likely to end in an overflow."""
        return self.overflows >= REPEATED or self.spread_bits >= SPREAD_BITS


def measure_pressure(policy: ScalerPolicy, path: Path, steps: Sequence[StepWindow]) -> Pressure:
    """The policy over the recorded steps, and how far these lie apart."""
    run = replay(policy, path)
    exponents = sorted(math.log2(scale) for step in steps if (scale := step.window.highest_scale))
    spread = exponents[len(exponents) // 2] - exponents[0] if exponents else 0.0
    return Pressure(policy, run.skipped_steps, policy.init_scale, run.lowest_scale, spread)


def advise(window: Window, pressure: Pressure, fmt: FloatFormat, steps: int) -> Advice:
    """Settings for a window that is safe."""
    if fmt.exponent_bits >= 8 and window.contains(1.0):
        why = f"{show_format(fmt)} keeps every gradient at scale 1 and overflows none: no loss scaling is needed"
        return Advice(1.0, None, f"{why}, in {_count_steps(steps)}.", None)
    init_scale = choose_init_scale(window)
    interval, reason = choose_growth_interval(window, init_scale, pressure)
    where = f"{show_power(window.lowest_scale)} to {show_power(window.highest_scale)}"
    below = round(math.log2((window.highest_scale or init_scale) / init_scale))
    room = (
        f"is {_count_bits(below)} below the upper edge"
        if window.high_set_by is not None
        else "is far from any overflow"
    )
    why = f"Every scale from {where} is safe in {_count_steps(steps)}, and {show_power(init_scale)} {room}; {reason}."
    return Advice(init_scale, interval, why, write_code(init_scale, interval))


def choose_init_scale(window: Window) -> float:
    """A power of two inside a safe window, with margin."""
    assert window.lowest_scale is not None and window.highest_scale is not None
    lowest, highest = math.log2(window.lowest_scale), math.log2(window.highest_scale)
    # In a narrow window the margin is shared between both ends.
    margin = min(HIGH_MARGIN_BITS, math.ceil((highest - lowest) / 2)) if window.high_set_by is not None else 0
    usual = max(math.log2(USUAL_INIT_SCALE), lowest + LOW_MARGIN_BITS)
    return 2.0 ** round(max(lowest, min(highest - margin, usual)))


def choose_growth_interval(window: Window, init_scale: float, pressure: Pressure) -> tuple[int, str]:
    """Good steps between two growths, and the reason."""
    if pressure.is_high:
        interval = max(LONG_INTERVAL, 2 * pressure.policy.growth_interval)
        if pressure.policy.growth_interval < LONG_INTERVAL:
            interval = LONG_INTERVAL
        return interval, _explain_pressure(pressure) + f", so a higher scale is tried only every {interval:,} steps"
    low_margin = math.log2(init_scale / (window.lowest_scale or 1.0))
    if window.low_set_by is not None and low_margin < LOW_MARGIN_BITS:
        reason = f"it is only {_count_bits(round(low_margin))} above the lower edge, so it should grow soon"
        return SHORT_INTERVAL, f"{reason}: every {SHORT_INTERVAL:,} steps"
    return USUAL_INTERVAL, f"the recorded steps give no reason to leave PyTorch's interval of {USUAL_INTERVAL:,} steps"


def write_code(init_scale: float, growth_interval: int) -> str:
    """The line to paste."""
    return (
        f'scaler = torch.amp.GradScaler("cuda", init_scale=2.0**{round(math.log2(init_scale))}, '
        f"growth_interval={growth_interval})"
    )


def show_power(scale: float | None) -> str:
    """A scale as people speak of it: "2^14"; "1,000" when it is no power of two."""
    if scale is None:
        return "none"
    mantissa, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{scale:,.6g}"


def show_format(fmt: FloatFormat) -> str:
    """A format's short name: "FP16", "BF16", "E4M3"."""
    return _NAMES.get(fmt.name, fmt.name)


_NAMES = {
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float8_e4m3fn": "E4M3",
    "float8_e5m2": "E5M2",
}


def _explain_pressure(pressure: Pressure) -> str:
    if pressure.overflows >= REPEATED:
        fall = f"{show_power(pressure.first_scale)} to {show_power(pressure.last_scale)}"
        return f"{pressure.policy.name} skips {pressure.overflows} of them while its scale falls from {fall}"
    return f"the largest gradients lie {pressure.spread_bits:.0f} bits above those of the median step"


def _count_steps(steps: int) -> str:
    return "the one recorded step" if steps == 1 else f"all {steps:,} recorded steps"


def _count_bits(bits: int) -> str:
    return f"{bits} bit" if bits == 1 else f"{bits} bits"
