"""Numbers and formats as people write them: "2**16", "2^16", "65_536", "1e-3"; "fp16", "bfloat16"."""

from __future__ import annotations

import math
import re

DTYPES = {"fp16": "float16", "float16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16"}

_NUMBER = r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?"
_WHOLE = re.compile(r"[+-]?\d[\d_]*")
_POWER = re.compile(rf"({_NUMBER})\s*(?:\*\*|\^)\s*({_NUMBER})")


def parse_number(text: str) -> float | None:
    """The finite number a text stands for, an int where it is written as one; None where it stands for none."""
    text = text.strip()
    try:
        if _WHOLE.fullmatch(text):
            return int(text) if math.isfinite(float(text)) else None
        if power := _POWER.fullmatch(text):
            value = float(power[1]) ** float(power[2])
        elif re.fullmatch(_NUMBER, text):
            value = float(text)
        else:
            return None
    except (ValueError, OverflowError, ZeroDivisionError):
        return None
    return value if isinstance(value, float) and math.isfinite(value) else None


def parse_whole(text: str) -> int | None:
    """The same where it is a whole number: "50", "5e1" and "2**4" are, "0.5" is not."""
    number = parse_number(text)
    return int(number) if number is not None and number == int(number) else None
