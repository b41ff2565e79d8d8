"""One check: a recipe's target goes through the protocol, the sweep or both, and is compared with its `expect`."""

from __future__ import annotations

import time
from pathlib import Path

from nanprobe.check.planning import Check
from nanprobe.diagnosis import diagnose
from nanprobe.findings import Diagnosis
from nanprobe.loss_scale.conflict import find_conflict
from nanprobe.loss_scale.result import SweepResult
from nanprobe.plan import SweepPlan
from nanprobe.progress import Progress
from nanprobe.protocol import RunInterrupted, run_protocol
from nanprobe.recipe.comparison import compare_diagnosis, compare_sweep
from nanprobe.recipe.limits import compare_seconds
from nanprobe.recipe.outcome import CheckOutcome, Comparison, SweepFacts
from nanprobe.reports.document import build_document
from nanprobe.reports.sweep.document import build_sweep_document
from nanprobe.storage import new_run_directory, write_document, write_json
from nanprobe.sweep import run_sweep
from nanprobe.target.launcher import Launcher


class CheckRun:
    """One check: the diagnosis, the sweep, or both."""

    def __init__(self, check: Check, launcher: Launcher) -> None:
        self._check, self._recipe, self._plan = check, check.recipe, check.plan
        self._launcher = launcher

    def run(self) -> CheckOutcome:
        """Run what the recipe has an expectation for, and compare. Raises KeyboardInterrupt, NanprobeError."""
        recipe, started = self._recipe, time.monotonic()
        comparison = Comparison()
        diagnosis: Diagnosis | None = None
        directory = sweep_directory = None
        if recipe.expect.wants_diagnosis:
            directory = self._check.directory or new_run_directory(None, self._plan.target)
            diagnosis, found = self._diagnose(directory)
            comparison += found
        if recipe.expect.sweep is not None:
            sweep_directory = self._check.sweep_directory or new_run_directory(None, self._plan.target)
            comparison += compare_sweep(recipe.expect.sweep, self._sweep(sweep_directory))
        seconds = time.monotonic() - started
        return CheckOutcome(
            name=recipe.name,
            path=recipe.path,
            comparison=comparison + compare_seconds(recipe.limits, seconds),
            seconds=seconds,
            status=None if diagnosis is None else diagnosis.status,
            finding=None if diagnosis is None else diagnosis.verdict,
            run_directory=None if directory is None else str(directory),
            sweep_directory=None if sweep_directory is None else str(sweep_directory),
            about=recipe.about,
        )

    def _diagnose(self, directory: Path) -> tuple[Diagnosis, Comparison]:
        try:
            run = run_protocol(self._plan, directory, self._launcher, Progress())
        except RunInterrupted as interruption:
            raise KeyboardInterrupt from interruption
        diagnosis = diagnose(run)
        write_document(directory, build_document(run, diagnosis))
        return diagnosis, compare_diagnosis(self._recipe, run, diagnosis)

    def _sweep(self, directory: Path) -> SweepFacts:
        result = run_sweep(SweepPlan(self._plan, self._plan.dtype), directory, self._launcher, Progress())
        write_json(directory / "sweep.json", build_sweep_document(result))
        return sweep_facts(result)


def sweep_facts(result: SweepResult) -> SweepFacts:
    """The part of a sweep that a recipe can expect something of."""
    window = result.window
    if window is None:
        return SweepFacts(result.status, result.reasons)
    conflict = find_conflict(window)
    if conflict is not None:
        return SweepFacts(
            result.status,
            result.reasons,
            overflowing_layer=conflict.overflowing_layer,
            needing_layer=conflict.needing_layer,
        )
    return SweepFacts(
        result.status,
        result.reasons,
        window.lowest_scale,
        window.highest_scale,
        window.low_set_by,
        window.high_set_by,
    )
