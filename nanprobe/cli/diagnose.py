"""`nanprobe diagnose`: the staged protocol and its report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanprobe.cli.application import Session
from nanprobe.cli.completion import (
    complete_device,
    complete_dtype,
    complete_fail_on,
    complete_format,
    complete_recipe,
    complete_stages,
)
from nanprobe.cli.formats import FORMAT_HELP, choose_format
from nanprobe.cli.recipe_option import RecipeOption
from nanprobe.cli.screen import make_copy, report_width, show, wants_color
from nanprobe.fail_on import FailOn
from nanprobe.notation import DTYPES
from nanprobe.options import DEVICES, at_least, choose, exit_code, parse_stages, positive
from nanprobe.plan import DEFAULT_BUDGET, DEFAULT_STEPS, RunPlan
from nanprobe.reports.formats import ReportFormat

if TYPE_CHECKING:
    from nanprobe.findings import Diagnosis
    from nanprobe.protocol import StageRunner
    from nanprobe.records import RunRecord


def diagnose(
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
    steps: Annotated[int, typer.Option(metavar="N", help="Optimizer steps of each stage.")] = DEFAULT_STEPS,
    stages: Annotated[
        str, typer.Option(autocompletion=complete_stages, metavar="LIST", help="Stages to run.")
    ] = "fp32,fp16,amp",
    dtype: Annotated[
        str,
        typer.Option(
            autocompletion=complete_dtype, metavar="fp16|bf16", help="Low precision of the fp16 and amp stages."
        ),
    ] = "fp16",
    device: Annotated[
        str, typer.Option(autocompletion=complete_device, metavar="auto|cpu|cuda", help="Where the stages run.")
    ] = "auto",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of torch, numpy and random in every stage.")] = 0,
    init_scale: Annotated[
        float | None, typer.Option(metavar="X", help="Initial loss scale, instead of the script's own.")
    ] = None,
    growth_interval: Annotated[
        int | None,
        typer.Option(metavar="N", help="Steps between growths of the loss scale, likewise."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Time limit of each stage.")] = 600.0,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Run directory; default: a new one in the user's cache.")
    ] = None,
    report_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", autocompletion=complete_format, help=FORMAT_HELP)
    ] = "terminal",
    fail_on: Annotated[
        str,
        typer.Option(
            autocompletion=complete_fail_on,
            metavar="LIST",
            help="Findings that make exit code 1: a severity and graver (error, warning, note), kinds (overflow, "
            "underflow, data, graph, divergence, misuse), or none.",
        ),
    ] = "error",
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Let the script write its files for real.")
    ] = False,
    show_output: Annotated[bool, typer.Option("--show-output", help="Show what the script prints, on stderr.")] = False,
    until_failure: Annotated[
        bool, typer.Option("--until-failure", help="Run past --steps, to the script's end or its first failure.")
    ] = False,
    all_stages: Annotated[
        bool, typer.Option("--all-stages", help="Run the later stages even when fp32 fails.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the failing stage again with each remedy, and say which ones help.")
    ] = False,
    verify_budget: Annotated[
        float, typer.Option("--verify-budget", metavar="SECONDS", help="Time for trying remedies.")
    ] = DEFAULT_BUDGET,
    show_all: Annotated[bool, typer.Option("--all", help="Show healthy layers too.")] = False,
) -> int:
    """Run a training script in three precisions and say what breaks, why, and what to do.

    The script is not changed, and its files are not written (see --allow-writes). The report goes to stdout, progress
    to stderr. Exit code: 0 healthy, 1 failing, 2 usage error, 3 could not conclude.

    For example:

        nanprobe diagnose train.py

        nanprobe diagnose train.py --steps 200 -- --epochs 1 --lr 3e-4

        nanprobe diagnose train.py --recipe transformer

        nanprobe diagnose -m package.train --stages fp32,amp -- --config small.yaml

        nanprobe diagnose train.py --verify

        nanprobe diagnose train.py --format json --fail-on warning > report.json
    """
    session: Session = context.obj
    form = choose_format(report_format)
    chosen = RecipeOption.parse(context, recipe)
    failing = FailOn.parse(chosen.choose("fail_on", fail_on, "fail_on"))
    plan = RunPlan(
        target=chosen.locate(target, module, session.script_args),
        steps=at_least("--steps", steps, 1),
        stages=parse_stages(stages),
        dtype=choose("--dtype", dtype, DTYPES),
        device=choose("--device", device, DEVICES),
        seed=at_least("--seed", seed, 0),
        init_scale=None if init_scale is None else positive("--init-scale", init_scale),
        growth_interval=None if growth_interval is None else at_least("--growth-interval", growth_interval, 1),
        timeout=positive("--timeout", timeout),
        until_failure=until_failure,
        all_stages=all_stages,
        allow_writes=allow_writes,
        show_output=show_output,
    )
    budget = positive("--verify-budget", verify_budget) if verify else None
    run, diagnosis, interrupted = _run(chosen.apply(plan), output, session, budget)
    _print_report(run, diagnosis, form, show_all, failing)
    return int(exit_code(diagnosis, failing, interrupted))


def _run(
    plan: RunPlan, output: str | None, session: Session, budget: float | None
) -> tuple[RunRecord, Diagnosis, bool]:
    """Run the protocol, and with a budget the remedies; also says whether Ctrl-C cut it short."""
    from nanprobe.storage import new_run_directory
    from nanprobe.target.launcher import make_launcher

    session.run_directory = new_run_directory(output, plan.target)
    with make_launcher(plan.seed) as launcher:  # torch loads from here on, while the rest is imported
        from nanprobe.diagnosis import diagnose as make_diagnosis
        from nanprobe.progress import open_progress
        from nanprobe.protocol import RunInterrupted, StageRunner, run_stages

        with open_progress(sys.stderr, quiet=plan.show_output) as progress:
            stages = StageRunner(plan, session.run_directory, launcher, progress, make_copy(plan))
            try:
                run = run_stages(stages)
            except RunInterrupted as interruption:
                return interruption.run, make_diagnosis(interruption.run), True
            diagnosis = make_diagnosis(run)
            if budget is not None and diagnosis.verdict is not None:
                diagnosis = _verify(run, diagnosis, stages, budget)
            return run, diagnosis, False


def _verify(run: RunRecord, diagnosis: Diagnosis, stages: StageRunner, budget: float) -> Diagnosis:
    """Try the remedies of the verdict, and keep what came of it beside the run."""
    from nanprobe.storage import write_verification
    from nanprobe.verify import verify

    verification = verify(run, diagnosis, stages, budget)
    write_verification(run.directory, verification)
    return diagnosis.with_verification(verification)


def _print_report(run: RunRecord, diagnosis: Diagnosis, form: ReportFormat, show_all: bool, failing: FailOn) -> None:
    from nanprobe.reports.formats import make_report
    from nanprobe.reports.json_report import JsonReport
    from nanprobe.storage import DIAGNOSIS_FILE

    Path(run.directory, DIAGNOSIS_FILE).write_text(JsonReport().render(run, diagnosis), encoding="utf-8")
    width = report_width()
    report = make_report(form, width=width, color=wants_color(), show_all=show_all, failing=failing)
    show(report.render(run, diagnosis))
