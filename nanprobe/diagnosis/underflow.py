"""Underflow: what is 0 here and not 0 in the re-check."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanprobe.diagnosis.compose import at_op, batch_rows, compose
from nanprobe.diagnosis.names import common_module
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.diagnosis.wording import figure, line_of, number_format, op_label, percent, place_label, shadow_peak
from nanprobe.diagnosis.wrong_values import lost_guard, zero_origins
from nanprobe.findings import Finding, Severity
from nanprobe.formats import FP32, format_named
from nanprobe.records import GradRecord, OpRecord, Phase

# Source: DESIGN section 6: an error only when at least half of the gradient's norm is lost.
LOST_NORM_ERROR = 0.5
# Below this share a flushed gradient is not worth a line: our choice.
LOST_NORM_NOTE = 0.05
# Functions whose result comes as near to 0 as it likes.
_SATURATING = frozenset({"softmax", "sigmoid", "exp", "log_softmax", "softplus", "erfc", "special_expit", "exp2"})
# A sum whose terms are so much larger than its result is rounding noise: our choice, beyond FP16's 11 bits.
CANCELLATION = 1e4
# A result within so many rounding steps of FP32 of its terms is rounding noise there too: our choice.
NOISE_ULPS = 64.0
_CANCELLING = frozenset(
    {"sum", "mean", "sub", "add", "rsub", "var", "var_mean", "std", "native_layer_norm", "addmm", "mm"}
)


def explain(scene: Scene, origin: Origin) -> Finding:
    """The finding for a denominator, eps or logarithm's argument that was flushed to 0 and then blew up."""
    op = origin_op(origin)
    if origin.birth is not Birth.ZERO:
        return _rounded_out_of_domain(scene, op)
    fmt, guard, outcome = number_format(op), lost_guard(op), origin.outcome or op
    # A softmax or sigmoid is right to end at 0; the fault is with what takes its logarithm or divides by it.
    place = outcome if base_name(op.op) in _SATURATING else op
    what = f"the constant {figure(guard)}" if guard is not None else f"the result of {op_label(op)}"
    return at_op(
        scene,
        op,
        "NP203",
        phase=place.phase,
        module=place.module,
        source=place.source,
        batch=batch_rows(scene, outcome),
        slots={
            "what": what,
            "dtype": fmt.name,
            "consequence": f"{op_label(outcome)} (line {line_of(outcome.source)}) turns it into Inf or NaN",
            "smallest_normal": figure(fmt.min_normal),
        },
        evidence={
            "flushed_count": sum(s.flushed_count for s in op.outputs),
            "constant": guard,
            "smallest_subnormal": fmt.min_subnormal,
            "fails_at_line": outcome.source.line if outcome.source else None,
        },
        why=f"{what[0].upper()}{what[1:]} is 0 in {fmt.name}, which keeps nothing at or below "
        f"{figure(fmt.flush_threshold)}; in the FP32 re-check it is not 0 and {op_label(outcome)} stays finite.",
    )


def flushed_gradients(scene: Scene) -> list[Finding]:
    """One finding for all gradients that lost norm in this step: an error when some lost half of it or more."""
    lost = [g for g in scene.deep.grads if g.lost_norm_fraction >= LOST_NORM_NOTE and _is_finite(g)]
    if not lost:
        return []
    heavy = [g for g in lost if g.lost_norm_fraction >= LOST_NORM_ERROR]
    chosen = sorted(heavy or lost, key=lambda g: g.name)
    origin = _flush_origin(scene, chosen)
    if origin is not None and origin.birth is not Birth.ZERO:
        return []  # zeros that an overflow left behind: that finding is the cause
    if origin is not None and _is_noise(scene.trail, origin_op(origin)):
        return []
    return [_flushed(scene, chosen, origin, base_severity(scene.trace) if heavy else Severity.NOTE)]


def dead_gradient_origins(scene: Scene) -> tuple[Origin, ...]:
    """Origins of gradients that are 0 throughout, and not in the re-check, when something other than a flush did it."""
    dead = [
        g
        for g in scene.deep.grads
        if g.stats.abs_max == 0.0 and _is_finite(g) and (g.stats.shadow_abs_max or 0.0) > 0.0
    ]
    origins = zero_origins(scene.trail, sorted({w for g in dead for w in g.writers}))
    return tuple(o for o in origins if o.birth is not Birth.ZERO)


def _rounded_out_of_domain(scene: Scene, op: OpRecord) -> Finding:
    fmt = number_format(op)
    return at_op(
        scene,
        op,
        "NP206",
        batch=batch_rows(scene, op),
        slots={"where": place_label(op), "dtype": fmt.name},
        why=f"{op_label(op)} is NaN in {fmt.name} from inputs that are finite, and finite (at most "
        f"{figure(shadow_peak(op))}) in the FP32 re-check: consistent with rounding that pushed an input past the edge "
        "of its domain.",
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


def _is_noise(trail: Trail, op: OpRecord) -> bool:
    """Whether the flushed result is what is left of terms that cancel, as the gradient of a key bias does.

    Then FP32 holds rounding noise there and no gradient, and 0 is the better answer.
    """
    peak = shadow_peak(op) or math.inf
    if number_format(op) is FP32 and not FP32.flushes(peak):
        return True  # FP32 keeps such numbers, so this 0 was not flushed: terms cancel in it
    name = base_name(op.op)
    if name not in _CANCELLING:
        return False
    largest = max((trail.value(op, record).abs_max for record in op.inputs), default=0.0)
    return peak <= NOISE_ULPS * FP32.eps * largest or (name in {"sum", "mean"} and CANCELLATION * peak < largest)


def _flushed(scene: Scene, grads: Sequence[GradRecord], origin: Origin | None, severity: Severity) -> Finding:
    op = origin.op if origin is not None else None
    fmt = number_format(op) if op is not None else format_named(scene.trace.dtype)
    names = tuple(g.name for g in grads)
    module = common_module(names)
    worst = max(grads, key=lambda g: (g.lost_norm_fraction, g.name))
    peak = (shadow_peak(op) if op is not None else None) or max(g.stats.shadow_abs_max or 0.0 for g in grads)
    shares = ", ".join(f"{g.name} {percent(g.flushed_fraction)}" for g in grads[:4]) + (
        " and more" if grads[4:] else ""
    )
    lost_at = f" Most of it is lost in {op_label(op)} at {place_label(op)}." if op is not None else ""
    return compose(
        scene.trace,
        "NP201",
        severity=severity,
        step=scene.step,
        phase=Phase.BACKWARD,
        op=op.op if op is not None else None,
        module=module,
        parameter=worst.name,
        source=op.source if op is not None else None,
        parameters=names,
        slots={
            "lost": percent(worst.lost_norm_fraction),
            "where": names[0] if len(names) == 1 else f"{module or 'the model'} ({len(names)} parameters)",
            "dtype": fmt.name,
            "value": figure(peak),
            "smallest": figure(fmt.min_subnormal),
            "wanted_scale": figure(_wanted_scale(scene, peak, fmt.min_normal)),
        },
        evidence={
            "lost_norm_fraction": worst.lost_norm_fraction,
            "flushed_fraction": worst.flushed_fraction,
            "recheck_abs_max": max(g.stats.shadow_abs_max or 0.0 for g in grads),
            "abs_max_where_lost": peak,
            "smallest_subnormal": fmt.min_subnormal,
            "loss_scale": scene.loss_scale,
            "parameters": len(names),
        },
        why=f"Of the elements that are not 0 in the FP32 re-check these are exactly 0 in {fmt.name}: {shares}. The "
        "loss "
        f"scale is {figure(scene.loss_scale)}.{lost_at}",
    )


def _wanted_scale(scene: Scene, peak: float, min_normal: float) -> float:
    """The power of two that lifts the largest lost gradient four bits into the normal range."""
    if peak <= 0.0:
        return 65536.0
    exponent = math.ceil(math.log2(min_normal / peak)) + 4
    return float(2.0 ** max(1, exponent)) * max(1.0, scene.loss_scale)


def _is_finite(grad: GradRecord) -> bool:
    return not (grad.stats.nan_count or grad.stats.inf_count)
