"""The sweep's terminal report: the window first, then the layers, the scalers, what to set."""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.findings import Status
from nanprobe.formats import format_named
from nanprobe.loss_scale.advice import show_format, show_power
from nanprobe.loss_scale.conflict import find_conflict, show_layer
from nanprobe.loss_scale.result import HIGH_EDGE, Confirmation, SweepResult
from nanprobe.loss_scale.window import LayerWindow, Window
from nanprobe.reports.numbers import count_noun, show_number, show_percent, show_scale
from nanprobe.reports.sweep.layers import draw_layer_windows
from nanprobe.reports.sweep.runs import draw_real_runs
from nanprobe.reports.sweep.scalers import draw_intervals, draw_policies, draw_script_scaler
from nanprobe.reports.terminal.canvas import Canvas, Part
from nanprobe.reports.terminal.closing import shorten_home
from nanprobe.reports.terminal.header import NOTICES, show_command, show_target


@dataclass(frozen=True, slots=True)
class SweepTerminalReport:
    """The report for people."""

    width: int = 80
    color: bool = False
    show_all: bool = False

    def render(self, result: SweepResult) -> str:
        """The report as lines no longer than the width; only paths, commands and code may be, to stay whole."""
        canvas = Canvas(self.width, self.color)
        _draw_header(canvas, result)
        _draw_answer(canvas, result)
        if result.window is not None:
            _draw_edges(canvas, result, result.window)
            _draw_confirmations(canvas, result.confirmations)
            draw_layer_windows(canvas, result, self.show_all)
        draw_script_scaler(canvas, result)
        draw_real_runs(canvas, result.real_runs, self.show_all)
        draw_policies(canvas, result)
        draw_intervals(canvas, result)
        _draw_advice(canvas, result)
        _draw_closing(canvas, result)
        return canvas.text()


def _draw_header(canvas: Canvas, result: SweepResult) -> None:
    run = result.run
    canvas.line(("nanprobe", "bold cyan"), "  sweep-scale ", (show_target(run.target), "bold"))
    facts = [run.device, f"torch {run.torch_version}", f"nanprobe {run.nanprobe_version}", f"seed {run.seed}"]
    canvas.paragraph((" · ".join(facts), "dim"), indent=10)
    if run.measured_scale is not None:
        recorded = f"{count_noun(run.steps, 'step')} recorded at loss scale {show_power(run.measured_scale)}"
        canvas.paragraph((recorded, "dim"), indent=10)
    for text in run.notices[:NOTICES]:
        canvas.paragraph(text, lead=[("! ", "yellow")], indent=2)
    if len(run.notices) > NOTICES:
        canvas.line(f"  ! and {count_noun(len(run.notices) - NOTICES, 'more notice')}")


def _draw_answer(canvas: Canvas, result: SweepResult) -> None:
    """The window in one line, or why there is none."""
    answer = describe_answer(result)
    name = "" if result.window is None else show_format(format_named(result.number_format))
    title: list[Part] = [(f"{answer.sign} ", f"bold {answer.color}"), (answer.title, f"bold {answer.color}")]
    if name:
        title += ["  ", (name, "bold")]
    canvas.rule(*title, style=answer.color)
    if answer.text:
        canvas.paragraph((answer.text, "bold"))
    for reason in answer.reasons:
        canvas.paragraph(reason, lead=["• "], indent=2)


@dataclass(frozen=True, slots=True)
class Answer:
    """The first thing a report says."""

    sign: str
    color: str
    title: str  # in capitals
    text: str  # one sentence; empty where there is nothing to add
    reasons: tuple[str, ...] = ()


def describe_answer(result: SweepResult) -> Answer:
    """The window in one line, or why there is none."""
    window = result.window
    if window is None:
        return Answer("?", "yellow", "COULD NOT TELL", "", result.reasons)
    if (conflict := find_conflict(window)) is not None:
        return Answer("✖", "red", "NO SAFE LOSS SCALE", f"no safe scale: {conflict.describe()}")
    sign, color = ("✖", "red") if result.status is Status.FAILING else ("✔", "green")
    title = f"SAFE LOSS SCALES  {show_power(window.lowest_scale)} to {show_power(window.highest_scale)}"
    safe = f"{show_scale(window.lowest_scale)} to {show_scale(window.highest_scale)}"
    steps = "the one recorded step" if result.run.steps == 1 else f"all {result.run.steps:,} recorded steps"
    return Answer(sign, color, title, f"Every loss scale from {safe} is safe in {steps}.", result.reasons)


def _draw_edges(canvas: Canvas, result: SweepResult, window: Window) -> None:
    canvas.heading("EDGES")
    canvas.rows(list_edges(result, window))


def list_edges(result: SweepResult, window: Window) -> list[tuple[str, str]]:
    """What sets each edge, with its numbers, and where the script's own scale lies."""
    rows = [("lower edge", explain_low(result, window)), ("upper edge", explain_high(result, window))]
    if result.scaler is not None and result.scaler.scales:
        first, last = result.scaler.scales[0], result.scaler.scales[-1]
        whose = "your scale" if result.scaler.as_written else "the usual scale"
        place = f"{show_power(first)}, {place_of_scale(first, window)}"
        if last != first:
            place += f"; {show_power(last)} in the last step, {place_of_scale(last, window)}"
        rows.append((whose, place))
    return rows


def explain_low(result: SweepResult, window: Window) -> str:
    """What sets the lower edge, with its numbers."""
    if window.low_set_by is None:
        return "none: even without scaling (2^0) every gradient is kept"
    row = _find_layer(result, window.low_set_by)
    tensor = row.window.low_set_by or show_layer(row.layer)
    needs = f"{tensor} needs {'more than 2^32' if window.lowest_scale is None else show_power(window.lowest_scale)}"
    if row.below is None:
        return needs
    lost = f"{show_percent(row.below.flushed_fraction)} of its elements, {show_percent(row.below.lost_norm_fraction)}"
    return f"{needs}: at {show_power(row.below.scale)} it loses {lost} of its norm"


def explain_high(result: SweepResult, window: Window) -> str:
    """What sets the upper edge, with its numbers."""
    if window.high_set_by is None:
        return "none: nothing overflows up to 2^32"
    row = _find_layer(result, window.high_set_by)
    tensor = row.window.high_set_by or show_layer(row.layer)
    limit = format_named(result.number_format).max
    largest = f"its largest gradient is {show_number(row.grad_abs_max)} unscaled, the limit {limit:,.6g}"
    return f"{tensor} overflows from {show_power(window.overflows_from)}: {largest}"


def _find_layer(result: SweepResult, layer: str) -> LayerWindow:
    return next(row for row in result.layers if row.layer == layer)


def place_of_scale(scale: float, window: Window) -> str:
    """Where a scale lies."""
    if window.contains(scale):
        return "inside the window"
    if window.highest_scale is None or scale > window.highest_scale:
        return "above: it overflows"
    return "below: gradients are lost"


def _draw_confirmations(canvas: Canvas, confirmations: tuple[Confirmation, ...]) -> None:
    """What the real runs at the edges say."""
    for each in confirmations:
        sign = ("✔ ", "green") if each.agrees else ("✖ ", "red")
        canvas.paragraph(describe_confirmation(each), lead=[sign], indent=2)


def describe_confirmation(each: Confirmation) -> str:
    """A real run at an edge, beside what was predicted of it."""
    edge = "upper" if each.edge == HIGH_EDGE else "lower"
    told = f"real run at {show_power(each.real.scale)}, the {edge} edge: "
    told += f"{count_noun(each.real.overflowing_tensors, 'overflowing tensor')}"
    if each.real.flushed_fraction is not None:
        predicted = show_percent(each.predicted.flushed_fraction)
        told += f", {show_percent(each.real.flushed_fraction)} flushed (predicted {predicted})"
    if each.real.reason is not None:
        told += f"; it ended early: {each.real.reason}"
    return told if each.agrees else f"{told}: not as predicted"


def _draw_advice(canvas: Canvas, result: SweepResult) -> None:
    """The line to paste, why, and what else to do."""
    advice = result.advice
    if advice is None:
        return
    canvas.heading("WHAT TO SET" if find_conflict(result.window or Window(None, None)) is None else "WHAT TO DO")
    for number, remedy in enumerate(advice.remedies, 1):
        canvas.paragraph(remedy, lead=[(f"{number}. ", "bold")], indent=2)
    canvas.paragraph(advice.why, indent=2)
    if advice.code is not None:
        canvas.blank()
        canvas.line("  ", (advice.code, "bold cyan"), whole=True)


def _draw_closing(canvas: Canvas, result: SweepResult) -> None:
    canvas.rule(style="dim")
    canvas.line(("run   ", "dim"), shorten_home(result.run.directory), whole=True)
    if result.status is not Status.HEALTHY:
        canvas.line(("next  ", "dim"), (f"nanprobe diagnose {show_command(result.run.target)}", "cyan"), whole=True)
