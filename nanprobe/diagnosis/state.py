"""State that outlives a step: optimizer moments and buffers that are no longer finite while every weight still is."""

from __future__ import annotations

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.wording import figure
from nanprobe.findings import Finding
from nanprobe.formats import format_named
from nanprobe.records import ExternalKind, ExternalRecord, OpRecord, Phase


def findings(scene: Scene) -> list[Finding]:
    """The finding for optimizer state that overflowed in a step before: Adam then divides by Inf and stands still."""
    first = scene.trace.steps[0].index if scene.trace.steps else 0
    if scene.step <= first:
        return []
    for external in scene.deep.externals:
        if external.kind is ExternalKind.OPTIMIZER_STATE and external.stats.inf_count and not external.stats.nan_count:
            return [_overflowed(scene, external)]
    return []


def buffer_writers(scene: Scene) -> tuple[int, ...]:
    """Operations that left a buffer non-finite in this step, for the buffers the step's record names."""
    record = scene.record
    names = set(record.nonfinite_buffers) if record is not None else set()
    shapes = {e.index: e.stats.shape for e in scene.deep.externals if e.kind is ExternalKind.BUFFER and e.name in names}
    return tuple(op.index for op in scene.deep.ops if _writes_badly(op, shapes))


def _writes_badly(op: OpRecord, shapes: dict[int, tuple[int, ...]]) -> bool:
    read = {shapes[record.external] for record in op.inputs if record.external in shapes}
    return any((s.nan_count or s.inf_count) and s.shape in read for s in op.outputs)


def _overflowed(scene: Scene, external: ExternalRecord) -> Finding:
    fmt, stats = format_named(external.stats.dtype), external.stats
    name = external.name or "optimizer state"
    record = scene.record
    return compose(
        scene.trace,
        "NP105",
        severity=base_severity(scene.trace),
        step=scene.step,
        phase=Phase.UPDATE,
        parameter=external.name,
        source=external.source or (record.source if record is not None else None),
        slots={"where": name, "value": "Inf", "dtype": fmt.name, "limit": figure(fmt.max)},
        evidence={"inf_count": stats.inf_count, "numel": stats.numel, "dtype": fmt.name, "limit": fmt.max},
        why=f"{stats.inf_count} of {stats.numel} elements of {name} are Inf at step {scene.step}, and they were "
        "finite at the "
        f"start. {fmt.name} ends at {figure(fmt.max)}; an update divided by Inf is 0, so these weights no longer move.",
    )
