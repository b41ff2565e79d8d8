"""`nanprobe sweep-scale`: the safe loss scales and the scaler's settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanprobe.cli.application import Session
from nanprobe.cli.completion import complete_device, complete_format, complete_number_format, complete_recipe
from nanprobe.cli.formats import FORMAT_HELP, choose_format
from nanprobe.cli.recipe_option import RecipeOption
from nanprobe.cli.screen import make_copy, report_width, show, wants_color
from nanprobe.options import DEVICES, STATUS_CODES, at_least, choose, parse_scales, positive
from nanprobe.plan import DEFAULT_STEPS, RunPlan, SweepPlan
from nanprobe.reports.formats import ReportFormat

if TYPE_CHECKING:
    from nanprobe.loss_scale.result import SweepResult


def sweep_scale(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(help="A training script, or a file with build_model, build_data and compute_loss.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", metavar="NAME", help="Run a module, as `python -m` does.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_recipe,
            metavar="NAME|FILE",
            help="Settings from a recipe; options given here win. See nanprobe recipes.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Optimizer steps to record.")] = DEFAULT_STEPS,
    scales: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Run exactly these loss scales for real, and show the updates side by side."),
    ] = None,
    no_confirm: Annotated[
        bool, typer.Option("--no-confirm", help="Do not run the edges of the window for real.")
    ] = False,
    number_format: Annotated[
        str,
        typer.Option(
            metavar="fp16|bf16|e4m3|e5m2",
            autocompletion=complete_number_format,
            help="Number format the gradients are to fit in.",
        ),
    ] = "fp16",
    device: Annotated[
        str, typer.Option(autocompletion=complete_device, metavar="auto|cpu|cuda", help="Where the runs take place.")
    ] = "auto",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of torch, numpy and random in every run.")] = 0,
    init_scale: Annotated[
        float | None, typer.Option(metavar="X", help="Initial loss scale, instead of the script's own.")
    ] = None,
    growth_interval: Annotated[
        int | None, typer.Option(metavar="N", help="Steps between growths of the loss scale, likewise.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of each run.")] = 600.0,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Run directory; default: a new one in the user's cache.")
    ] = None,
    report_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", autocompletion=complete_format, help=FORMAT_HELP)
    ] = "terminal",
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Let the script write its files for real.")
    ] = False,
    show_output: Annotated[bool, typer.Option("--show-output", help="Show what the script prints, on stderr.")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="Show every layer.")] = False,
) -> int:
    """Find the loss scales that are safe for every layer, and the GradScaler settings to use.

    One recorded run answers for every power of two from 2^0 to 2^32; the edges of the safe window are then run for
    real. Exit code: 0 a safe scale is in use, 1 no safe scale or a bad one, 2 usage error, 3 could not conclude.

    For example:

        nanprobe sweep-scale train.py

        nanprobe sweep-scale train.py --steps 200 -- --epochs 1

        nanprobe sweep-scale train.py --scales 1,16,65536
    """
    session: Session = context.obj
    form = choose_format(report_format)
    chosen = RecipeOption.parse(context, recipe)
    run = RunPlan(
        target=chosen.locate(target, module, session.script_args),
        steps=at_least("--steps", steps, 1),
        device=choose("--device", device, DEVICES),
        seed=at_least("--seed", seed, 0),
        init_scale=None if init_scale is None else positive("--init-scale", init_scale),
        growth_interval=None if growth_interval is None else at_least("--growth-interval", growth_interval, 1),
        timeout=positive("--timeout", timeout),
        allow_writes=allow_writes,
        show_output=show_output,
    )
    asked_scales = parse_scales(scales)
    number_format = chosen.choose("number_format", number_format, "dtype")
    _check_number_format(number_format)
    result = _sweep(chosen.apply(run), output, session, number_format, asked_scales, not no_confirm)
    _print_sweep(result, form, show_all)
    return int(STATUS_CODES[result.status])


def _check_number_format(name: str) -> None:
    from nanprobe.formats import format_named

    format_named(name)


def _sweep(
    run: RunPlan, output: str | None, session: Session, number_format: str, scales: tuple[float, ...], confirm: bool
) -> SweepResult:
    from nanprobe.storage import new_run_directory
    from nanprobe.target.launcher import make_launcher

    session.run_directory = new_run_directory(output, run.target)
    with make_launcher(run.seed) as launcher:
        from nanprobe.progress import open_progress
        from nanprobe.sweep import run_sweep

        plan = SweepPlan(run, number_format, scales, confirm)
        with open_progress(sys.stderr, quiet=run.show_output) as progress:
            return run_sweep(plan, session.run_directory, launcher, progress, make_copy(run))


def _print_sweep(result: SweepResult, form: ReportFormat, show_all: bool) -> None:
    from nanprobe.reports.sweep import make_sweep_report
    from nanprobe.storage import SWEEP_FILE

    document = make_sweep_report(ReportFormat.JSON).render(result)
    Path(result.run.directory, SWEEP_FILE).write_text(document, encoding="utf-8")
    width = report_width()
    report = make_sweep_report(form, width=width, color=wants_color(), show_all=show_all)
    show(report.render(result))
