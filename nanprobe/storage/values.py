"""Free values as strict JSON and back. Numbers that are not finite are the strings "NaN", "Infinity", "-Infinity"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def name_number(value: float) -> float | str:
    """A number as JSON can hold it: itself when finite, else "NaN", "Infinity" or "-Infinity"."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def to_json_value(value: object) -> Any:
    """Any value as strict JSON; tuples and sets become lists, enums their values, what JSON cannot hold its text."""
    if isinstance(value, Enum):
        return to_json_value(value.value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return name_number(float(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json_value(item) for item in value), key=str)
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    return str(value)


def from_json_value(value: Any) -> Any:
    """The inverse of `to_json_value` for free dictionaries; a string that names a non-finite number becomes it."""
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {key: from_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    return value
