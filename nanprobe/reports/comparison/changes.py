"""Two runs beside each other: what is gone, what is new, what changed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.findings import Diagnosis, Finding, LayerRow, Severity, Status
from nanprobe.records import RunRecord, StageName
from nanprobe.reports.comparison.matching import match_findings
from nanprobe.reports.comparison.model import (
    Change,
    Comparison,
    LayerChange,
    LayerFigures,
    Side,
    StageChange,
    StageFigures,
)
from nanprobe.reports.stage_summary import summarize_stages
from nanprobe.reports.terminal.header import show_target

# Below these a layer counts as unchanged: half a bit is a factor of 1.4, less than a gradient differs from one seed to
# the next. Our choice.
CHANGED_BITS, CHANGED_FRACTION = 0.5, 0.01
_BITS_OF_RANGE = 16  # bits of headroom that weigh as much as a whole gradient lost, for the order of the rows


def compare(before: Side, after: Side) -> Comparison:
    """Everything that differs between two runs of `nanprobe diagnose`."""
    missing, new, same = match_findings(before.diagnosis.findings, after.diagnosis.findings)
    looked = _stages_that_ran(after.run)
    stage = choose_stage(before.run, after.run)
    return Comparison(
        before=before,
        after=after,
        change=judge(before.diagnosis, after.diagnosis, same),
        notes=list_notes(before.run, after.run),
        stage=stage,
        stages=_compare_stages(before, after),
        gone=tuple(f for f in missing if f.stage in looked),
        unseen=tuple(f for f in missing if f.stage not in looked),
        new=new,
        same=same,
        layers=_compare_layers(before, after, stage),
    )


def judge(before: Diagnosis, after: Diagnosis, same: Sequence[tuple[Finding, Finding]]) -> Change:
    """The change in a word; one cause is one where the verdicts are a pair of matching findings."""
    if after.status is Status.INCONCLUSIVE:
        return Change.UNKNOWN
    if after.status is Status.HEALTHY:
        return Change.FIXED if before.status is Status.FAILING else Change.HEALTHY
    if before.status is not Status.FAILING:
        return Change.BROKEN
    alike = any(one is before.verdict and other is after.verdict for one, other in same)
    return Change.SAME_CAUSE if alike else Change.OTHER_CAUSE


def list_notes(before: RunRecord, after: RunRecord) -> tuple[str, ...]:
    """What differs in how the two were run, a sentence each."""
    if before.directory == after.directory:
        return ("A and B are one run",)
    rows = [
        ("target", show_target(before.target), show_target(after.target)),
        ("steps a stage", before.steps, after.steps),
        ("seed", before.seed, after.seed),
        ("device", before.device, after.device),
        ("torch", before.torch_version, after.torch_version),
        ("nanprobe", before.nanprobe_version, after.nanprobe_version),
    ]
    notes = [f"{what} differs: {one} in A, {other} in B" for what, one, other in rows if one != other]
    for name, run, other in (("A", before, after), ("B", after, before)):
        if only := [stage.value for stage in StageName if stage in _stages_that_ran(other) - _stages_that_ran(run)]:
            notes.append(f"{' and '.join(only)} took no step in {name}: what the other run shows of it has no match")
    for name, run in (("A", before), ("B", after)):
        notes += [f"{name}: {text}" for text in run.notices if "not finished" in text or "interrupted" in text]
    return tuple(notes)


def _stages_that_ran(run: RunRecord) -> frozenset[StageName]:
    return frozenset(trace.name for trace in run.stages if trace.steps)


def choose_stage(before: RunRecord, after: RunRecord) -> StageName | None:
    """The stage to compare layers in: of those with steps in both, the last that both ran as written, else the last."""
    ran = [{t.name: t for t in run.stages if t.steps} for run in (before, after)]
    common = [name for name in StageName if name in ran[0] and name in ran[1]]
    written = [n for n in common if n is not StageName.FP32 and ran[0][n].as_written and ran[1][n].as_written]
    return (written or common or [None])[-1]


def _compare_stages(before: Side, after: Side) -> tuple[StageChange, ...]:
    one, other = _figure_stages(before), _figure_stages(after)
    return tuple(StageChange(n, one.get(n), other.get(n)) for n in StageName if n in one or n in other)


def _figure_stages(side: Side) -> dict[StageName, StageFigures]:
    findings = side.diagnosis.findings
    return {
        summary.trace.name: StageFigures(
            summary=summary,
            final_loss=next((step.loss for step in reversed(summary.trace.steps) if step.loss is not None), None),
            verdict=next((f for f in findings if f.stage is summary.trace.name and f.severity is Severity.ERROR), None),
        )
        for summary in summarize_stages(side.run.stages, side.diagnosis)
    }


def _compare_layers(before: Side, after: Side, stage: StageName | None) -> tuple[LayerChange, ...]:
    one = {row.name: row for row in before.diagnosis.layers}
    other = {row.name: row for row in after.diagnosis.layers}
    steps = max(before.run.steps, after.run.steps, 1)
    rows = [
        _compare_layer(name, _figure(one.get(name), stage), _figure(other.get(name), stage), steps)
        for name in dict.fromkeys([*one, *other])
    ]
    return tuple(sorted(rows, key=lambda row: -row.size))


def _figure(row: LayerRow | None, stage: StageName | None) -> LayerFigures | None:
    if row is None:
        return None
    name = "" if stage is None else stage.value
    return LayerFigures(
        headroom_bits=row.headroom_bits,
        flushed_fraction=row.flushed_fraction.get(name),
        lost_norm_fraction=row.lost_norm_fraction.get(name),
        nonfinite_steps=row.nonfinite_steps.get(name),
    )


def _compare_layer(name: str, one: LayerFigures | None, other: LayerFigures | None, steps: int) -> LayerChange:
    if one is None or other is None:
        return LayerChange(name, one, other, 0.0, True)
    bits = _difference(one.headroom_bits, other.headroom_bits)
    flushed = _difference(one.flushed_fraction, other.flushed_fraction)
    lost = _difference(one.lost_norm_fraction, other.lost_norm_fraction)
    broken = _difference(one.nonfinite_steps, other.nonfinite_steps)
    changed = bits >= CHANGED_BITS or max(flushed, lost) >= CHANGED_FRACTION or broken >= 1
    return LayerChange(name, one, other, bits / _BITS_OF_RANGE + flushed + lost + broken / steps, changed)


def _difference(one: float | None, other: float | None) -> float:
    """How far apart two figures are; 0 when one was not measured, for then nothing is known of the change."""
    if one is None or other is None or math.isnan(one) or math.isnan(other) or one == other:
        return 0.0
    return min(abs(one - other), 1e3)
