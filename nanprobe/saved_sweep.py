"""A sweep read back from its run directory: traces, histograms and updates become a recording again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from nanprobe.errors import RunUnreadable
from nanprobe.loss_scale.histograms import PARAMETER, ExponentHistogram
from nanprobe.loss_scale.recording import FP32_LABEL, SWEEP_LABEL, SweepRecording, explain_stop, make_real_run
from nanprobe.loss_scale.result import RealRun, WeightUpdate
from nanprobe.plan import RunPlan, ScalerSettings, SweepPlan
from nanprobe.records import StageTrace
from nanprobe.storage import (
    RUN_FILE,
    TRACE_FILE,
    Command,
    RunHead,
    from_json_value,
    read_head,
    read_lines,
    read_stage,
)

_REAL_RUN = re.compile(r"scale-(\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
T = TypeVar("T")


def label_scale(scale: float) -> str:
    """What a real run at a scale is called, and its directory."""
    return f"scale-{scale:.0f}" if scale.is_integer() else f"scale-{scale!r}"


def read_sweep(directory: str | Path) -> SweepRecording:
    """The sweep in a run directory, as far as it came.

    Raises RunUnreadable when it is no run of `nanprobe sweep-scale`, is damaged, or was written by a newer nanprobe.
    """
    head = read_head(directory)
    if head.command is not Command.SWEEP_SCALE:
        raise RunUnreadable(
            f"{directory}: is a run of `nanprobe {head.command.value}`; expected one of `nanprobe sweep-scale`"
        )
    plan, stages = _read_plan(head), Path(head.run.directory, "stages")
    interrupted_in = head.document.get("interrupted_in")
    histograms = read_histograms(stages / SWEEP_LABEL)
    recording = SweepRecording(
        plan=plan,
        head=head.run,
        fp32=_read_trace(stages / FP32_LABEL, head.finished),
        recorded=_read_trace(stages / SWEEP_LABEL, head.finished),
        histograms=histograms,
        real_runs=_read_real_runs(stages, histograms, interrupted_in, head.finished),
        interrupted_in=interrupted_in,
        killed=not head.finished,
    )
    _check_complete(recording, stages)
    return recording


def _check_complete(recording: SweepRecording, stages: Path) -> None:
    """Raises RunUnreadable when a sweep that came to its end has lost one of its two first runs since."""
    if recording.killed or recording.interrupted_in is not None:
        return
    for label, trace in ((FP32_LABEL, recording.fp32), (SWEEP_LABEL, recording.recorded)):
        if trace is None and explain_stop(recording) is None:
            raise RunUnreadable(f"{stages / label}: the sweep has lost this run, and with it all that was measured")


def read_histograms(directory: Path) -> tuple[ExponentHistogram, ...]:
    """The histograms of a run, in the order they were taken; none when it did not begin. Raises RunUnreadable."""
    return _read_records(directory / TRACE_FILE, "histogram", ExponentHistogram.from_plain)


def read_real_run(directory: Path, scale: float, parameters: frozenset[str], *, whole: bool = False) -> RealRun:
    """One real run; its losses are those of the given parameters. Raises RunUnreadable, as `read_stage` does."""
    updates = _read_records(directory / TRACE_FILE, "element_update", _make_update)
    return make_real_run(scale, read_stage(directory, whole=whole), parameters, updates)


def _read_real_runs(
    stages: Path, histograms: tuple[ExponentHistogram, ...], interrupted_in: str | None, finished: bool
) -> tuple[RealRun, ...]:
    parameters = frozenset(h.name for h in histograms if h.kind == PARAMETER)
    named = [(path, found) for path in sorted(stages.iterdir()) if (found := _REAL_RUN.fullmatch(path.name))]
    return tuple(
        read_real_run(path, float(found[1]), parameters, whole=finished)
        for path, found in named
        if path.name != interrupted_in
    )


def _read_trace(directory: Path, finished: bool) -> StageTrace | None:
    return read_stage(directory, whole=finished) if directory.is_dir() else None


def _read_plan(head: RunHead) -> SweepPlan:
    try:
        asked = head.document["sweep"]
        scaler = {f.name: head.document["plan"].get(f.name) for f in fields(ScalerSettings)}
        return SweepPlan(
            run=RunPlan(target=head.run.target, steps=head.run.steps, seed=head.run.seed, **scaler),
            number_format=asked["number_format"],
            scales=tuple(float(scale) for scale in asked["scales"]),
            confirm=asked["confirm"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunUnreadable(f"{head.run.directory}/{RUN_FILE}: an entry is missing or wrong: {error}") from error


def _make_update(line: dict[str, Any]) -> WeightUpdate:
    row = from_json_value({key: line[key] for key in WeightUpdate.__slots__})
    return WeightUpdate(**{**row, "index": tuple(row["index"])})


def _read_records(path: Path, tag: str, make: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    if not path.exists():
        return ()
    try:
        return tuple(
            make({key: value for key, value in line.items() if key != "type"}) for line in read_lines(path, tag)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunUnreadable(f"{path}: a line of type {tag} is no record nanprobe knows: {error!r}") from error
