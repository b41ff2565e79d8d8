"""Overflow: a result that the format cannot hold and the re-check can."""

from __future__ import annotations

import math
from typing import Any

from nanprobe.diagnosis import high_scale
from nanprobe.diagnosis.compose import at_op, batch_rows
from nanprobe.diagnosis.origins import Origin, origin_op
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import bad_count, is_wrong
from nanprobe.diagnosis.wording import figure, number_format, op_label, place_label, shadow_peak
from nanprobe.findings import Finding
from nanprobe.records import OpRecord, Phase


def explain(scene: Scene, origin: Origin) -> Finding | None:
    """The finding for an operation that overflowed; None for a loss scale that was only looking for its place."""
    op = origin_op(origin)
    if op.phase is Phase.BACKWARD or _is_scaling(scene, op):
        return _gradient(scene, op)
    if op.phase is Phase.UPDATE:
        from_gradients = scene.trail.reads_gradients(op) and not writes_weights(scene, op)
        return beyond_format(scene, op, "NP107" if from_gradients else "NP105")
    is_loss = op.outputs[0].numel == 1 and bool(scene.deep.loss_writers)
    return beyond_format(scene, op, "NP104" if is_loss else "NP101")


def beyond_format(scene: Scene, op: OpRecord, code: str, divided_by: float = 1.0, **details: Any) -> Finding:
    """The finding `code` for an operation whose re-check, divided by the loss scale in it, is beyond the format."""
    fmt = number_format(op)
    peak = (shadow_peak(op) or 0.0) / divided_by
    over = max(0.0, fmt.bits_over(peak)) if peak > 0.0 else 0.0
    # A norm of squares carries the square of the loss scale.
    unscaled = peak / scene.loss_scale**2
    evidence: dict[str, object] = {"limit": fmt.max, "bits_over": over, **details.pop("evidence", {})}
    if divided_by != 1.0:
        evidence["loss_scale"] = divided_by
    return at_op(
        scene,
        op,
        code,
        batch=batch_rows(scene, op),
        slots={
            "where": place_label(op),
            "value": figure(peak) if peak > 0.0 else "Inf",
            "dtype": fmt.name,
            "limit": figure(fmt.max),
            "times": figure(2.0 ** max(1, math.ceil(over))),
            "unscaled": figure(unscaled),
        },
        evidence=evidence,
        why=_sentence(op, peak, over),
        **details,
    )


def writes_weights(scene: Scene, op: OpRecord) -> bool:
    """Whether the update of some parameter was made non-finite by way of this operation."""
    reached = {op.index}
    for later in scene.deep.ops:
        if later.index > op.index and any(w in reached for record in later.inputs for w in record.writers):
            reached.add(later.index)
    return any(
        is_wrong(u.nan_count + u.inf_count, (u.shadow_nan_count or 0) + (u.shadow_inf_count or 0))
        and any(w in reached for w in u.writers)
        for u in scene.deep.updates
    )


def _gradient(scene: Scene, op: OpRecord) -> Finding | None:
    scale, peak = scene.loss_scale, shadow_peak(op) or 0.0
    if scale > 1.0 and not number_format(op).overflows(peak / scale):
        return high_scale.explain(scene, op, peak, scale)
    return beyond_format(scene, op, "NP102", divided_by=scale)


def _is_scaling(scene: Scene, op: OpRecord) -> bool:
    """Whether the operation is the multiplication of the loss by its scale."""
    return op.index in scene.deep.loss_writers and scene.loss_scale > 1.0 and op.outputs[0].numel == 1


def _sentence(op: OpRecord, peak: float, over: float) -> str:
    fmt = number_format(op)
    bad = sum(bad_count(s) for s in op.outputs)
    numel = sum(s.numel for s in op.outputs)
    bits = f"{over:.1f} bits over" if over > 0.0 else "at the limit"
    reached = f", at most {figure(peak)}" if peak > 0.0 else ""
    return (
        f"{op_label(op)} gives {bad} of {numel} elements that are not finite in {fmt.name}; the same operation on the "
        f"same numbers in FP32 is finite{reached}. {fmt.name} ends at {figure(fmt.max)}: {bits}. Every input was still "
        "right, so this is where it began."
    )
