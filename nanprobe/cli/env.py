"""`nanprobe env`: the machine, for a bug report."""

from __future__ import annotations

from typing import Annotated

import typer

from nanprobe.cli.completion import complete_short_format
from nanprobe.cli.screen import report_width, show, wants_color
from nanprobe.errors import ExitCode
from nanprobe.options import choose


def env(
    report_format: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", autocompletion=complete_short_format, help="terminal, json or markdown."
        ),
    ] = "terminal",
) -> int:
    """Show versions, hardware and settings that matter, to paste into a bug report.

    Torch is asked in a process of its own: one that cannot be imported is reported, and is no error here.

    For example:

        nanprobe env --format markdown
    """
    from nanprobe.machine import survey_machine
    from nanprobe.reports.environment import ENVIRONMENT_FORMATS, render_environment
    from nanprobe.storage import list_runs, runs_folder

    form = choose("--format", report_format, ENVIRONMENT_FORMATS)
    machine = survey_machine(str(runs_folder()), len(list_runs()))
    show(render_environment(machine, form, width=report_width(), color=wants_color()))
    return int(ExitCode.HEALTHY)
