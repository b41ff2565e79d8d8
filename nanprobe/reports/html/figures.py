"""The numbers and signs of the page: exponents as superscripts, names cut in the middle, signs beside colours."""

from __future__ import annotations

import math
import re

from nanprobe.findings import Severity
from nanprobe.reports.html.markup import Markup, element
from nanprobe.reports.numbers import NOT_MEASURED, show_number
from nanprobe.reports.stage_summary import Result

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# Sign and style of each severity and result: never told apart by colour alone.
SEVERITY_SIGNS: dict[Severity, tuple[str, str]] = {
    Severity.ERROR: ("✖", "bad"),
    Severity.WARNING: ("▲", "warn"),
    Severity.NOTE: ("•", "note"),
}
RESULT_SIGNS: dict[Result, tuple[str, str]] = {
    Result.OK: ("✔", "good"),
    Result.NOTED: ("▲", "warn"),
    Result.BROKE: ("✖", "bad"),
    Result.NO_STEPS: ("?", "warn"),
    Result.CRASHED: ("✖", "bad"),
    Result.SKIPPED: ("–", "dim"),
    Result.TIMED_OUT: ("✖", "bad"),
}


def show_exponent(exponent: int) -> str:
    """A power of two by its exponent: "2⁻¹⁴"."""
    return f"2{str(exponent).translate(_SUPERSCRIPTS)}"


def show_power(value: float | None) -> str:
    """A number as a power of two where it is one: "2¹⁶", "0.37"; a dash when not measured."""
    if value is None:
        return NOT_MEASURED
    if value > 0 and math.isfinite(value) and math.frexp(value)[0] == 0.5:
        return show_exponent(math.frexp(value)[1] - 1)
    return show_number(value)


def with_powers(words: str) -> str:
    """The words with powers as "2^-14" written as "2⁻¹⁴"."""
    return re.sub(r"\b2\^(-?\d+)", lambda power: show_exponent(int(power[1])), words)


def shorten(name: str, width: int) -> str:
    """A dotted name in at most `width` characters, its last parts kept: "laye…5.mlp.down.weight"."""
    if len(name) <= width:
        return name
    head = max(4, width // 5)
    tails = [name[k + 1 :] for k, character in enumerate(name) if character == "."]
    fitting = [tail for tail in tails if len(tail) <= width - head - 1]
    tail = fitting[0] if fitting else name[-(width - head - 1) :]
    return f"{name[: width - len(tail) - 1]}…{tail}"


def badge(sign: str, word: str, style: str) -> Markup:
    """A word with its sign, coloured."""
    return element("span", element("span", sign, aria_hidden="true"), f" {word}", class_=f"badge {style}")
