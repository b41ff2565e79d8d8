"""The command line: the only place that prints and exits. Torch is never loaded here, pandas late if at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import nanprobe
from nanprobe.errors import ExitCode, NanprobeError, UsageError
from nanprobe.findings import Status
from nanprobe.options import DEVICES, DTYPES, FailOn, at_least, choose, exit_code, parse_scales, parse_stages, positive
from nanprobe.plan import DEFAULT_STEPS, RunPlan
from nanprobe.records import Target
from nanprobe.reports.formats import ReportFormat

if TYPE_CHECKING:
    from nanprobe.findings import Diagnosis
    from nanprobe.loss_scale.result import SweepResult
    from nanprobe.records import RunRecord

_ISSUES = "https://github.com/nanprobe/nanprobe/issues"
# Base of every complaint about the command line, whichever package typer takes it from.
_CommandLineError: type[Exception] = next(
    cls for cls in reversed(typer.BadParameter.__mro__) if hasattr(cls, "format_message")
)

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Says why a PyTorch training produced NaN, Inf or dead gradients: what broke, why, and what to do.",
)


def main(argv: list[str] | None = None) -> int:
    """The `nanprobe` command; returns its exit code. Everything after the first `--` belongs to the user's script."""
    own, script_args = _split_arguments(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    session = Session(script_args)
    try:
        with _terminate_as_interrupt():
            command = typer.main.get_command(app)  # calling `app` would replace sys.excepthook for good
            return int(command.main(own, prog_name="nanprobe", standalone_mode=False, obj=session) or 0)
    except NanprobeError as error:
        return _fail(str(error), error.exit_code)
    except _CommandLineError as error:
        return _fail(_explain_command_line(error, script_args), ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", ExitCode.INCONCLUSIVE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of the report has gone; so may the rest of it
        return int(ExitCode.INCONCLUSIVE)
    except Exception:
        return _fail(_save_bug(session), ExitCode.INCONCLUSIVE)


class Session:
    """What a command needs besides its options, and leaves for error messages."""

    def __init__(self, script_args: list[str]) -> None:
        self.script_args = tuple(script_args)
        self.run_directory: Path | None = None


def _split_arguments(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _prepare_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


@contextlib.contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: children stopped, partial results reported."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _end_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_signals() -> list[signal.Signals]:
    return [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def _fail(message: str, code: ExitCode) -> int:
    print(f"nanprobe: {message}", file=sys.stderr)
    return int(code)


def _explain_command_line(error: Any, script_args: list[str]) -> str:
    message = error.format_message().rstrip(".").strip()
    message = message[:1].lower() + message[1:]
    unknown = message.startswith(("no such option", "got unexpected extra argument"))
    if unknown and not script_args:
        return f"{message}; arguments for the script go after `--`: nanprobe diagnose train.py -- ARGS"
    return f"{message}; see `nanprobe diagnose --help`"


def _save_bug(session: Session) -> str:
    """Keep the traceback of a fault of nanprobe's own, and say where."""
    folder = session.run_directory if session.run_directory and session.run_directory.is_dir() else None
    try:
        path = (folder or Path(tempfile.mkdtemp(prefix="nanprobe-"))) / "internal-error.txt"
        path.write_text(traceback.format_exc(), encoding="utf-8")
    except OSError:
        return "failed because of a fault of its own\n" + traceback.format_exc()
    kind, error, _ = sys.exc_info()
    what = f"{getattr(kind, '__name__', kind)}: {error}"
    return f"failed because of a fault of its own ({what}).\nPlease report it at {_ISSUES}, with {path}"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"nanprobe {nanprobe.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def diagnose(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(help="A training script, or a file with build_model, build_data and compute_loss.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", metavar="NAME", help="Run a module, as `python -m` does.")
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Optimizer steps of each stage.")] = DEFAULT_STEPS,
    stages: Annotated[str, typer.Option(metavar="LIST", help="Stages to run.")] = "fp32,fp16,amp",
    dtype: Annotated[str, typer.Option(metavar="fp16|bf16", help="Low precision of the fp16 and amp stages.")] = "fp16",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where the stages run.")] = "auto",
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
        str, typer.Option("--format", metavar="terminal|json", help="Format of the report.")
    ] = "terminal",
    fail_on: Annotated[
        str,
        typer.Option(
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
    show_all: Annotated[bool, typer.Option("--all", help="Show healthy layers too.")] = False,
) -> int:
    """Run a training script in three precisions and say what breaks, why, and what to do.

    The script is not changed, and its files are not written (see --allow-writes). The report goes to stdout, progress
    to stderr. Exit code: 0 healthy, 1 failing, 2 usage error, 3 could not conclude.

    For example:

        nanprobe diagnose train.py

        nanprobe diagnose train.py --steps 200 -- --epochs 1 --lr 3e-4

        nanprobe diagnose -m package.train --stages fp32,amp -- --config small.yaml

        nanprobe diagnose train.py --format json --fail-on warning > report.json
    """
    session: Session = context.obj
    form = choose("--format", report_format, {form.value: form for form in ReportFormat})
    failing = FailOn.parse(fail_on)
    plan = RunPlan(
        target=_locate(target, module, session.script_args),
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
    run, interrupted = _run(plan, output, session)
    from nanprobe.diagnosis import diagnose as make_diagnosis

    diagnosis = make_diagnosis(run)
    _print_report(run, diagnosis, form, show_all)
    return int(exit_code(diagnosis, failing, interrupted))


@app.command("sweep-scale")
def sweep_scale(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(help="A training script, or a file with build_model, build_data and compute_loss.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", "--module", metavar="NAME", help="Run a module, as `python -m` does.")
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
        str, typer.Option(metavar="fp16|bf16|e4m3|e5m2", help="Number format the gradients are to fit in.")
    ] = "fp16",
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where the runs take place.")] = "auto",
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
        str, typer.Option("--format", metavar="terminal|json", help="Format of the report.")
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
    form = choose("--format", report_format, {form.value: form for form in ReportFormat})
    run = RunPlan(
        target=_locate(target, module, session.script_args),
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
    _check_number_format(number_format)
    result = _sweep(run, output, session, number_format, asked_scales, not no_confirm)
    _print_sweep(result, form, show_all)
    return int(_EXIT_CODES[result.status])


_EXIT_CODES = {
    Status.HEALTHY: ExitCode.HEALTHY,
    Status.FAILING: ExitCode.FAILING,
    Status.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
}


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
        from nanprobe.sweep import SweepPlan, run_sweep

        plan = SweepPlan(run, number_format, scales, confirm)
        with open_progress(sys.stderr, quiet=run.show_output) as progress:
            return run_sweep(plan, session.run_directory, launcher, progress, _make_copy(run))


def _print_sweep(result: SweepResult, form: ReportFormat, show_all: bool) -> None:
    from nanprobe.reports.sweep import make_sweep_report

    document = make_sweep_report(ReportFormat.JSON).render(result)
    Path(result.run.directory, "sweep.json").write_text(document, encoding="utf-8")
    width = max(40, shutil.get_terminal_size().columns)
    report = make_sweep_report(form, width=width, color=_wants_color(), show_all=show_all)
    sys.stdout.write(report.render(result))
    sys.stdout.flush()


@app.command()
def explain(code: Annotated[str, typer.Argument(help="A finding's code, for example NP101.")]) -> int:
    """Say what a finding means, how it is found, what to do, and where that is known from.

    For example:

        nanprobe explain NP101
    """
    from nanprobe.reports.explanation import render_explanation

    sys.stdout.write(render_explanation(code, width=max(40, shutil.get_terminal_size().columns)))
    return int(ExitCode.HEALTHY)


def _locate(target: str | None, module: str | None, script_args: tuple[str, ...]) -> Target:
    from nanprobe.target.locate import locate_module, locate_script

    if module is not None and target is not None:
        raise UsageError(
            f"both -m {module} and {target} given; arguments for the module go after `--`: "
            f"nanprobe diagnose -m {module} -- {target}"
        )
    if module is not None:
        return locate_module(module, script_args)
    if target is None:
        raise UsageError(
            "nothing to diagnose; write `nanprobe diagnose train.py` or `nanprobe diagnose -m package.train`"
        )
    return locate_script(target, script_args)


def _run(plan: RunPlan, output: str | None, session: Session) -> tuple[RunRecord, bool]:
    """Run the protocol; also says whether Ctrl-C cut it short."""
    from nanprobe.storage import new_run_directory
    from nanprobe.target.launcher import make_launcher

    session.run_directory = new_run_directory(output, plan.target)
    with make_launcher(plan.seed) as launcher:  # torch loads from here on, while the rest is imported
        from nanprobe.progress import open_progress
        from nanprobe.protocol import RunInterrupted, run_protocol

        with open_progress(sys.stderr, quiet=plan.show_output) as progress:
            try:
                return run_protocol(plan, session.run_directory, launcher, progress, _make_copy(plan)), False
            except RunInterrupted as interruption:
                return interruption.run, True


def _make_copy(plan: RunPlan) -> Callable[[bytes], object] | None:
    """Where the script's output is copied to with --show-output."""
    if not plan.show_output:
        return None

    def copy(chunk: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()

    return copy


def _print_report(run: RunRecord, diagnosis: Diagnosis, form: ReportFormat, show_all: bool) -> None:
    from nanprobe.reports.formats import make_report
    from nanprobe.reports.json_report import JsonReport
    from nanprobe.storage import DIAGNOSIS_FILE

    Path(run.directory, DIAGNOSIS_FILE).write_text(JsonReport().render(run, diagnosis), encoding="utf-8")
    width = max(40, shutil.get_terminal_size().columns)
    text = make_report(form, width=width, color=_wants_color(), show_all=show_all).render(run, diagnosis)
    sys.stdout.write(text)
    sys.stdout.flush()


def _wants_color() -> bool:
    """Source: no-color.org; force-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")
