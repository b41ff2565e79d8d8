"""A saved run as pandas DataFrames, for notebooks. No torch here; pandas is loaded with the first table."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nanprobe.findings import Diagnosis, Finding, Kind, LayerRow, Severity
from nanprobe.records import Outcome, Phase, RunRecord, StageName, StageTrace, StepRecord
from nanprobe.reports.stage_summary import is_finite_step, summarize_stages
from nanprobe.saved_run import read_answer
from nanprobe.storage import find_run

if TYPE_CHECKING:
    import pandas as pd

_STAGES = [stage.value for stage in StageName]
_CHOICES = {
    "stage": _STAGES,
    "outcome": [outcome.value for outcome in Outcome],
    "kind": [kind.value for kind in Kind],
    "severity": [severity.value for severity in Severity],
    "phase": [phase.value for phase in Phase],
}


def load_run(directory: str | os.PathLike[str]) -> SavedRun:
    """The run of `nanprobe diagnose` in a directory, or "last" for the newest one.

    Raises nanprobe.errors.RunUnreadable when it is no such run, is damaged, or was written by a newer nanprobe.
    """
    return SavedRun(*read_answer(find_run(os.fspath(directory))))


class SavedRun:
    """One run. Each table is made when it is first asked for, and is the same object from then on.

    `run` and `diagnosis` hold the records behind the tables. Fractions are of 1. What was not measured is missing (NaN,
    None or <NA>); in columns of numbers that can themselves be NaN, the description says which NaN it is.
    """

    def __init__(self, run: RunRecord, diagnosis: Diagnosis) -> None:
        self.run, self.diagnosis = run, diagnosis

    def __repr__(self) -> str:
        verdict = self.diagnosis.verdict
        found = "" if verdict is None else f", {verdict.code}: {verdict.title}"
        return f"<nanprobe run of {self.run.target.path}: {self.diagnosis.status.value}{found}>"

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row a stage, in the order they run.

        - `stage`: fp32, fp16 or amp (ordered category)
        - `outcome`: completed, crashed, skipped or timeout (category)
        - `dtype`: the format it computed in
        - `as_written`: whether the script itself trains in this precision; else nanprobe put it around
        - `steps`: optimizer updates, those the scaler skipped too
        - `skipped_steps`: updates the scaler skipped
        - `first_nonfinite_step`: first step with a NaN or Inf in loss, gradients, weights or buffers (Int64)
        - `final_loss`: of the last step that has a loss; may be NaN or infinite
        - `seconds`: how long it took
        - `reason`: why it was skipped or did not end by itself
        """
        return _frame(map(_stage_row, summarize_stages(self.run.stages, self.diagnosis)), _STAGE_DTYPES)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row for each step of each stage.

        - `stage`: fp32, fp16 or amp (ordered category)
        - `step`: index of the update, from 0
        - `optimizer`: class of the optimizer that stepped
        - `backward_passes`: backward passes that led to it
        - `loss`: value that backward started from, loss scale taken out; NaN also where there was none
        - `loss_scale`: factor in the gradients; NaN when not scaled
        - `skipped`: whether the scaler left the weights alone
        - `finite`: whether loss, gradients, weights and buffers are
        - `grad_abs_max`: largest gradient of all parameters, loss scale taken out; Inf or NaN when one is
        - `learning_rate`: of the first parameter group
        """
        rows = (_step_row(trace, step) for trace in self.run.stages for step in trace.steps)
        return _frame(rows, _STEP_DTYPES)

    @cached_property
    def gradients(self) -> pd.DataFrame:
        """One row for each parameter in each step of each stage; none where the parameter had no gradient.

        - `stage`: fp32, fp16 or amp (ordered category)
        - `step`: index of the update, from 0
        - `parameter`: its name (category)
        - `grad_abs_max`: largest magnitude in its gradient, loss scale taken out; Inf or NaN as found
        - `scaled_grad_abs_max`: the same with the loss scale in it, which is what has to fit in the format
        """
        frame = _frame((row for trace in self.run.stages for row in _gradient_rows(trace)), _GRADIENT_DTYPES)
        return frame.astype({"parameter": "category"})

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row for each parameter of any stage; columns that end in a stage's name are missing where it did not run.

        - `name`, `module`: of the parameter
        - `kind`: of the gravest finding that names it (category)
        - `headroom_bits`: how many times the largest scaled gradient could double before it overflows, in the amp
          stage, else in the fp16 stage
        - `grad_abs_max_fp32`, `_fp16`, `_amp`: largest finite gradient of all steps, loss scale taken out
        - `flushed_fraction_…`: largest share of elements, non-zero in the FP32 re-check, that became 0
        - `lost_norm_fraction_…`: largest share of the gradient's L2 norm that went with them
        - `nonfinite_steps_…`: steps in which the gradient was not finite (Int64)
        """
        return _frame(map(_layer_row, self.diagnosis.layers), _LAYER_DTYPES)

    @cached_property
    def findings(self) -> pd.DataFrame:
        """One row a finding, the gravest first.

        - `code`: "NP101"; `nanprobe explain` tells what it means
        - `kind`, `severity`: as in the report (categories)
        - `is_verdict`: whether it is the root cause
        - `title`, `why`: in words
        - `stage` (ordered category), `step` (Int64; -1 is before the first), `phase` (category): when
        - `op`, `module`, `parameter`, `file`, `line` (Int64), `code_line`: where
        - `evidence`: its numbers, a dictionary
        - `remedies`: what to do, a list of texts
        """
        verdict = self.diagnosis.verdict
        return _frame((_finding_row(f, f is verdict) for f in self.diagnosis.findings), _FINDING_DTYPES)


_STAGE_DTYPES = {
    "stage": "stage",
    "outcome": "outcome",
    "dtype": "string",
    "as_written": "bool",
    "steps": "int64",
    "skipped_steps": "int64",
    "first_nonfinite_step": "Int64",
    "final_loss": "float64",
    "seconds": "float64",
    "reason": "string",
}
_STEP_DTYPES = {
    "stage": "stage",
    "step": "int64",
    "optimizer": "string",
    "backward_passes": "int64",
    "loss": "float64",
    "loss_scale": "float64",
    "skipped": "bool",
    "finite": "bool",
    "grad_abs_max": "float64",
    "learning_rate": "float64",
}
_GRADIENT_DTYPES = {
    "stage": "stage",
    "step": "int64",
    "parameter": "string",
    "grad_abs_max": "float64",
    "scaled_grad_abs_max": "float64",
}
_LAYER_DTYPES = {
    "name": "string",
    "module": "string",
    "kind": "kind",
    "headroom_bits": "float64",
    **{f"grad_abs_max_{stage}": "float64" for stage in _STAGES},
    **{f"flushed_fraction_{stage}": "float64" for stage in _STAGES},
    **{f"lost_norm_fraction_{stage}": "float64" for stage in _STAGES},
    **{f"nonfinite_steps_{stage}": "Int64" for stage in _STAGES},
}
_FINDING_DTYPES = {
    "code": "string",
    "kind": "kind",
    "severity": "severity",
    "is_verdict": "bool",
    "title": "string",
    "why": "string",
    "stage": "stage",
    "step": "Int64",
    "phase": "phase",
    "op": "string",
    "module": "string",
    "parameter": "string",
    "file": "string",
    "line": "Int64",
    "code_line": "string",
    "evidence": "object",
    "remedies": "object",
}


def _frame(rows: Iterable[tuple[Any, ...]], dtypes: dict[str, str]) -> pd.DataFrame:
    """The rows under the columns of `dtypes`; a name of _CHOICES stands for a category of those values."""
    import pandas as pd

    columns = list(zip(*rows, strict=True)) or [()] * len(dtypes)
    made = {}
    for (name, dtype), values in zip(dtypes.items(), columns, strict=True):
        wanted: Any = pd.CategoricalDtype(_CHOICES[dtype], ordered=dtype == "stage") if dtype in _CHOICES else dtype
        made[name] = pd.Series(list(values), dtype=wanted, name=name)
    return pd.DataFrame(made)


def _stage_row(summary: Any) -> tuple[Any, ...]:
    trace: StageTrace = summary.trace
    losses = [step.loss for step in trace.steps if step.loss is not None]
    return (
        trace.name.value,
        trace.outcome.value,
        trace.dtype,
        trace.as_written,
        summary.steps,
        summary.skipped_steps,
        summary.first_nonfinite_step,
        losses[-1] if losses else None,
        trace.seconds,
        trace.reason,
    )


def _step_row(trace: StageTrace, step: StepRecord) -> tuple[Any, ...]:
    return (
        trace.name.value,
        step.index,
        step.optimizer,
        step.backward_passes,
        step.loss,
        step.loss_scale,
        step.skipped,
        is_finite_step(step),
        _unscale(step, _largest(step.grad_abs_max)),
        step.learning_rates[0] if step.learning_rates else None,
    )


def _gradient_rows(trace: StageTrace) -> Iterator[tuple[Any, ...]]:
    for step in trace.steps:
        for parameter, value in zip(trace.parameters, step.grad_abs_max, strict=False):
            if value is not None:
                yield trace.name.value, step.index, parameter.name, _unscale(step, value), value


def _layer_row(row: LayerRow) -> tuple[Any, ...]:
    by_stage = (row.grad_abs_max, row.flushed_fraction, row.lost_norm_fraction, row.nonfinite_steps)
    kind = None if row.kind is None else row.kind.value
    figures = [values.get(stage) for values in by_stage for stage in _STAGES]
    return (row.name, row.module, kind, row.headroom_bits, *figures)


def _finding_row(finding: Finding, is_verdict: bool) -> tuple[Any, ...]:
    source = finding.source
    return (
        finding.code,
        finding.kind.value,
        finding.severity.value,
        is_verdict,
        finding.title,
        finding.why,
        finding.stage.value,
        finding.step,
        None if finding.phase is None else finding.phase.value,
        finding.op,
        finding.module,
        finding.parameter,
        *((None, None, None) if source is None else (source.file, source.line, source.code)),
        dict(finding.evidence),
        [remedy.text for remedy in finding.remedies],
    )


def _largest(values: Iterable[float | None]) -> float | None:
    """The largest; NaN when one is NaN, None when there is none."""
    found = [value for value in values if value is not None]
    return math.nan if any(math.isnan(value) for value in found) else max(found, default=None)


def _unscale(step: StepRecord, value: float | None) -> float | None:
    return value / step.loss_scale if value is not None and step.loss_scale else value
