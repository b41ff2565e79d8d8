"""Real runs at chosen scales, side by side: gradient as the format held it, update, weight before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nanprobe.loss_scale.advice import show_power
from nanprobe.loss_scale.result import RealRun, WeightUpdate
from nanprobe.reports.numbers import NOT_MEASURED, count_noun, show_number, show_percent
from nanprobe.reports.terminal.canvas import Canvas, clean, pad

INDENT, GAP = 2, 2
LABEL_WIDTH = 18
DIGITS = 7  # of a weight: enough to see that the seventh changed

SHOWN = 4  # elements; a longer list is not read

Row = tuple[str, list[str]]
Element = tuple[str, tuple[int, ...], int]  # parameter, index in it, step


def draw_real_runs(canvas: Canvas, runs: Sequence[RealRun], show_all: bool = False) -> None:
    """A column for each scale; several tables where the terminal is too narrow for one."""
    if not runs:
        return
    canvas.heading("REAL RUNS, SIDE BY SIDE")
    every = list_elements(runs)
    shown = every if show_all else choose_elements(runs, every)
    column = max(len(cell) for _, cells in list_rows(runs, shown) for cell in cells)
    fitting = max(1, (canvas.width - INDENT - LABEL_WIDTH) // (column + GAP))
    for start in range(0, len(runs), fitting):
        if start:
            canvas.blank()
        for label, cells in list_rows(runs[start : start + fitting], shown):
            line = "".join(" " * GAP + pad(cell, column, right=True) for cell in cells)
            style = "bold" if label == "loss scale" else "dim" if not cells else ""
            canvas.line(" " * INDENT, (pad(label, LABEL_WIDTH), "dim"), (line, style))
    if len(shown) < len(every):
        canvas.line(" " * INDENT, f"… and {count_noun(len(every) - len(shown), 'more update')} (--all)")
    for run in runs:
        if run.reason is not None:
            told = f"the run at {show_power(run.scale)} ended early: {run.reason}"
            canvas.paragraph(told, lead=[("▲ ", "yellow")], indent=INDENT)


def list_elements(runs: Sequence[RealRun]) -> list[Element]:
    """Every element whose updates were written down in some run."""
    return list(dict.fromkeys((u.parameter, u.index, u.step) for run in runs for u in run.updates))


def choose_elements(runs: Sequence[RealRun], elements: Sequence[Element]) -> list[Element]:
    """A few elements of the first step, those first that move at one scale and not at another."""
    first = min((step for _, _, step in elements), default=0)

    def says_little(element: Element) -> bool:
        found = [update for run in runs if (update := _find(run, *element)) is not None]
        return len({bool(update.update) for update in found}) < 2

    chosen = sorted((e for e in elements if e[2] == first), key=says_little)[:SHOWN]
    return [element for element in elements if element in chosen]


def list_rows(runs: Sequence[RealRun], elements: Sequence[Element]) -> list[Row]:
    """A label and a cell for each run; an element's own line has no cells."""

    def across(show: Callable[[RealRun], str]) -> list[str]:
        return [show(run) for run in runs]

    rows: list[Row] = [
        ("loss scale", across(lambda run: show_power(run.scale))),
        ("overflowing", across(lambda run: show_number(run.overflowing_tensors))),
        ("skipped steps", across(lambda run: f"{run.skipped_steps}/{run.steps}")),
        ("flushed", across(lambda run: show_percent(run.flushed_fraction))),
        ("norm lost", across(lambda run: show_percent(run.lost_norm_fraction))),
    ]
    for parameter, index, step in elements:
        found = [_find(run, parameter, index, step) for run in runs]
        rows.append((clean(f"{parameter}[{', '.join(map(str, index))}], step {step}"), []))
        rows += [
            ("  gradient", [_show(update, "gradient") for update in found]),
            ("  unscaled", [_show(update, "unscaled_gradient") for update in found]),
            ("  update", [_show(update, "update") for update in found]),
            ("  weight before", [_show(update, "weight_before") for update in found]),
            ("  weight after", [_show(update, "weight_after") for update in found]),
        ]
    return rows


def _find(run: RealRun, parameter: str, index: tuple[int, ...], step: int) -> WeightUpdate | None:
    wanted = (parameter, index, step)
    return next((u for u in run.updates if (u.parameter, u.index, u.step) == wanted), None)


def _show(update: WeightUpdate | None, what: str) -> str:
    if update is None:
        return NOT_MEASURED
    value = float(getattr(update, what))
    return f"{value:.{DIGITS}g}" if what.startswith("weight") and value == value else show_number(value)
