"""The columns of the tables, their types, and the rows that fill them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from nanprobe.findings import Finding, Kind, LayerRow, Severity
from nanprobe.records import Outcome, Phase, StageName, StageTrace, StepRecord
from nanprobe.reports.stage_summary import StageSummary, is_finite_step

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

STAGE_COLUMNS = {
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
STEP_COLUMNS = {
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
GRADIENT_COLUMNS = {
    "stage": "stage",
    "step": "int64",
    "parameter": "string",
    "grad_abs_max": "float64",
    "scaled_grad_abs_max": "float64",
}
LAYER_COLUMNS = {
    "name": "string",
    "module": "string",
    "kind": "kind",
    "headroom_bits": "float64",
    **{f"grad_abs_max_{stage}": "float64" for stage in _STAGES},
    **{f"flushed_fraction_{stage}": "float64" for stage in _STAGES},
    **{f"lost_norm_fraction_{stage}": "float64" for stage in _STAGES},
    **{f"nonfinite_steps_{stage}": "Int64" for stage in _STAGES},
}
FINDING_COLUMNS = {
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


def make_frame(rows: Iterable[tuple[Any, ...]], dtypes: dict[str, str]) -> pd.DataFrame:
    """The rows under the columns of `dtypes`; a name of _CHOICES stands for a category of those values."""
    import pandas as pd

    columns = list(zip(*rows, strict=True)) or [()] * len(dtypes)
    made = {}
    for (name, dtype), values in zip(dtypes.items(), columns, strict=True):
        wanted: Any = pd.CategoricalDtype(_CHOICES[dtype], ordered=dtype == "stage") if dtype in _CHOICES else dtype
        made[name] = pd.Series(list(values), dtype=wanted, name=name)
    return pd.DataFrame(made)


def stage_row(summary: StageSummary) -> tuple[Any, ...]:
    """A row of STAGE_COLUMNS."""
    trace = summary.trace
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


def step_row(trace: StageTrace, step: StepRecord) -> tuple[Any, ...]:
    """A row of STEP_COLUMNS."""
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


def gradient_rows(trace: StageTrace) -> Iterator[tuple[Any, ...]]:
    """Rows of GRADIENT_COLUMNS, of every step of a stage."""
    for step in trace.steps:
        for parameter, value in zip(trace.parameters, step.grad_abs_max, strict=False):
            if value is not None:
                yield trace.name.value, step.index, parameter.name, _unscale(step, value), value


def layer_row(row: LayerRow) -> tuple[Any, ...]:
    """A row of LAYER_COLUMNS."""
    by_stage = (row.grad_abs_max, row.flushed_fraction, row.lost_norm_fraction, row.nonfinite_steps)
    kind = None if row.kind is None else row.kind.value
    figures = [values.get(stage) for values in by_stage for stage in _STAGES]
    return (row.name, row.module, kind, row.headroom_bits, *figures)


def finding_row(finding: Finding, is_verdict: bool) -> tuple[Any, ...]:
    """A row of FINDING_COLUMNS."""
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
