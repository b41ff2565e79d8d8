"""The per-layer table: one row for each parameter, over all stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from nanprobe.findings import Finding, Kind, LayerRow, Severity
from nanprobe.formats import format_named
from nanprobe.records import RunRecord, StageName, StageTrace, StepRecord


def layer_rows(run: RunRecord, findings: Sequence[Finding]) -> tuple[LayerRow, ...]:
    """One row for each parameter of any stage, in the order the model names them."""
    order: dict[str, str | None] = {}
    for trace in run.stages:
        for info in trace.parameters:
            order.setdefault(info.name, info.module)
    columns = {trace.name.value: _Columns(trace) for trace in run.stages if trace.steps}
    return tuple(_row(name, module, columns, findings) for name, module in order.items())


class _Columns:
    """One stage's figures by parameter name."""

    def __init__(self, trace: StageTrace) -> None:
        self.trace = trace
        position = {p.name: k for k, p in enumerate(trace.parameters)}
        self.position = position
        self.flushed = _largest_by_name((g.name, g.flushed_fraction) for d in trace.deep_steps for g in d.grads)
        self.lost = _largest_by_name((g.name, g.lost_norm_fraction) for d in trace.deep_steps for g in d.grads)

    def scaled_peak(self, name: str) -> float | None:
        """Largest finite gradient over the steps, loss scale still in it."""
        return _peak(_at(s, self.position.get(name)) for s in self.trace.steps)

    def unscaled_peak(self, name: str) -> float | None:
        """The same without the loss scale."""
        k = self.position.get(name)
        return _peak(_unscaled(s, _at(s, k)) for s in self.trace.steps)

    def nonfinite_steps(self, name: str) -> int:
        """Steps in which the gradient was not finite."""
        values = (_at(s, self.position.get(name)) for s in self.trace.steps)
        return sum(1 for v in values if v is not None and not math.isfinite(v))


def _row(name: str, module: str | None, columns: dict[str, _Columns], findings: Sequence[Finding]) -> LayerRow:
    return LayerRow(
        name=name,
        module=module,
        kind=_kind(name, module, findings),
        grad_abs_max={stage: c.unscaled_peak(name) for stage, c in columns.items()},
        flushed_fraction={stage: c.flushed.get(name) for stage, c in columns.items()},
        lost_norm_fraction={stage: c.lost.get(name) for stage, c in columns.items()},
        headroom_bits=_headroom(name, columns),
        nonfinite_steps={stage: c.nonfinite_steps(name) for stage, c in columns.items()},
    )


def _headroom(name: str, columns: dict[str, _Columns]) -> float | None:
    """Bits between the largest scaled gradient and the limit of the format, in the amp stage, else the raw one."""
    for stage in (StageName.AMP.value, StageName.FP16.value):
        if stage not in columns:
            continue
        peak = columns[stage].scaled_peak(name)
        if peak:
            return format_named(columns[stage].trace.dtype).headroom_bits(peak)
    return None


def _kind(name: str, module: str | None, findings: Sequence[Finding]) -> Kind | None:
    """The kind of the most serious finding that names the parameter or its module; notes do not count."""
    for finding in findings:
        if finding.severity is Severity.NOTE:
            continue
        if name == finding.parameter or name in finding.parameters:
            return finding.kind
        if finding.module and module and (module == finding.module or module.startswith(finding.module + ".")):
            return finding.kind
    return None


def _at(step: StepRecord, position: int | None) -> float | None:
    if position is None or position >= len(step.grad_abs_max):
        return None
    return step.grad_abs_max[position]


def _unscaled(step: StepRecord, value: float | None) -> float | None:
    return value / step.loss_scale if value is not None and step.loss_scale else value


def _peak(values: Iterable[float | None]) -> float | None:
    finite = [v for v in values if v is not None and math.isfinite(v)]
    return max(finite) if finite else None


def _largest_by_name(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for name, value in pairs:
        largest[name] = max(value, largest.get(name, 0.0))
    return largest
