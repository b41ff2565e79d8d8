"""A finding's evidence as labelled rows: what each number is called, and in what unit it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from nanprobe.findings import Finding
from nanprobe.reports.condensing import name_format, take_operation_rows, take_warning_row
from nanprobe.reports.numbers import show_bits, show_number, show_percent, show_scale, show_seconds

SHOWN = 8  # items of a list
NOTHING = "none"


class Unit(Enum):
    """How a number is shown."""

    NUMBER = "number"
    PERCENT = "percent"  # the number is a fraction of 1
    BITS = "bits"
    SCALE = "scale"
    SECONDS = "seconds"


N, P, B, S = Unit.NUMBER, Unit.PERCENT, Unit.BITS, Unit.SCALE

# {low} is the format of the stage ("FP16"), {high} that of the re-check ("FP32", "FP64").
EVIDENCE_LABELS: dict[str, tuple[str, Unit]] = {
    # one operation and its re-check
    "value": ("{low} value", N),
    "shadow_value": ("{high} re-check", N),
    "input_value": ("input value", N),
    "abs_max": ("largest finite {low} value", N),
    "recheck_abs_max": ("{high} re-check, largest", N),
    "recheck_nonfinite": ("{high} re-check, NaN or Inf", N),
    "shadow_abs_max": ("{high} re-check, largest", N),
    "largest_input": ("largest input", N),
    "typical_abs_max": ("largest, typically", N),
    "target_abs_max": ("largest target", N),
    "limit": ("{low} limit", N),
    "format_max": ("{low} limit", N),
    "smallest_normal": ("smallest normal {low} value", N),
    "smallest_subnormal": ("smallest {low} value", N),
    "bits_over": ("over the limit by", B),
    "headroom_bits": ("headroom", B),
    "constant": ("constant", N),
    "eps": ("eps", N),
    "fails_at_line": ("fails at line", N),
    "node": ("autograd node", N),
    # counts
    "nan_count": ("NaN elements", N),
    "inf_count": ("Inf elements", N),
    "zero_count": ("zero elements", N),
    "flushed_count": ("elements flushed to zero", N),
    "numel": ("elements in all", N),
    "parameters": ("parameters concerned", N),
    "times_seen": ("times seen", N),
    "backward_pass": ("backward pass of the step", N),
    # gradients and updates
    "flushed_fraction": ("flushed to zero", P),
    "lost_norm_fraction": ("gradient norm lost", P),
    "swallowed_fraction": ("updates swallowed", P),
    "swallowed_overall": ("updates swallowed, all layers", P),
    "changed_fraction": ("weights changed", P),
    "relative_error": ("relative error", P),
    "abs_max_where_lost": ("largest where it was lost", N),
    "grad_abs_max": ("largest gradient", N),
    "scaled_grad_abs_max": ("largest gradient, scaled", N),
    "unscaled_grad_abs_max": ("largest gradient, unscaled", N),
    "unscaled": ("value, unscaled", N),
    "unscaled_value": ("value, unscaled", N),
    "unscaled_abs_max": ("largest, unscaled", N),
    "grad_norm": ("gradient norm", N),
    "weight_abs_max": ("largest weight", N),
    "largest_weight": ("largest weight", N),
    "update_abs_max": ("largest update", N),
    # the loss scale
    "loss_scale": ("loss scale", S),
    "init_scale": ("initial loss scale", S),
    "first_loss_scale": ("loss scale at the start", S),
    "last_loss_scale": ("loss scale at the end", S),
    "suggested_loss_scale": ("loss scale that fits", S),
    "safe_scale": ("loss scale that fits", S),
    "highest_scale": ("highest scale that fits", S),
    "wanted_scale": ("loss scale needed", S),
    "saved_loss_scale": ("loss scale in the checkpoint", S),
    "skipped_steps": ("steps skipped", N),
    "skipped_after_warm_up": ("of them after warm-up", N),
    "skipped_fraction": ("steps skipped", P),
    "steps": ("steps in all", N),
    # training as a whole
    "learning_rate": ("learning rate", N),
    "first_loss": ("loss at the start", N),
    "last_loss": ("last finite loss", N),
    "lowest_loss": ("lowest loss", N),
    "field": ("batch field", N),
    "max_norm": ("max_norm", N),
    "scaled_norm": ("gradient norm, scaled", N),
    "clip_limit": ("clipped to", N),
}
_SUFFIXES = {
    "_fraction": Unit.PERCENT,
    "_share": Unit.PERCENT,
    "_bits": Unit.BITS,
    "_scale": Unit.SCALE,
    "_seconds": Unit.SECONDS,
}
_MOMENTS = {"_start": " at the start", "_last": " at the end"}
_SPELLINGS = {"fp16": "FP16", "fp32": "FP32", "fp64": "FP64", "bf16": "BF16", "nan": "NaN", "inf": "Inf", "amp": "AMP"}


def list_evidence(finding: Finding, dtype: str) -> list[tuple[str, str]]:
    """Label and value of everything measured; `dtype` is the format the finding's stage computed in.

    An operation's own numbers come first, then the rest in the finding's order, and the first warning last. A key
    without a label is shown in words; what is None was not measured, and has no row.
    """
    evidence = {key: value for key, value in finding.evidence.items() if value is not None}
    low = name_format(str(evidence.get("dtype", dtype)))
    high = "FP64" if dtype == "float32" else "FP32"
    rows, warning = take_operation_rows(evidence, low, high), take_warning_row(evidence)
    for key, value in evidence.items():
        label, unit = EVIDENCE_LABELS.get(key, (None, _guess_unit(key)))
        rows.append((label.format(low=low, high=high) if label else humanize(key), show_value(value, unit)))
    return rows + warning


def humanize(key: str) -> str:
    """A key in words: "grad_norm_fp16" -> "grad norm FP16"; the unit's suffix is left out, the value shows it."""
    moment = next((suffix for suffix in _MOMENTS if key.endswith(suffix)), "")
    key = key.removesuffix(moment)
    if (suffix := _find_suffix(key)) and suffix != "_scale":
        key = key.removesuffix(suffix)
    words = " ".join(_SPELLINGS.get(word, word) for word in key.replace("_", " ").split())
    return (words or key) + _MOMENTS.get(moment, "")


def show_value(value: object, unit: Unit = Unit.NUMBER) -> str:
    """A value of any kind on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _show_in_unit(value, unit)
    if isinstance(value, Mapping):
        return _join([f"{key} {show_value(item, unit)}" for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return _join([show_value(item, unit) for item in value])
    return NOTHING if value is None else str(value)


def _show_in_unit(value: float, unit: Unit) -> str:
    if unit is Unit.PERCENT:
        return show_percent(value)
    if unit is Unit.BITS:
        return show_bits(value)
    if unit is Unit.SCALE:
        return show_scale(value)
    return show_seconds(value) if unit is Unit.SECONDS else show_number(value)


def _join(items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return (", ".join(items[:SHOWN]) + more) or NOTHING


def _guess_unit(key: str) -> Unit:
    suffix = _find_suffix(key)
    return _SUFFIXES[suffix] if suffix else Unit.NUMBER


def _find_suffix(key: str) -> str | None:
    return next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), None)
