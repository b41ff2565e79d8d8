"""Diagnosing a program in this process: the real protocol, records and diagnosis, without a process for each stage."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from fuzz.programs import Program
from fuzz.rendering import render
from nanprobe.diagnosis import diagnose
from nanprobe.findings import Diagnosis
from nanprobe.plan import RunPlan, StageRequest
from nanprobe.progress import Progress
from nanprobe.protocol import run_protocol
from nanprobe.records import RunRecord, Target
from nanprobe.target.child import record_stage
from nanprobe.target.launcher import Exit, Launcher
from nanprobe.target.output import OutputLog
from nanprobe.target.status import INTERNAL_ERROR_STATUS


class InProcess:
    """Runs stages one after the other in this process; for scripts that are known to behave."""

    def run(self, request: StageRequest, log: OutputLog, timeout: float, watch: Callable[[], None]) -> Exit:
        """Run one stage to its end."""
        started = time.monotonic()
        try:
            with warnings.catch_warnings(), _main_restored():
                warnings.simplefilter("ignore")  # a script may well be warned about its own fault
                record_stage(request)
        except Exception:
            traceback.print_exc()
            return Exit(INTERNAL_ERROR_STATUS, False, time.monotonic() - started)
        return Exit(0, False, time.monotonic() - started)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return None


@contextlib.contextmanager
def _main_restored() -> Iterator[None]:
    """What running a script changes in the interpreter is taken back."""
    main, path, argv, original = sys.modules["__main__"], list(sys.path), list(sys.argv), list(sys.orig_argv)
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        sys.path[:], sys.argv[:], sys.orig_argv[:] = path, argv, original


def diagnose_program(program: Program, launcher: Launcher | None = None) -> Diagnosis:
    """The diagnosis of a program, as `nanprobe diagnose` would make it; in this process where no launcher is given."""
    return diagnose(run_program(program, launcher))


def run_program(program: Program, launcher: Launcher | None = None) -> RunRecord:
    """What the protocol records of a program."""
    importlib.import_module("torch._dynamo")  # the first optimizer would load it within a stage
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        script = folder / "train.py"  # a folder of its own: lines of source are cached by path
        script.write_text(render(program).source, encoding="utf-8")
        mode = "contract" if program.form == "contract" else "script"
        steps = program.steps if program.form == "contract" else 50
        plan = RunPlan(Target(os.fspath(script), mode=mode), steps=steps, device="cpu", allow_writes=True)
        return run_protocol(plan, folder / "run", launcher or InProcess(), Progress())
    finally:
        shutil.rmtree(folder)
