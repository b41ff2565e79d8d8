"""No loss scale is safe: at the highest scale at which one layer does not overflow, another is flushed to 0 (NP106).

Judged step by step. Every scaled gradient is proportional to the scale, so one step at one scale tells two things of
the others: the highest that the largest gradient of the backward pass can bear, and what a flushed one still loses
there: no less than it lost at a higher scale, and all of it where its largest value would be 0 too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.names import common_module
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import bad_count
from nanprobe.diagnosis.underflow import LOST_NORM_ERROR, Flush, flush, needed_scale
from nanprobe.diagnosis.wording import figure, number_format, op_label, percent, place_label, scale_figure, shadow_peak
from nanprobe.findings import Finding, Severity
from nanprobe.records import OpRecord, Phase


@dataclass(frozen=True, slots=True)
class Conflict:
    """What overflows, what is flushed, and the highest scale without overflow."""

    op: OpRecord  # it has the largest gradient of the step
    peak: float  # that gradient in the re-check, unscaled
    lost: Flush
    fits: float  # the highest power of two at which it does not overflow
    share: float  # of the norm of the worst flushed gradient that is lost there, at least


def findings(scenes: Sequence[Scene]) -> list[Finding]:
    """One finding for the stage: an error, but a warning when the last step that can be judged ran at a safe scale.

    Early in a run gradients may lie further apart than they do later.
    """
    judged = [scene for scene in scenes if _can_be_judged(scene)]
    met = [(scene, conflict) for scene in judged if (conflict := find_conflict(scene)) is not None]
    if not met:
        return []
    severity = base_severity(met[0][0].trace)
    if severity is Severity.ERROR and _went_well(judged[-1]):
        severity = Severity.WARNING
    return [_finding(*met[0], severity)]


def find_conflict(scene: Scene) -> Conflict | None:
    """The conflict in one step; None where some scale may be safe, or where that cannot be told."""
    largest = _largest_gradient(scene)
    lost = flush(scene, LOST_NORM_ERROR)
    if largest is None or lost is None:
        return None
    fmt, peak = number_format(largest), (shadow_peak(largest) or 0.0) / scene.loss_scale
    if peak == 0.0 or fmt.overflows(peak):
        return None  # too large without any scale: another finding
    fits = fmt.highest_scale(peak)
    if scene.loss_scale >= fits:
        return Conflict(largest, peak, lost, fits, lost.worst.lost_norm_fraction)
    if lost.peak * fits / scene.loss_scale <= fmt.flush_threshold:
        return Conflict(largest, peak, lost, fits, 1.0)
    return None  # at least a part of it would be kept there


def _can_be_judged(scene: Scene) -> bool:
    """Whether a step ran its backward pass in low precision and left some gradient finite."""
    return scene.trail.low_precision and any(not bad_count(g.stats) for g in scene.deep.grads)


def _went_well(scene: Scene) -> bool:
    """Whether a step neither overflowed nor lost half of a gradient."""
    return not any(bad_count(g.stats) or g.lost_norm_fraction >= LOST_NORM_ERROR for g in scene.deep.grads)


def _largest_gradient(scene: Scene) -> OpRecord | None:
    """The operation of the backward pass with the largest value; of those in FP32 no loss scale makes any overflow."""
    made = [
        op
        for op in scene.deep.ops
        if op.phase is Phase.BACKWARD and op.outputs and op.outputs[0].dtype in ("float16", "bfloat16")
    ]
    return max(made, key=lambda op: (shadow_peak(op) or 0.0, -op.index), default=None)


def _finding(scene: Scene, conflict: Conflict, severity: Severity) -> Finding:
    op, lost, fmt = conflict.op, conflict.lost, number_format(conflict.op)
    needed = needed_scale(scene, lost.peak, fmt)
    names = tuple(g.name for g in lost.grads)
    other = names[0] if len(names) == 1 else f"{common_module(names) or lost.worst.name} ({len(names)} parameters)"
    return compose(
        scene.trace,
        "NP106",
        severity=severity,
        step=scene.step,
        phase=op.phase,
        op=op.op,
        module=op.module,
        source=op.source,
        parameters=names,
        slots={
            "where": place_label(op),
            "scale": scale_figure(2.0 * conflict.fits),
            "fits": scale_figure(conflict.fits),
            "other": other,
            "lost": percent(conflict.share),
            "wanted_scale": scale_figure(needed),
            "times": figure(2.0 ** max(1, math.ceil(math.log2(needed * conflict.peak / fmt.max)))),
        },
        evidence={
            "dtype": fmt.name,
            "limit": fmt.max,
            "loss_scale": scene.loss_scale,
            "highest_scale": conflict.fits,
            "unscaled_abs_max": conflict.peak,
            "flushed_parameter": lost.worst.name,
            "lost_norm_fraction": lost.worst.lost_norm_fraction,
            "abs_max_where_lost": lost.peak,
            "wanted_scale": needed,
        },
        why=f"At step {scene.step} the largest value of {op_label(op)} is {figure(conflict.peak)} without the loss "
        f"scale, so a scale of {scale_figure(conflict.fits)} is the highest that does not overflow in {fmt.name}. "
        f"{_flushed(scene, conflict, other)} Scaled lower it loses no less, and it needs {scale_figure(needed)}.",
    )


def _flushed(scene: Scene, conflict: Conflict, other: str) -> str:
    lost, fmt, scale = conflict.lost, number_format(conflict.op), scene.loss_scale
    share = percent(lost.worst.lost_norm_fraction)
    said = f"At the scale of this step, {scale_figure(scale)}, {share} of the gradient norm of {other} is flushed to 0"
    if scale >= conflict.fits:
        return f"{said}."
    return (
        f"{said}, and at {scale_figure(conflict.fits)} the largest value where it is lost would still be only "
        f"{figure(lost.peak * conflict.fits / scale)}; up to {figure(fmt.flush_threshold)} is 0 in {fmt.name}."
    )
