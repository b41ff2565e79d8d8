"""Numbers and operations in words, and the figures that every finding about an operation shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.diagnosis.graph_table import node_name
from nanprobe.diagnosis.trail import base_name
from nanprobe.formats import FloatFormat, format_named
from nanprobe.records import OpRecord, Source

# What autocast does at the border of a layer has no name in the user's script.
_SPOKEN = {"to_copy": "cast"}


def figure(value: float | None) -> str:
    """A number for people: three significant digits, whole numbers below a million as they are."""
    if value is None:
        return "unknown"
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.3g}"


def scale_figure(scale: float) -> str:
    """A loss scale as it is written in a script: "65536", "2**23", "0.001"."""
    mantissa, exponent = math.frexp(scale) if math.isfinite(scale) else (0.0, 0)
    return f"2**{exponent - 1}" if mantissa == 0.5 and scale >= 1e6 else figure(scale)


def times(count: int) -> str:
    """How often: "once", "12 times"."""
    return "once" if count == 1 else f"{count} times"


def percent(fraction: float) -> str:
    """A share for people: "12%", and never "100%" for less than all."""
    if fraction >= 1.0:
        return "all"
    return f"{min(100.0 * fraction, 99.9):.3g}%"


def op_label(op: OpRecord) -> str:
    """An operation in a sentence: "mul", "mse_loss (backward)", "cast" for a change of number format."""
    if op.node and op.node != "AccumulateGrad":
        node = node_name(op.node)
        return f"{_SPOKEN.get(node, node)} (backward)"
    return _SPOKEN.get(base_name(op.op), base_name(op.op))


def place_label(op: OpRecord) -> str:
    """Where an operation stands: its module and line, as far as known."""
    line = f"line {op.source.line}" if op.source else None
    if op.module:
        # A layer of an nn.Sequential has a number for a name.
        module = f"module {op.module}" if op.module.replace(".", "").isdigit() else op.module
        return f"{module} ({line})" if line else module
    return line or op_label(op)


def listed(numbers: Sequence[int]) -> str:
    """A few numbers in a sentence, the first six of them."""
    shown = ", ".join(str(n) for n in numbers[:6])
    return f"{shown}, ..." if len(numbers) > 6 else shown


def line_of(source: Source | None) -> str:
    """The line number, "?" where it is not known."""
    return str(source.line) if source else "?"


def number_format(op: OpRecord) -> FloatFormat:
    """The format of the operation's result."""
    return format_named(op.outputs[0].dtype)


def shadow_peak(op: OpRecord) -> float | None:
    """The largest finite magnitude of the re-check over the operation's outputs."""
    peaks = [s.shadow_abs_max for s in op.outputs if s.shadow_abs_max is not None and math.isfinite(s.shadow_abs_max)]
    return max(peaks) if peaks else None


def op_evidence(op: OpRecord) -> dict[str, object]:
    """The numbers of an operation that every finding about it shows."""
    shown: dict[str, object] = {
        "dtype": op.outputs[0].dtype if op.outputs else None,
        "nan_count": sum(s.nan_count for s in op.outputs),
        "inf_count": sum(s.inf_count for s in op.outputs),
        "numel": sum(s.numel for s in op.outputs),
        "abs_max": max((s.abs_max for s in op.outputs), default=None),
        "recheck_abs_max": shadow_peak(op),
        "recheck_nonfinite": sum((s.shadow_nan_count or 0) + (s.shadow_inf_count or 0) for s in op.outputs),
    }
    if op.specimens:
        first = op.specimens[0]
        shown["example_position"] = list(first.position)
        shown["example_result"] = first.real
        shown["example_recheck"] = first.shadow
        shown["example_inputs"] = [real for real, _ in first.inputs]
    return {k: v for k, v in shown.items() if v is not None}
