"""The HTML report of `nanprobe sweep-scale`: the safe window, what every scale costs, the scalers, what to set."""

from __future__ import annotations

from nanprobe.findings import Status
from nanprobe.formats import format_named
from nanprobe.loss_scale.advice import show_format
from nanprobe.loss_scale.conflict import find_conflict, show_layer
from nanprobe.loss_scale.result import Confirmation, SweepResult
from nanprobe.loss_scale.window import Window
from nanprobe.reports.html import closing
from nanprobe.reports.html.exponents import Spread, describe, exponent_map, histogram, pool
from nanprobe.reports.html.figures import badge, show_power, with_powers
from nanprobe.reports.html.markup import Child, Markup, element, join
from nanprobe.reports.html.page import masthead, page
from nanprobe.reports.html.policies import policy_section, run_section, scaler_section
from nanprobe.reports.html.tables import facts, section
from nanprobe.reports.html.verdict import banner, with_code
from nanprobe.reports.html.windows import scale_section, window_section
from nanprobe.reports.html.zones import cut_range
from nanprobe.reports.numbers import count_noun, show_percent, show_scale
from nanprobe.reports.sweep.terminal import explain_high, explain_low, place_of_scale
from nanprobe.reports.terminal.header import show_command, show_target


class SweepHtmlReport:
    """The report for a browser."""

    def render(self, result: SweepResult) -> str:
        """The page as text, ending in a newline."""
        run = result.run
        details = [run.device, f"torch {run.torch_version}", f"nanprobe {run.nanprobe_version}", f"seed {run.seed}"]
        if run.measured_scale is not None:
            details.append(f"{count_noun(run.steps, 'step')} recorded at loss scale {show_power(run.measured_scale)}")
        sections = [
            _answer(result),
            window_section(result),
            scale_section(result),
            scaler_section(result),
            policy_section(result),
            run_section(result),
            _exponents(result),
            _run(result),
        ]
        heading = masthead("sweep-scale", show_target(run.target), details)
        again = [(f"nanprobe diagnose {show_command(run.target)}", "what else is wrong with this training")]
        commands = again if result.status is not Status.HEALTHY else []
        return page(f"nanprobe: loss scales of {run.target.path}", heading, sections, closing(commands))


def _answer(result: SweepResult) -> Markup:
    """The window in a sentence, its edges, the real runs that confirm them, and what to set."""
    window, name = result.window, show_format(format_named(result.number_format))
    points = (
        element("ul", *(element("li", with_powers(reason)) for reason in result.reasons)) if result.reasons else None
    )
    advice = _advice(result)
    if window is None:
        return banner("warn", "?", "COULD NOT TELL", name, "No loss scale could be judged", points, advice)
    conflict = find_conflict(window)
    if conflict is not None:
        title = f"No safe scale: {conflict.describe()}"
        return banner("bad", "✖", "NO SAFE LOSS SCALE", name, title, _edges(result, window), advice)
    steps = "the one recorded step" if result.run.steps == 1 else f"all {result.run.steps:,} recorded steps"
    safe = f"{show_scale(window.lowest_scale)} to {show_scale(window.highest_scale)}"
    failing = result.status is Status.FAILING
    style, sign = ("bad", "✖") if failing else ("good", "✔")
    title = f"Every loss scale from {safe} is safe in {steps}"
    return banner(style, sign, "SAFE LOSS SCALES", name, title, points, _edges(result, window), advice)


def _edges(result: SweepResult, window: Window) -> Markup:
    rows: list[tuple[str, Child]] = [
        ("lower edge", with_powers(explain_low(result, window))),
        ("upper edge", with_powers(explain_high(result, window))),
    ]
    if result.scaler is not None and result.scaler.scales:
        first, last = result.scaler.scales[0], result.scaler.scales[-1]
        place = f"{show_power(first)}, {place_of_scale(first, window)}"
        if last != first:
            place += f"; {show_power(last)} in the last step, {place_of_scale(last, window)}"
        rows.append(("your scale" if result.scaler.as_written else "the usual scale", place))
    rows += [(f"real run, {each.edge} edge", _confirmation(each)) for each in result.confirmations]
    return join([element("h2", "Edges"), facts(rows)])


def _confirmation(each: Confirmation) -> Markup:
    told = f"at {show_power(each.real.scale)}: {count_noun(each.real.overflowing_tensors, 'overflowing tensor')}"
    if each.real.flushed_fraction is not None:
        predicted = show_percent(each.predicted.flushed_fraction)
        told += f", {show_percent(each.real.flushed_fraction)} flushed (predicted {predicted})"
    if each.real.reason is not None:
        told += f"; it ended early: {each.real.reason}"
    sign = badge("✔", "as predicted", "good") if each.agrees else badge("✖", "not as predicted", "bad")
    return join([sign, f" {told}"])


def _advice(result: SweepResult) -> Markup | None:
    """The line to paste, why, and what else to do."""
    advice = result.advice
    if advice is None:
        return None
    remedies = [element("li", with_code(remedy)) for remedy in advice.remedies]
    return join(
        [
            element("h2", "What to do" if remedies else "What to set"),
            element("ol", *remedies, class_="remedies") if remedies else None,
            element("p", with_code(advice.why)),
            element("pre", element("code", advice.code), class_="setting") if advice.code is not None else None,
        ]
    )


def _exponents(result: SweepResult) -> Markup:
    """How the recorded gradients spread over the powers of two, the loss scale taken out."""
    rows = [Spread(show_layer(s.layer), s.offset, s.counts) for s in result.spectra]
    if not rows:
        return Markup()
    ends = (e for row in rows for e in (row.offset, row.offset + len(row.counts)))
    axis = cut_range(format_named(result.number_format), ends)
    whole = pool(rows, "all layers")
    told = describe(whole, axis)
    title = f"Exponents of all recorded gradients without a loss scale: {told}"
    by_layer = "Exponents of the gradients of each layer"
    name = show_format(axis.fmt)
    lead = f"Elements of the gradients by power of two, without a loss scale, against the limits of {name}: {told}."
    return section(
        "Exponents",
        "exponents",
        element("figure", histogram(whole, axis, title)),
        element("figure", element("figcaption", by_layer), exponent_map(rows, axis, by_layer)),
        lead=lead,
    )


def _run(result: SweepResult) -> Markup:
    run = result.run
    notices = [element("li", notice) for notice in run.notices]
    rows: list[tuple[str, Child]] = [
        ("target", element("code", show_target(run.target))),
        ("device", run.device),
        ("versions", f"nanprobe {run.nanprobe_version}, torch {run.torch_version}"),
        ("recorded", f"{count_noun(run.steps, 'step')}, seed {run.seed}"),
        ("run directory", element("code", run.directory)),
    ]
    return section("What was run", "run", element("ul", *notices, class_="notes") if notices else None, facts(rows))
