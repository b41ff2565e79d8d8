"""`nanprobe check`: recipes as a smoke test."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanprobe.cli.application import Session
from nanprobe.cli.completion import complete_check_format, complete_recipe
from nanprobe.cli.screen import report_width, show, wants_color
from nanprobe.cli.status_line import StatusLine
from nanprobe.errors import ExitCode, UsageError
from nanprobe.options import at_least, choose
from nanprobe.reports.check import CheckFormat, make_check_report

if TYPE_CHECKING:
    from nanprobe.check import Check
    from nanprobe.recipe.outcome import CheckOutcome


def check(
    context: typer.Context,
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE|DIR]...",
            autocompletion=complete_recipe,
            help="Recipes: files, names, or folders to search. Default: ./nanprobe.yaml and ./recipes.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", metavar="N", help="Checks that run at the same time.")] = 1,
    output: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder for the run directories; default: the user's cache."),
    ] = None,
    report_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="terminal|json|junit|github",
            autocompletion=complete_check_format,
            help="Format of the report.",
        ),
    ] = "terminal",
) -> int:
    """Run the target of each recipe and compare what is found with what the recipe expects.

    A line for each recipe goes to stdout as soon as it is known. Exit code: 0 all as expected, 1 something differs, 2
    usage error, 3 something could not be told.

    For example:

        nanprobe check

        nanprobe check recipes/ --jobs 2

        nanprobe check smoke.recipe.yaml --format junit > report.xml
    """
    session: Session = context.obj
    if session.script_args:
        raise UsageError(f"-- {' '.join(session.script_args)}: a script's arguments stand in its recipe, under `args`")
    form = choose("--format", report_format, {form.value: form for form in CheckFormat})
    at_least("--jobs", jobs, 1)
    from nanprobe.check import plan_checks
    from nanprobe.recipe.collection import collect_recipes

    checks = plan_checks(collect_recipes(recipes or []), None if output is None else Path(output))
    outcomes, interrupted = _run(checks, jobs, form)
    return int(_exit_code(outcomes, interrupted))


def _exit_code(outcomes: list[CheckOutcome], interrupted: bool) -> ExitCode:
    """A difference is certain, whatever else was cut short."""
    from nanprobe.recipe.outcome import CheckVerdict, verdict_of

    verdict = verdict_of(tuple(outcomes))
    if verdict is CheckVerdict.FAILED:
        return ExitCode.FAILING
    return ExitCode.INCONCLUSIVE if interrupted or verdict is CheckVerdict.INCONCLUSIVE else ExitCode.HEALTHY


def _run(checks: tuple[Check, ...], jobs: int, form: CheckFormat) -> tuple[list[CheckOutcome], bool]:
    """Run them, and report; also says whether Ctrl-C cut it short, and then reports what is known so far."""
    from nanprobe.check import run_checks

    outcomes: list[CheckOutcome] = []
    interrupted = False
    status = StatusLine(sys.stderr, len(checks))
    tell, finish = _reporting(form, [check.recipe.name for check in checks])
    try:
        with contextlib.closing(run_checks(checks, jobs, status)) as running:
            for outcome in running:
                outcomes.append(outcome)
                status.clear()
                tell(outcome)
                status.draw()
    except KeyboardInterrupt:
        interrupted = True
    status.clear()
    finish(outcomes)
    return outcomes, interrupted


def _reporting(
    form: CheckFormat, names: list[str]
) -> tuple[Callable[[CheckOutcome], None], Callable[[list[CheckOutcome]], None]]:
    """What is done with each outcome as it comes, and with all of them at the end."""
    if form is CheckFormat.TERMINAL:
        from nanprobe.reports.check.terminal import CheckTerminalReport

        terminal = CheckTerminalReport(report_width(), wants_color(), max(map(len, names), default=0))
        started = time.monotonic()

        def finish(outcomes: list[CheckOutcome]) -> None:
            show(terminal.render_summary(outcomes, time.monotonic() - started))

        return lambda outcome: show(terminal.render_outcome(outcome)), finish
    report = make_check_report(form)
    return _say_on_stderr, lambda all_: show(report.render(all_))


def _say_on_stderr(outcome: CheckOutcome) -> None:
    """Progress where stdout is for a document."""
    from nanprobe.reports.check.wording import VERDICTS

    print(f"nanprobe: {outcome.name}: {VERDICTS[outcome.verdict]}, {outcome.seconds:.1f} s", file=sys.stderr)
