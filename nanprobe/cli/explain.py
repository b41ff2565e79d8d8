"""`nanprobe explain`: the page of a finding's code."""

from __future__ import annotations

from typing import Annotated

import typer

from nanprobe.cli.completion import complete_code
from nanprobe.cli.screen import report_width, show
from nanprobe.errors import ExitCode


def explain(
    code: Annotated[str, typer.Argument(autocompletion=complete_code, help="A finding's code, for example NP101.")],
) -> int:
    """Say what a finding means, how it is found, what to do, and where that is known from.

    For example:

        nanprobe explain NP101
    """
    from nanprobe.reports.explanation import render_explanation

    show(render_explanation(code, width=report_width()))
    return int(ExitCode.HEALTHY)
