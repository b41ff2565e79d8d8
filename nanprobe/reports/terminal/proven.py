"""The remedies that were tried: a short table, what to write for the best one, and what was refused and why."""

from __future__ import annotations

from nanprobe.findings import Remedy, Verification
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_number, show_seconds
from nanprobe.reports.terminal.canvas import Canvas, Part, pad

_DISPENSABLE = ("MEMORY", "TIME", "GRAD ERROR", "FP32")  # left out first where the terminal is narrow
_RIGHT = {"STEPS", "LOSS", "FP32", "GRAD ERROR", "TIME", "MEMORY"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def draw_proven(canvas: Canvas, verification: Verification) -> None:
    """Everything that was tried, verified first; then the diff of the first that helps."""
    canvas.heading("PROVEN REMEDIES")
    tried = sorted(verification.tried, key=lambda r: not r.verified)
    helping = [r for r in tried if r.verified]
    canvas.paragraph(summarize_trying(verification, len(helping)), indent=2)
    if tried:
        canvas.blank()
        _draw_table(canvas, tried)
    shown = next((r for r in helping if r.diff), None)
    if shown is not None:
        canvas.blank()
        canvas.paragraph(("What to write for ", "dim"), (shown.text, "bold"), indent=2)
        for line in (shown.diff or "").splitlines():
            canvas.line("    ", (line, _DIFF_STYLES.get(line[:1], "")), whole=True)


def summarize_trying(verification: Verification, helping: int) -> str:
    """How the trying ended, in a sentence; `helping`: how many of the remedies did."""
    stage, tried = verification.stage.value, len(verification.tried)
    took = f"{count_noun(verification.runs, 'run')} of the {stage} stage, {show_seconds(verification.seconds)}"
    if not tried:
        text = "Nothing that nanprobe could try from outside"
    elif not helping:
        text = f"Nothing helped of {_remedies(tried)} tried ({took})"
    else:
        text = f"{helping} of {_remedies(tried)} tried helped ({took})"
    return f"{text}; {verification.stopped}." if verification.stopped else f"{text}."


def _remedies(count: int) -> str:
    return "1 remedy" if count == 1 else f"{count} remedies"


def _draw_table(canvas: Canvas, tried: list[Remedy]) -> None:
    table = [_cells(remedy) for remedy in tried]
    titles = list(table[0])
    widths = {title: max(len(title), *(len(row[title]) for row in table)) for title in titles}
    for title in _DISPENSABLE:
        if sum(widths[title] + 2 for title in titles) > canvas.width:
            titles.remove(title)
    canvas.line("    ", ("  ".join(pad(title, widths[title], title in _RIGHT) for title in titles), "dim"))
    for remedy, row in zip(tried, table, strict=True):
        sign, style = ("✔", "green") if remedy.verified else ("✖", "red")
        parts: list[Part] = ["  ", (sign, style), " "]
        for title in titles:
            parts += [(pad(row[title], widths[title], title in _RIGHT), style if title == "REMEDY" else ""), "  "]
        canvas.line(*parts)
        detail = remedy.text if remedy.verified else f"{remedy.text}: {remedy.reason}"
        canvas.paragraph((detail, "dim"), indent=6)


def _cells(remedy: Remedy) -> dict[str, str]:
    cost = remedy.cost
    error = remedy.gradient_error
    return {
        "REMEDY": remedy.kind or "",
        "STEPS": str(remedy.steps or 0),
        "LOSS": _number(remedy.final_loss),
        "FP32": _number(remedy.reference_loss),
        "GRAD ERROR": NOT_MEASURED if error is None else f"{error:.1%}",
        "TIME": _ratio(None if cost is None else cost.time_ratio),
        "MEMORY": _ratio(None if cost is None else cost.memory_ratio),
    }


def _number(value: float | None) -> str:
    return NOT_MEASURED if value is None else show_number(value)


def _ratio(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}×"
