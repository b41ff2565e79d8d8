"""Underflow: what is 0 here and not 0 in the re-check."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanprobe.diagnosis.chain import build_chain
from nanprobe.diagnosis.compose import at_op, batch_rows, compose
from nanprobe.diagnosis.names import common_module
from nanprobe.diagnosis.origins import Birth, Origin, origin_op
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.diagnosis.wording import (
    figure,
    line_of,
    number_format,
    op_label,
    percent,
    place_label,
    scale_figure,
    shadow_peak,
)
from nanprobe.diagnosis.wrong_values import lost_guard, zero_origins
from nanprobe.findings import Finding, Severity
from nanprobe.formats import FP32, FloatFormat, format_named
from nanprobe.records import GradRecord, OpRecord, Phase

# Source: DESIGN section 6: an error only when at least half of the gradient's norm is lost.
LOST_NORM_ERROR = 0.5
# Below this share a flushed gradient is not worth a line: our choice.
LOST_NORM_NOTE = 0.05
# Functions whose result comes as near to 0 as it likes.
_SATURATING = frozenset({"softmax", "sigmoid", "exp", "log_softmax", "softplus", "erfc", "special_expit", "exp2"})
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
    # PyTorch's own optimizers have no line but that of their step().
    in_optimizer = op.phase is Phase.UPDATE and scene.record is not None and op.source == scene.record.source
    # A softmax or sigmoid is right to end at 0; the fault is with what takes its logarithm or divides by it.
    place = outcome if base_name(op.op) in _SATURATING else op
    what = f"the constant {figure(guard)}" if guard is not None else f"the result of {op_label(op)}"
    what = f"the optimizer's eps, {figure(guard)}," if in_optimizer and guard is not None else what
    return at_op(
        scene,
        op,
        "NP203",
        phase=place.phase,
        module=place.module,
        source=place.source,
        batch=batch_rows(scene, outcome),
        # The page's first two remedies are for the model's own code, the others for an optimizer's.
        remedies=slice(2, None) if in_optimizer else slice(2),
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
    heavy = flush(scene, LOST_NORM_ERROR)
    if heavy is not None:
        return [_with_chain(scene, heavy, base_severity(scene.trace))]
    if any(_is_finite(g) and g.lost_norm_fraction >= LOST_NORM_ERROR for g in scene.deep.grads):
        return []  # no flush, and no more so for what lost less
    light = flush(scene, LOST_NORM_NOTE)
    return [_with_chain(scene, light, Severity.NOTE)] if light is not None else []


@dataclass(frozen=True, slots=True)
class Flush:
    """Gradients that lost norm to zeros, and the operation behind which most of them are 0."""

    grads: tuple[GradRecord, ...]  # by name
    origin: Origin | None  # None where it is not known

    @property
    def op(self) -> OpRecord | None:
        """The operation that flushed them."""
        return self.origin.op if self.origin is not None else None

    @property
    def peak(self) -> float:
        """The largest magnitude of the re-check where it was lost, loss scale still in it."""
        known = shadow_peak(self.op) if self.op is not None else None
        return known or max(g.stats.shadow_abs_max or 0.0 for g in self.grads)

    @property
    def worst(self) -> GradRecord:
        """The gradient that lost the most."""
        return max(self.grads, key=lambda g: (g.lost_norm_fraction, g.name))


def flush(scene: Scene, least: float) -> Flush | None:
    """The gradients of a step that lost this share of their norm, or more, by being flushed.

    None where there are none, where an overflow left the zeros behind, and where FP32 holds but rounding noise.
    """
    chosen = sorted(
        (g for g in scene.deep.grads if g.lost_norm_fraction >= least and _is_finite(g)), key=lambda g: g.name
    )
    if not chosen:
        return None
    origin = _flush_origin(scene, chosen)
    if origin is not None and (origin.birth is not Birth.ZERO or _is_noise(scene.trail, origin_op(origin))):
        return None
    return Flush(tuple(chosen), origin)


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
    if name in {"sum", "mean"} and peak <= number_format(op).eps * largest:
        return True  # less than the rounding of its terms
    return peak <= NOISE_ULPS * FP32.eps * largest


def _with_chain(scene: Scene, lost: Flush, severity: Severity) -> Finding:
    finding = _flushed(scene, lost, severity)
    return finding if lost.origin is None else replace(finding, chain=build_chain(scene, lost.origin, finding))


def _flushed(scene: Scene, lost: Flush, severity: Severity) -> Finding:
    op, grads, worst, peak = lost.op, lost.grads, lost.worst, lost.peak
    fmt = number_format(op) if op is not None else format_named(scene.trace.dtype)
    names = tuple(g.name for g in grads)
    module = common_module(names)
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
            "wanted_scale": scale_figure(_wanted_scale(scene, peak, fmt)),
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


def needed_scale(scene: Scene, peak: float, fmt: FloatFormat) -> float:
    """The power of two that lifts the largest lost gradient four bits into the normal range, whatever overflows."""
    if peak <= 0.0:
        return 65536.0
    return float(2.0 ** max(1, _bits_up(peak, fmt))) * scene.loss_scale


def _bits_up(peak: float, fmt: FloatFormat) -> int:
    return math.ceil(math.log2(fmt.min_normal / peak)) + 4


def _wanted_scale(scene: Scene, peak: float, fmt: FloatFormat) -> float:
    """The scale a flushed gradient needs, or less where the largest gradient would overflow; a bit is kept for it."""
    if peak <= 0.0:
        return 65536.0
    wanted = _bits_up(peak, fmt)
    highest = math.floor(math.log2(fmt.max / _largest_gradient(scene, fmt))) - 1
    return float(2.0 ** max(1, min(wanted, highest))) * scene.loss_scale


def _largest_gradient(scene: Scene, fmt: FloatFormat) -> float:
    """The largest finite magnitude of the stage's gradients and of what backward makes in `fmt` in this step.

    The step's loss scale is in it.
    """
    backward = (op for op in scene.trail.ops.values() if op.phase is Phase.BACKWARD)
    sizes = [shadow_peak(op) or 0.0 for op in backward if op.outputs and op.outputs[0].dtype == fmt.name]
    for step in scene.trace.steps:
        ratio = scene.loss_scale / scene.scale_of(step)
        named = zip(scene.trace.parameters, step.grad_abs_max, strict=False)
        # Master copies are kept in FP32, and are filled once the scale is out.
        sizes += [g * ratio for p, g in named if g is not None and math.isfinite(g) and p.master_of is None]
    return max(sizes, default=0.0) or math.ulp(0.0)


def _is_finite(grad: GradRecord) -> bool:
    return not (grad.stats.nan_count or grad.stats.inf_count)
