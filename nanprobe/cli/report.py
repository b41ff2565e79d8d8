"""`nanprobe report`: a saved run's report again, in any format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nanprobe.cli.completion import complete_fail_on, complete_format, complete_run
from nanprobe.cli.formats import FORMATS, choose_format
from nanprobe.cli.output_file import save
from nanprobe.cli.screen import report_width, show, wants_color
from nanprobe.errors import ExitCode
from nanprobe.fail_on import FailOn
from nanprobe.options import STATUS_CODES, exit_code
from nanprobe.reports.formats import ReportFormat

RUN_HELP = "A run directory; `last` is the newest run, `last~1` the one before it."


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run, help=RUN_HELP)] = "last",
    report_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT",
            autocompletion=complete_format,
            help=f"{', '.join(FORMATS)}; default: by FILE's ending, else terminal.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the report to a file that is not there yet."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over FILE if it is there.")] = False,
    fail_on: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            autocompletion=complete_fail_on,
            help="As in diagnose; a sweep has no findings to choose from.",
        ),
    ] = "error",
    show_all: Annotated[bool, typer.Option("--all", help="Show every layer.")] = False,
) -> int:
    """Show the report of a saved run again, in any format.

    RUN is one of `diagnose` or of `sweep-scale`; nothing is run again. Exit code: that of the run: 0 healthy, 1
    failing, 3 could not conclude; 2 when it cannot be read.

    For example:

        nanprobe report last --format markdown

        nanprobe report my-run -o report.md
    """
    form = choose_format(report_format, output)
    failing = FailOn.parse(fail_on)
    text, code = _render(run, form, show_all, failing, color=output is None and wants_color())
    if output is None:
        show(text)
    else:
        save(text, output, force)
    return int(code)


def _render(named: str, form: ReportFormat, show_all: bool, failing: FailOn, color: bool) -> tuple[str, ExitCode]:
    """The report, and the exit code of its run."""
    from nanprobe.storage import Command, find_run, read_head

    directory, width = find_run(named), report_width()
    if read_head(directory).command is Command.SWEEP_SCALE:
        from nanprobe.loss_scale.recording import answer_sweep
        from nanprobe.reports.sweep import make_sweep_report
        from nanprobe.saved_sweep import read_sweep

        result = answer_sweep(read_sweep(directory))
        sweep_report = make_sweep_report(form, width=width, color=color, show_all=show_all)
        return sweep_report.render(result), STATUS_CODES[result.status]
    from nanprobe.reports.formats import make_report
    from nanprobe.saved_run import read_answer

    run, diagnosis = read_answer(directory)
    report = make_report(form, width=width, color=color, show_all=show_all, failing=failing)
    return report.render(run, diagnosis), exit_code(diagnosis, failing, interrupted=False)
