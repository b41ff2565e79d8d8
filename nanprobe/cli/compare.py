"""`nanprobe compare`: did the change help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nanprobe.cli.completion import complete_run, complete_short_format
from nanprobe.cli.screen import report_width, show, wants_color
from nanprobe.options import STATUS_CODES, choose

if TYPE_CHECKING:
    from nanprobe.reports.comparison import Side


def compare(
    run_a: Annotated[
        str, typer.Argument(metavar="RUN_A", autocompletion=complete_run, help="The run before the change.")
    ],
    run_b: Annotated[
        str, typer.Argument(metavar="RUN_B", autocompletion=complete_run, help="The run after it.")
    ] = "last",
    report_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", autocompletion=complete_short_format, help="terminal, json or markdown."
        ),
    ] = "terminal",
    show_all: Annotated[bool, typer.Option("--all", help="Show every layer, those that did not change too.")] = False,
) -> int:
    """Show what a change did: two runs of `diagnose` side by side.

    A run is its directory; `last` is the newest one, `last~1` the one before it. Exit code: that of RUN_B, so that it
    can end a CI job: 0 healthy, 1 failing (also where RUN_A was), 3 could not conclude; 2 when one cannot be read.

    For example:

        nanprobe compare last~1 last

        nanprobe compare before after --format markdown
    """
    from nanprobe.reports.comparison import COMPARISON_FORMATS, render_comparison
    from nanprobe.reports.comparison import compare as make_comparison

    form = choose("--format", report_format, COMPARISON_FORMATS)
    comparison = make_comparison(_open(run_a), _open(run_b))
    show(render_comparison(comparison, form, width=report_width(), color=wants_color(), show_all=show_all))
    return int(STATUS_CODES[comparison.after.diagnosis.status])


def _open(named: str) -> Side:
    from nanprobe.reports.comparison import Side
    from nanprobe.saved_run import read_answer
    from nanprobe.storage import find_run

    return Side(*read_answer(find_run(named)))
