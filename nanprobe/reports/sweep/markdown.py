"""The sweep's Markdown report, to paste into a bug report: the window first, long tables folded away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.formats import format_named
from nanprobe.loss_scale.advice import show_format
from nanprobe.loss_scale.conflict import show_layer
from nanprobe.loss_scale.replay import PolicyOutcome
from nanprobe.loss_scale.result import SweepResult
from nanprobe.loss_scale.window import Window
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.setting import write_facts
from nanprobe.reports.markdown.syntax import code, escape, fence, head, prose, row
from nanprobe.reports.numbers import count_noun, show_magnitude
from nanprobe.reports.sweep.layers import list_cells as list_window
from nanprobe.reports.sweep.layers import sort_layers
from nanprobe.reports.sweep.runs import choose_elements, list_elements, list_rows
from nanprobe.reports.sweep.scalers import explain_bootstrap, list_cells, list_scaler, list_stopped
from nanprobe.reports.sweep.terminal import describe_answer, describe_confirmation, list_edges
from nanprobe.reports.terminal.closing import shorten_home
from nanprobe.reports.terminal.header import show_command

_SHOWN = 12  # layers, unless all are asked for
_LONGEST_NAME = 200
_SHORT = 300  # characters of a notice, a reason or a command


@dataclass(frozen=True, slots=True)
class SweepMarkdownReport:
    """The report as GitHub shows it; shorter than GitHub's limit whatever the run."""

    show_all: bool = False

    def render(self, result: SweepResult) -> str:
        """The window, its edges, what to set, the scalers, the layers, the environment, in this order."""
        page = Page()
        _write_answer(page, result)
        if result.window is not None:
            edges = [(label, escape(text)) for label, text in list_edges(result, result.window)]
            page.section("Edges", _table(["", ""], edges), *_list_confirmations(result))
        _write_advice(page, result)
        _write_scaler(page, result)
        _write_runs(page, result, self.show_all)
        _write_policies(page, result)
        if result.window is not None:
            _write_layers(page, result, result.window, self.show_all)
        _write_setting(page, result)
        return page.text()


def _write_answer(page: Page, result: SweepResult) -> None:
    answer = describe_answer(result)
    name = "" if result.window is None else f" ({show_format(format_named(result.number_format))})"
    page.add(f"## {answer.sign} {escape(answer.title)}{name}")
    if answer.text:
        page.add(f"**{prose(answer.text)}**")
    if answer.reasons:
        page.add("\n".join(f"- {prose(reason)}" for reason in answer.reasons))


def _list_confirmations(result: SweepResult) -> list[str]:
    lines = [f"- {'✔' if each.agrees else '✖'} {escape(describe_confirmation(each))}" for each in result.confirmations]
    return ["\n".join(lines)] if lines else []


def _write_advice(page: Page, result: SweepResult) -> None:
    if result.advice is None:
        return
    blocks = ["\n".join(f"{n}. {prose(text)}" for n, text in enumerate(result.advice.remedies, 1))]
    blocks.append(prose(result.advice.why))
    if result.advice.code is not None:
        blocks.append(fence([result.advice.code], "python"))
    page.section("What to do" if result.advice.remedies else "What to set", *filter(None, blocks))


def _write_scaler(page: Page, result: SweepResult) -> None:
    scaler = result.scaler
    if scaler is None or not scaler.scales:
        return
    title = "The script's GradScaler" if scaler.as_written else "GradScaler put around the script"
    page.section(title, _table(["", ""], [(label, escape(text)) for label, text in list_scaler(scaler)]))


def _write_runs(page: Page, result: SweepResult, show_all: bool) -> None:
    runs = result.real_runs
    if not runs:
        return
    every = list_elements(runs)
    (_, scales), *rows = list_rows(runs, every if show_all else choose_elements(runs, every))
    page.add("### Real runs, side by side")
    cells = [
        [code(label) if not values else escape(label), *map(escape, values or [""] * len(runs))]
        for label, values in rows
    ]
    page.table(
        ["loss scale", *scales],
        cells,
        lambda left: f"… and {count_noun(left, 'more row')} (in the JSON report)",
        scales,
    )
    ended = [f"- the run at {run.scale:g} ended early: {escape(run.reason, _SHORT)}" for run in runs if run.reason]
    if ended:
        page.add("\n".join(ended))


def _write_policies(page: Page, result: SweepResult) -> None:
    if not result.policies:
        return
    steps = result.bootstrap.get("steps", 0)
    page.fold(f"Scalers over {steps:,} steps, and growth intervals")
    page.add(_outcomes(result.policies, ("SCALER", "START", "INTERVAL")))
    page.add(escape(explain_bootstrap(result)))
    if stopped := list_stopped(result):
        page.add("\n".join(f"- {escape(text)}" for text in stopped))
    if result.growth_intervals:
        page.add(_outcomes(result.growth_intervals, ("START", "INTERVAL")))
    page.unfold()


def _outcomes(outcomes: Sequence[PolicyOutcome], first: tuple[str, ...]) -> str:
    titles = [*first, "SKIPPED", "EFFECTIVE", "FLUSHED", "LOWEST", "HIGHEST"]
    rows = [[escape(list_cells(outcome)[title]) for title in titles] for outcome in outcomes]
    return _table([title.lower() for title in titles], rows)


def _write_layers(page: Page, result: SweepResult, window: Window, show_all: bool) -> None:
    every = sort_layers(result, window)
    rows = every if show_all else every[:_SHOWN]
    cells = [
        [
            code(show_layer(each.layer), _LONGEST_NAME),
            *map(escape, list_window(each.window)),
            show_magnitude(each.grad_abs_max),
        ]
        for each in rows
    ]
    hidden = len(every) - len(rows)

    def tell_left_out(count: int) -> str:
        return f"… and {count_noun(count + hidden, 'more layer')}, left out to stay below GitHub's limit"

    page.fold(f"{count_noun(len(every), 'layer')}")
    titles = ["layer", "lowest safe scale", "highest", "bits", "largest gradient"]
    page.table(titles, cells, tell_left_out, right=titles[1:])
    if hidden:
        page.add(f"… and {count_noun(hidden, 'layer')} with wider windows (--all)")
    page.unfold()


def _write_setting(page: Page, result: SweepResult) -> None:
    run = result.run
    rows = [
        ("command", code(f"nanprobe sweep-scale {show_command(run.target)}", _SHORT)),
        ("device", escape(run.device)),
        ("torch", escape(run.torch_version)),
        ("nanprobe", escape(run.nanprobe_version)),
        ("steps", f"{count_noun(run.steps, 'step')} recorded, seed {run.seed}"),
        ("run directory", code(shorten_home(run.directory))),
    ]
    page.add(write_facts(rows), last=True)
    if run.notices:
        page.add("\n".join(f"- {escape(text, _SHORT)}" for text in run.notices), last=True)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([head(titles), *map(row, rows)])
