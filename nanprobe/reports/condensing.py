"""Evidence that belongs together, on one line: an operation's numbers beside those of its re-check."""

from __future__ import annotations

import math
from typing import Any

from nanprobe.reports.numbers import count_noun, show_number

Row = tuple[str, str]


def take_operation_rows(evidence: dict[str, Any], low: str, high: str) -> list[Row]:
    """Rows about one operation, most telling first; the keys they show are taken out of `evidence`.

    `low` names the format of the stage ("FP16"), `high` that of the re-check ("FP32").
    """
    rows = _take_example(evidence, low, high) + _take_largest(evidence, low, high) + _take_counts(evidence, high)
    if evidence.get("dtype") is not None and name_format(str(evidence["dtype"])) == low:
        del evidence["dtype"]  # the labels name it
    return rows


def take_warning_row(evidence: dict[str, Any]) -> list[Row]:
    """When the cause could first be seen, and how long before; what could be seen is told in the finding's words."""
    step, earlier = evidence.pop("first_warning_step", None), evidence.pop("first_warning_steps_earlier", None)
    evidence.pop("first_warning", None)
    if step is None or earlier is None:
        return []
    return [("first warning", f"step {show_number(step)}, {count_noun(int(earlier), 'step')} earlier")]


def name_format(dtype: str) -> str:
    """A float format as people write it: "float16" -> "FP16"."""
    return _NAMES.get(dtype, dtype)


_NAMES = {
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
    "fp16": "FP16",
    "bf16": "BF16",
    "fp32": "FP32",
    "fp64": "FP64",
}


def _take_example(evidence: dict[str, Any], low: str, high: str) -> list[Row]:
    """The one element that went wrong: its value, its re-check, its index, and what it was made from."""
    if "example_result" not in evidence:
        return []
    text = show_number(evidence.pop("example_result"))
    if position := evidence.pop("example_position", None):
        text += f" at [{', '.join(map(str, position))}]"
    if made_from := evidence.pop("example_inputs", None):
        text += f", from {' and '.join(map(show_number, made_from))}"
    recheck = evidence.pop("example_recheck", None)
    return [(f"{low} value", text)] + ([] if recheck is None else [(f"{high} re-check", show_number(recheck))])


def _take_largest(evidence: dict[str, Any], low: str, high: str) -> list[Row]:
    """The largest finite magnitude in the tensor, beside the re-check's."""
    if "abs_max" not in evidence or "recheck_abs_max" not in evidence:
        return []
    real, recheck = evidence.pop("abs_max"), evidence.pop("recheck_abs_max")
    return [("largest finite", f"{show_number(real)} in {low}, {show_number(recheck)} in the {high} re-check")]


def _take_counts(evidence: dict[str, Any], high: str) -> list[Row]:
    """How many elements are NaN or Inf, of how many, and how many are in the re-check; nothing when none is."""
    counts = {name: int(evidence.pop(key, None) or 0) for name, key in (("NaN", "nan_count"), ("Inf", "inf_count"))}
    recheck = evidence.pop("recheck_nonfinite", None)
    if not any(counts.values()) and not recheck:
        return []
    text = " and ".join(f"{show_number(count)} {name}" for name, count in counts.items() if count) or "none"
    numel = evidence.pop("numel", None)
    if numel is not None and math.isfinite(numel):
        text += f" of {show_number(numel)} element{'' if numel == 1 else 's'}"
    if recheck is not None:
        text += f", {show_number(recheck) if recheck else 'none'} in the {high} re-check"
    return [("NaN or Inf", text)]
