"""No safe scale: one layer overflows at the scale another layer needs. What to do about either, with numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.formats import BF16, FloatFormat
from nanprobe.loss_scale.advice import USUAL_INTERVAL, show_format, show_power, write_code
from nanprobe.loss_scale.histograms import ExponentHistogram
from nanprobe.loss_scale.outcomes import Outcomes, predict_outcomes
from nanprobe.loss_scale.result import Advice
from nanprobe.loss_scale.window import LayerWindow, Limits, Window, find_window

ISLAND = 'with torch.autocast("cuda", enabled=False): and .float() on its inputs'


@dataclass(frozen=True, slots=True)
class Conflict:
    """The two ends of a window that is none."""

    overflowing_layer: str | None
    overflows_from: float | None  # lowest power-of-two scale at which it overflows
    needing_layer: str | None
    needed_scale: float | None  # lowest scale that keeps its gradients; None: even 2^32 does not

    def describe(self) -> str:
        """The conflict in words: layer X overflows from 2^k, layer Y needs 2^m."""
        parts = []
        if self.overflows_from is not None:
            parts.append(f"layer {show_layer(self.overflowing_layer)} overflows from {show_power(self.overflows_from)}")
        if self.needing_layer is not None:
            needed = "more than 2^32" if self.needed_scale is None else show_power(self.needed_scale)
            parts.append(f"layer {show_layer(self.needing_layer)} needs {needed}")
        return ", ".join(parts)


def find_conflict(window: Window) -> Conflict | None:
    """What keeps a window from being safe; None when it is."""
    if window.is_safe:
        return None
    return Conflict(window.high_set_by, window.overflows_from, window.low_set_by, window.lowest_scale)


def advise_in_conflict(
    window: Window,
    conflict: Conflict,
    layers: Sequence[LayerWindow],
    histograms: Sequence[ExponentHistogram],
    fmt: FloatFormat,
    limits: Limits,
) -> Advice:
    """A stopgap scale, if any, and the remedies: FP32 for one layer, smaller gradients, another format."""
    remedies = (
        *_isolate(conflict.overflowing_layer, histograms, fmt, limits),
        *_shrink(conflict, layers, fmt),
        *_isolate(conflict.needing_layer, histograms, fmt, limits),
        *_switch_format(histograms, fmt, limits),
    )
    remedies = tuple(dict.fromkeys(remedies))  # one layer may be at both ends
    why = f"No scale is safe in {show_format(fmt)}: {conflict.describe()}"
    if window.highest_scale is None:
        return Advice(None, None, f"{why}.", None, remedies)
    stopgap = window.highest_scale
    lost = _describe_loss(conflict.needing_layer, stopgap, layers)
    why += f"; until that is mended, {show_power(stopgap)} skips no step{lost}."
    return Advice(stopgap, USUAL_INTERVAL, why, write_code(stopgap, USUAL_INTERVAL), remedies)


def show_layer(layer: str | None) -> str:
    """A layer's name; the root module has none of its own."""
    return layer or "(the model itself)"


def _isolate(layer: str | None, histograms: Sequence[ExponentHistogram], fmt: FloatFormat, limits: Limits) -> list[str]:
    """Keep a layer out of the low precision, and what the window is then."""
    if layer is None:
        return []
    rest = [histogram for histogram in histograms if histogram.layer != layer]
    if not rest:
        return [f"run {show_layer(layer)} in FP32 ({ISLAND}): it is the only layer, so no loss scale is needed then"]
    window = find_window(predict_outcomes(rest, fmt), fmt, limits)
    then = (
        f"every scale from {show_power(window.lowest_scale)} to {show_power(window.highest_scale)} is safe without it"
        if (conflict := find_conflict(window)) is None
        else f"not enough alone, because then {conflict.describe()}"
    )
    return [f"run {show_layer(layer)} in FP32 ({ISLAND}): {then}"]


def _shrink(conflict: Conflict, layers: Sequence[LayerWindow], fmt: FloatFormat) -> list[str]:
    """Make the overflowing gradient smaller: by how much, and to what."""
    row = next((row for row in layers if row.layer == conflict.overflowing_layer), None)
    if row is None or conflict.needed_scale is None or conflict.overflowing_layer == conflict.needing_layer:
        return []
    limit = fmt.max / conflict.needed_scale  # what still fits at the scale the other layer needs
    factor, name = math.ceil(row.grad_abs_max / limit), show_layer(row.layer)
    return [
        f"or make the gradient of {name} {factor:,}× smaller: its largest is {row.grad_abs_max:.3g} unscaled, and at "
        f"{show_power(conflict.needed_scale)} it has to stay below {limit:.3g}; clip what enters {name} in backward "
        f"(output.register_hook(lambda g: g.clamp(-c, c))), or rescale: a smaller loss weight or a mean for a sum there"
    ]


def _switch_format(histograms: Sequence[ExponentHistogram], fmt: FloatFormat, limits: Limits) -> list[str]:
    """bfloat16, where it keeps these gradients without a scale."""
    if fmt.exponent_bits >= BF16.exponent_bits:
        return []
    outcomes: Outcomes = predict_outcomes(histograms, BF16)
    if not find_window(outcomes, BF16, limits).contains(1.0):
        return []
    share = outcomes.scale_rows()[0].flushed_fraction
    flushed = f"{share:.2%} of their elements are" if share else "nothing is"
    return [f"or use bfloat16: the same gradients need no loss scale in it, {flushed} flushed at scale 1"]


def _describe_loss(layer: str | None, scale: float, layers: Sequence[LayerWindow]) -> str:
    row = next((row for row in layers if row.layer == layer), None)
    at = next((each for each in row.scales if each.scale == scale), None) if row else None
    if at is None:
        return ""
    shares = f"{at.lost_norm_fraction:.1%} of its gradient norm and {at.flushed_fraction:.1%} of its elements"
    return f", but costs {show_layer(layer)} {shares}"
