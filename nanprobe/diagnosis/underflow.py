"""Underflow: what is 0 here and not 0 in the re-check, and updates too small to change a weight."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.diagnosis.compose import batch_rows, compose
from nanprobe.diagnosis.names import common_module
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.diagnosis.wording import figure, number_format, op_evidence, op_label, percent, place_label, shadow_peak
from nanprobe.diagnosis.wrong_values import lost_guard, zero_origins
from nanprobe.findings import Finding, Severity
from nanprobe.formats import format_named
from nanprobe.records import GradRecord, OpRecord, Phase, StageName, UpdateRecord

# Source: DESIGN section 6: an error only when at least half of the gradient's norm is lost.
LOST_NORM_ERROR = 0.5
# Below this share a flushed gradient is not worth a line: our choice.
LOST_NORM_NOTE = 0.05
# Source: DESIGN section 6: updates are swallowed when at least nine in ten changed elements stay as they were.
SWALLOWED_ERROR = 0.9
# A sum whose terms are so much larger than its result is rounding noise, and its sign and size mean nothing.
CANCELLATION = 1e4


def explain(scene: Scene, origin: Origin) -> Finding:
    """The finding for a denominator, eps or logarithm's argument that was flushed to 0 and then blew up."""
    op = origin_op(origin)
    if origin.birth is not Birth.ZERO:
        return _cancellation(scene, op)
    fmt = number_format(op)
    guard = lost_guard(op)
    what = f"the constant {figure(guard)}" if guard is not None else f"the result of {op_label(op)}"
    outcome = origin.outcome or op
    consequence = (
        f"{op_label(outcome)} (line {outcome.source.line if outcome.source else '?'}) turns it into Inf or NaN"
    )
    slots = {"what": what, "dtype": fmt.name, "consequence": consequence, "smallest_normal": figure(fmt.min_normal)}
    why = (
        f"{what[0].upper()}{what[1:]} is 0 in {fmt.name}, which keeps nothing at or below "
        f"{figure(fmt.flush_threshold)}; "
        f"in the FP32 re-check it is not 0 and {op_label(outcome)} stays finite."
    )
    return compose(
        scene.trace,
        "NP203",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=op.phase,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=batch_rows(scene, outcome),
        evidence={
            **op_evidence(op),
            "flushed_count": sum(s.flushed_count for s in op.outputs),
            "constant": guard,
            "smallest_subnormal": fmt.min_subnormal,
            "fails_at_line": outcome.source.line if outcome.source else None,
        },
        why=why,
    )


def flushed_gradients(scene: Scene) -> list[Finding]:
    """One finding for all gradients that lost norm in this step: an error when some lost half of it or more."""
    lost = [g for g in scene.deep.grads if g.lost_norm_fraction >= LOST_NORM_NOTE and _finite(g)]
    if not lost:
        return []
    heavy = [g for g in lost if g.lost_norm_fraction >= LOST_NORM_ERROR]
    chosen = sorted(heavy or lost, key=lambda g: g.name)
    origin = _flush_origin(scene, chosen)
    if origin is not None and origin.birth is not Birth.ZERO:
        return []  # zeros that an overflow left behind: that finding is the cause
    severity = base_severity(scene.trace) if heavy else Severity.NOTE
    if origin is not None and is_cancellation(scene.trail, origin_op(origin)):
        severity = Severity.NOTE
    return [_flushed(scene, chosen, origin, severity)]


def dead_gradient_origins(scene: Scene) -> tuple[Origin, ...]:
    """Origins of gradients that are 0 throughout and not 0 in the re-check, when something other than a flush did it."""
    dead = [
        g for g in scene.deep.grads if g.stats.abs_max == 0.0 and _finite(g) and (g.stats.shadow_abs_max or 0.0) > 0.0
    ]
    origins = zero_origins(scene.trail, sorted({w for g in dead for w in g.writers}))
    return tuple(o for o in origins if o.birth is not Birth.ZERO)


def swallowed_updates(scene: Scene) -> list[Finding]:
    """Parameters whose update disappears in rounding; an error when nearly the whole model stands still."""
    moving = [u for u in scene.deep.updates if u.dtype in ("float16", "bfloat16") and _meant(u) > 0.0]
    swallowed = sorted(
        (u for u in moving if _swallowed(u) >= SWALLOWED_ERROR), key=lambda u: (-_weight(scene, u), u.name)
    )
    if not swallowed:
        return []
    meant = sum(_weight(scene, u) for u in moving)
    lost = sum(_weight(scene, u) * _swallowed(u) for u in moving)
    overall = lost / meant
    severity = base_severity(scene.trace) if overall >= SWALLOWED_ERROR else Severity.WARNING
    if base_severity(scene.trace) is Severity.NOTE:
        severity = Severity.NOTE
    return [_standing_still(scene, swallowed, overall, severity)]


def is_cancellation(trail: Trail, op: OpRecord) -> bool:
    """Whether the flushed result is what is left of a sum that cancels: rounding noise, not a gradient."""
    if base_name(op.op) not in {
        "sum",
        "mm",
        "bmm",
        "addmm",
        "mean",
        "convolution_backward",
        "native_layer_norm_backward",
    }:
        return False
    peak = shadow_peak(op) or 0.0
    largest = max((trail.value(op, r).abs_max for r in op.inputs), default=0.0)
    return peak > 0.0 and largest > CANCELLATION * peak and base_name(op.op) in {"sum", "mean"}


def _cancellation(scene: Scene, op: OpRecord) -> Finding:
    fmt = number_format(op)
    slots = {"where": place_label(op), "dtype": fmt.name}
    why = (
        f"{op_label(op)} is NaN in {fmt.name} from inputs that are finite, and finite (at most "
        f"{figure(shadow_peak(op))}) "
        f"in the FP32 re-check: consistent with rounding that pushed an input past the edge of its domain."
    )
    return compose(
        scene.trace,
        "NP206",
        severity=base_severity(scene.trace),
        slots=slots,
        step=scene.step,
        phase=op.phase,
        op=op.op,
        module=op.module,
        source=op.source,
        batch=batch_rows(scene, op),
        evidence=op_evidence(op),
        why=why,
    )


def _flush_origin(scene: Scene, grads: Sequence[GradRecord]) -> Origin | None:
    """The operation behind which most of these gradients are 0: the one that the most of them lead back to."""
    votes: dict[int, list[Origin]] = {}
    for grad in grads:
        for origin in zero_origins(scene.trail, grad.writers):
            votes.setdefault(origin_op(origin).index, []).append(origin)
    if not votes:
        return None
    return max(votes.items(), key=lambda item: (len(item[1]), -item[0]))[1][0]


def _flushed(scene: Scene, grads: Sequence[GradRecord], origin: Origin | None, severity: Severity) -> Finding:
    fmt = format_named(number_format(origin.op).name if origin and origin.op else scene.trace.dtype)
    names = tuple(g.name for g in grads)
    module = common_module(names)
    worst = max(grads, key=lambda g: (g.lost_norm_fraction, g.name))
    peak = max((g.stats.shadow_abs_max or 0.0) for g in grads)
    op = origin.op if origin else None
    at_origin = shadow_peak(op) if op is not None else peak
    where = names[0] if len(names) == 1 else f"{module or 'the model'} ({len(names)} parameters)"
    slots = {
        "lost": percent(worst.lost_norm_fraction),
        "where": where,
        "dtype": fmt.name,
        "value": figure(at_origin),
        "smallest": figure(fmt.min_subnormal),
        "wanted_scale": figure(_wanted_scale(scene, at_origin or peak, fmt.min_normal)),
    }
    flushed = [f"{g.name} {percent(g.flushed_fraction)}" for g in grads[:4]]
    lost_at = f" Most of it is lost in {op_label(op)} at {place_label(op)}." if op is not None else ""
    why = (
        f"Of the elements that are not 0 in the FP32 re-check these are exactly 0 in {fmt.name}: {', '.join(flushed)}"
        f"{' and more' if len(grads) > 4 else ''}. The loss scale is {figure(scene.loss_scale)}.{lost_at}"
    )
    return compose(
        scene.trace,
        "NP201",
        severity=severity,
        slots=slots,
        step=scene.step,
        phase=Phase.BACKWARD,
        op=op.op if op else None,
        module=module,
        parameter=worst.name,
        source=op.source if op else None,
        evidence={
            "lost_norm_fraction": worst.lost_norm_fraction,
            "flushed_fraction": worst.flushed_fraction,
            "recheck_abs_max": peak,
            "abs_max_where_lost": at_origin,
            "smallest_subnormal": fmt.min_subnormal,
            "loss_scale": scene.loss_scale,
            "parameters": len(names),
        },
        why=why,
        parameters=names,
    )


def _standing_still(scene: Scene, updates: Sequence[UpdateRecord], overall: float, severity: Severity) -> Finding:
    worst = updates[0]
    fmt = format_named(worst.dtype)
    record = scene.record
    names = tuple(u.name for u in updates)
    where = names[0] if len(names) == 1 else f"{len(names)} parameters ({names[0]}, ...)"
    largest = worst.update_abs_max
    slots = {
        "swallowed": percent(_swallowed(worst)),
        "where": where,
        "dtype": fmt.name,
        "value": figure(largest),
        "largest_weight": figure(largest * 2.0 / fmt.eps if largest is not None else None),
        "learning_rate": _rates(record.learning_rates if record else ()),
    }
    why = (
        f"{percent(overall)} of all elements that the optimizer step changes in the FP32 re-check are the same "
        "before and "
        f"after it in {fmt.name} (half a step between neighbours is {figure(fmt.eps / 2)} of the weight). No FP32 "
        "master "
        "copy takes the update."
    )
    return compose(
        scene.trace,
        "NP202",
        severity=severity,
        slots=slots,
        step=scene.step,
        phase=Phase.UPDATE,
        module=None,
        parameter=worst.name,
        source=record.source if record else None,
        evidence={
            "swallowed_fraction": _swallowed(worst),
            "swallowed_overall": overall,
            "update_abs_max": largest,
            "parameters": len(names),
            "dtype": fmt.name,
        },
        why=why,
        parameters=names,
    )


def _wanted_scale(scene: Scene, peak: float, min_normal: float) -> float:
    """The power of two that lifts the largest lost gradient well into the normal range."""
    if peak <= 0.0:
        return 65536.0
    exponent = math.ceil(math.log2(min_normal / peak)) + 4
    return float(2.0 ** max(1, exponent)) * max(1.0, scene.loss_scale)


def _meant(update: UpdateRecord) -> float:
    return update.changed_fraction + update.swallowed_fraction


def _swallowed(update: UpdateRecord) -> float:
    return update.swallowed_fraction / _meant(update) if _meant(update) else 0.0


def _weight(scene: Scene, update: UpdateRecord) -> float:
    shape = next((p.shape for p in scene.trace.parameters if p.name == update.name), (1,))
    return math.prod(shape) * _meant(update)


def _finite(grad: GradRecord) -> bool:
    return not (grad.stats.nan_count or grad.stats.inf_count)


def _rates(rates: Sequence[float]) -> str:
    return " / ".join(figure(r) for r in dict.fromkeys(rates)) if rates else "unknown"


def dead_stage(scene: Scene) -> bool:
    """Whether the stage is one whose gradients users get: anything but the raw stage put around."""
    return scene.trace.as_written or scene.trace.name is StageName.AMP
