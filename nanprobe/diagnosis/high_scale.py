"""A loss scale that is too high: unscaled, the gradient fits (NP103). Calibration is healthy; a habit is a finding."""

from __future__ import annotations

import math

from nanprobe.diagnosis.compose import at_op, compose
from nanprobe.diagnosis.scaling import Habit, scale_habit
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.wording import figure, number_format, op_label, place_label, scale_figure
from nanprobe.findings import Finding, Severity
from nanprobe.records import OpRecord, Phase, StageTrace


def explain(scene: Scene, op: OpRecord, peak: float, scale: float) -> Finding | None:
    """The finding for a scaled gradient `peak` that left the format; None while the scaler is finding its scale."""
    habit = scale_habit(scene.trace)
    poisoned = scene.poisoned_by_update
    if poisoned is None and not habit.repeated:
        return None
    limit, unscaled = number_format(op).max, peak / scale
    after = f"The step was not skipped, so {poisoned} is not finite after it." if poisoned else habit.sentence()
    return at_op(
        scene,
        op,
        "NP103",
        severity=base_severity(scene.trace) if poisoned else _severity(scene.trace),
        phase=Phase.BACKWARD,
        slots={
            "scale": scale_figure(scale),
            "where": place_label(op),
            "value": figure(peak),
            "unscaled": figure(unscaled),
            # Half of the highest power of two that fits.
            "safe_scale": scale_figure(number_format(op).highest_scale(unscaled) / 2.0),
            "skipped": len(habit.steps),
            "steps": habit.total,
        },
        evidence={"limit": limit, "loss_scale": scale, "unscaled_abs_max": unscaled, **habit.evidence()},
        why=f"Unscaled, the largest gradient of {op_label(op)} is {figure(unscaled)}; times the loss scale of "
        f"{scale_figure(scale)} it is {figure(peak)}, and {op.outputs[0].dtype} ends at {figure(limit)}. {after}",
    )


def unexplained_skips(trace: StageTrace, habit: Habit) -> Finding:
    """Repeated skips of which no step could be looked at operation by operation (NP103)."""
    record = next(s for s in trace.steps if s.index == habit.steps[-1])
    named = zip(trace.parameters, record.grad_abs_max, strict=False)
    bad = [info.name for info, gradient in named if gradient is not None and not math.isfinite(gradient)]
    scale = record.loss_scale or 1.0
    return compose(
        trace,
        "NP103",
        severity=_severity(trace),
        step=record.index,
        phase=Phase.BACKWARD,
        parameter=bad[0] if bad else None,
        source=record.source,
        slots={
            "scale": scale_figure(scale),
            "where": bad[0] if bad else "the gradients",
            "value": "Inf",
            "unscaled": "an unknown value",
            "safe_scale": scale_figure(scale / 4.0),
            "skipped": len(habit.steps),
            "steps": habit.total,
        },
        evidence=habit.evidence(),
        why=f"{habit.sentence()} Could not tell which operation overflows.",
        parameters=tuple(bad),
    )


def _severity(trace: StageTrace) -> Severity:
    """Error in the user's own loop; a warning where the scaler is one that nanprobe put in."""
    severity = base_severity(trace)
    return Severity.WARNING if severity is Severity.ERROR and not trace.as_written else severity
