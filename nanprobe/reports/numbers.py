"""Numbers as a tired reader takes them in: four significant digits, thousands apart, powers of two shown as such."""

from __future__ import annotations

import math

NOT_MEASURED = "–"


def show_number(value: float | None) -> str:
    """A number at four significant digits: "65,504", "0.3227", "3.1e-7", "Inf"; a dash when not measured."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return _show_nonfinite(value)
    magnitude = abs(value)
    if float(value).is_integer() and magnitude < 1e9:
        return f"{int(value):,}"
    if magnitude >= 1e6 or magnitude < 1e-3:
        return _tidy_exponent(f"{value:.4g}" if "e" in f"{value:.4g}" else f"{value:.3e}")
    return f"{value:,.1f}" if magnitude >= 1000 else f"{value:.4g}"


def show_magnitude(value: float | None) -> str:
    """A gradient's size in at most 7 characters: "3.1e-2", "0", "Inf", "NaN"."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return _show_nonfinite(value)
    return "0" if value == 0 else _tidy_exponent(f"{value:.1e}")


def show_percent(fraction: float | None) -> str:
    """A fraction as a percentage: "97.1%", "0.4%", "<0.1%"."""
    if fraction is None:
        return NOT_MEASURED
    if not math.isfinite(fraction):
        return _show_nonfinite(fraction)
    percent = 100 * fraction
    if 0 < percent < 0.1:
        return "<0.1%"
    return f"{percent:.0f}%" if float(percent).is_integer() else f"{percent:.1f}%"


def show_bits(bits: float | None) -> str:
    """A distance in powers of two: "9.4 bits"; less than a tenth of a bit keeps two digits."""
    if bits is None:
        return NOT_MEASURED
    if not math.isfinite(bits):
        return f"{_show_nonfinite(bits)} bits"
    return f"{bits:.2f} bits" if abs(bits) < 1 else f"{bits:.1f} bits"


def show_scale(scale: float | None) -> str:
    """A loss scale, with its exponent when it is a power of two: "65,536 (2^16)"."""
    if scale is None or not math.isfinite(scale) or scale <= 0:
        return show_number(scale)
    mantissa, exponent = math.frexp(scale)
    return (
        f"{show_number(scale)} (2^{exponent - 1})"
        if mantissa == 0.5 and scale not in (1.0, 2.0)
        else show_number(scale)
    )


def show_seconds(seconds: float) -> str:
    """A duration: "1.9 s", "2 min 05 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def show_indices(indices: tuple[int, ...] | list[int], limit: int = 8) -> str:
    """A list of indices, runs of three or more drawn together: "3, 7, 10 to 14"; the rest is counted."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    words: list[str] = []
    for first, last in runs:
        words += [f"{first} to {last}"] if last - first >= 2 else [str(i) for i in range(first, last + 1)]
    more = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + more


def count_noun(count: int, noun: str) -> str:
    """A count with its noun: "1 step", "2 steps"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _show_nonfinite(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Inf" if value > 0 else "-Inf")


def _tidy_exponent(text: str) -> str:
    """3.10e-02 -> 3.1e-2: no zeros a reader has to skip."""
    mantissa, _, exponent = text.partition("e")
    if "." in mantissa and len(mantissa) > 3:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"
