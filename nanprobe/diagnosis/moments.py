"""Optimizer state that overflows in the step looked at: it leaves no NaN, only weights that no longer move (NP105)."""

from __future__ import annotations

import math

from nanprobe.diagnosis.compose import at_op
from nanprobe.diagnosis.overflow import writes_weights
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import Lane, bad_count, base_name, is_wrong, shadow_bad_count
from nanprobe.diagnosis.wording import figure, number_format, op_label, shadow_peak
from nanprobe.findings import Finding
from nanprobe.records import ExternalKind, InputRecord, OpRecord, Phase

_FRESH = frozenset({"zeros_like", "zeros", "full_like", "full", "new_zeros"})


def findings(scene: Scene) -> list[Finding]:
    """The finding for the first state that leaves its format in this step; none where the weights broke with it."""
    for op in scene.deep.ops:
        if writes_state(scene, op) and _broken(scene, op) and not writes_weights(scene, op):
            return [_overflowed(scene, op)]
    return []


def writes_state(scene: Scene, op: OpRecord) -> bool:
    """Whether an operation of the update changes the optimizer's own state in place."""
    if op.phase is not Phase.UPDATE or op.node is not None or not _in_place(op):
        return False
    return any(_is_state(scene, op, lane.inputs[0]) for lane in scene.trail.lanes(op) if lane.inputs)


def _is_state(scene: Scene, op: OpRecord, record: InputRecord) -> bool:
    """Whether a tensor is state: read as such, or made in this first step, and since only changed in place."""
    external = scene.trail.external(record)
    if external is not None:
        return external.kind is ExternalKind.OPTIMIZER_STATE
    for writer in scene.trail.writers(op, record):
        if writer.phase is not Phase.UPDATE:
            return False
        if base_name(writer.op) in _FRESH:
            return True
        lanes = [lane for lane in scene.trail.lanes(writer) if lane.inputs and _same_shape(lane, record)]
        if _in_place(writer) and any(_is_state(scene, writer, lane.inputs[0]) for lane in lanes):
            return True
    return False


def _same_shape(lane: Lane, record: InputRecord) -> bool:
    return any(s.shape == record.shape for s in lane.outputs)


def _in_place(op: OpRecord) -> bool:
    parts = op.op.split(".")
    return len(parts) > 1 and parts[1].endswith("_")


def _broken(scene: Scene, op: OpRecord) -> bool:
    """Whether some part of it is not finite here, finite in the re-check, and read only what was right."""
    return any(
        is_wrong(sum(map(bad_count, lane.outputs)), _shadow_bad(lane))
        and not any(scene.trail.value(op, record).bad for record in lane.inputs)
        for lane in scene.trail.lanes(op)
    )


def _shadow_bad(lane: Lane) -> int | None:
    counts = [shadow_bad_count(s) for s in lane.outputs]
    return None if any(c is None for c in counts) else sum(c for c in counts if c is not None)


def _overflowed(scene: Scene, op: OpRecord) -> Finding:
    fmt, peak = number_format(op), shadow_peak(op)
    name = _state_name(scene, op)
    over = fmt.bits_over(peak) if peak and math.isfinite(peak) else 0.0
    return at_op(
        scene,
        op,
        "NP105",
        parameter=name,
        slots={"where": name or "the optimizer's state", "value": figure(peak), "dtype": fmt.name,
               "limit": figure(fmt.max)},
        evidence={"limit": fmt.max, "bits_over": max(0.0, over)},
        why=f"{op_label(op)} of the update makes {name or 'the state of the optimizer'} {figure(peak)} in the FP32 "
        f"re-check; {fmt.name} ends at {figure(fmt.max)}, so it becomes Inf. An update divided by Inf is 0: from here "
        "on these weights do not move.",
    )  # fmt: skip


def _state_name(scene: Scene, op: OpRecord) -> str | None:
    """The state's name, of the part that broke; None for one made in this step."""
    current = op
    for _ in range(len(scene.trail.ops)):
        record = current.inputs[0]
        external = scene.trail.external(record)
        if external is not None:
            return external.name
        writers = scene.trail.writers(current, record)
        if not writers or not writers[0].inputs:
            return None
        current = writers[0]
    return None
