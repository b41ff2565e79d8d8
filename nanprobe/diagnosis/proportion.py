"""Gradients that are not proportional to the loss scale (NP613), or of a loss that was never scaled (NP619).

Seen in two ways: a custom autograd function whose backward computes with the scale itself, and parameters whose
unscaled gradient differs from that of the fp32 stage, at the same first step, by just the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.noise import noisy_gradients
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.diagnosis.wording import figure, line_of
from nanprobe.findings import Finding, Severity
from nanprobe.records import (
    CallRecord,
    DeepStep,
    ExternalKind,
    InputRecord,
    OpRecord,
    Phase,
    RunRecord,
    StageName,
    StageTrace,
)

# How far a ratio may lie from the scale: rounding in FP16 changes a gradient's largest element by far less. Our choice.
_TOLERANCE = 0.25
# Below this scale a wrong factor cannot be told from the difference between the formats.
_MIN_SCALE = 16.0


@dataclass(frozen=True, slots=True)
class _Ratio:
    name: str
    value: float  # unscaled AMP gradient / FP32 gradient, both the largest element at the first step


def scale_in_backward(run: RunRecord) -> Finding | None:
    """The finding for a backward function that multiplies or divides by the loss scale; None when there is none."""
    plain = next((t for t in run.stages if t.name is StageName.FP32 and t.steps), None)
    scaled = next((t for t in run.stages if t.name is StageName.AMP and t.steps and t.as_written), None)
    if scaled is None:
        return None
    culprit = _culprit(scaled.deep_steps)
    if culprit is not None:
        return _at_function(scaled, *culprit)
    return _out_of_proportion(plain, scaled) if plain is not None else None


def _out_of_proportion(plain: StageTrace, scaled: StageTrace) -> Finding | None:
    scale = scaled.steps[0].loss_scale
    if scale is None or scale < _MIN_SCALE or scaled.steps[0].skipped:
        return None
    ratios = _ratios(plain, scaled, scale)
    small = [r for r in ratios if _near(r.value, 1.0 / scale)]
    large = [r for r in ratios if _near(r.value, scale)]
    wrong = max((small, large), key=len)
    if not wrong:
        return None
    plain_backward = _unscaled_backward(scaled) if wrong is small else None
    if plain_backward is not None:
        return _never_scaled(scaled, scale, wrong, plain_backward)
    return _behind_something(scaled, scale, wrong, divided=wrong is small)


def _unscaled_backward(trace: StageTrace) -> CallRecord | None:
    """The first backward of the first step that no `scaler.scale` leads to, with the scaler stepping afterwards."""
    pending, found = False, None
    for call in trace.calls:
        if call.name == "scaler.scale":
            pending = True
        elif call.name == "backward":
            found = found if pending or found is not None else call
            pending = False
        elif call.name == "scaler.step":
            return found
    return None


def _never_scaled(trace: StageTrace, scale: float, wrong: list[_Ratio], call: CallRecord) -> Finding:
    names = tuple(r.name for r in wrong)
    return compose(
        trace,
        "NP619",
        severity=Severity.ERROR,
        step=call.step,
        phase=Phase.CALLS,
        parameter=names[0],
        parameters=names,
        source=call.source,
        slots={"scale": figure(scale)},
        evidence={"loss_scale": scale, "factor": wrong[0].value, "parameters": len(names)},
        why=f"No scaler.scale leads to this backward pass, and scaler.step divides its gradients by {figure(scale)} "
        f"all the same: at the first step, from the same weights and data, those of {len(names)} parameters "
        f"({', '.join(names[:3])}) are {figure(wrong[0].value)} times those of the fp32 stage.",
    )


def _ratios(plain: StageTrace, scaled: StageTrace, scale: float) -> list[_Ratio]:
    """The parameters whose gradient is more than rounding noise: the quotient of two noises may be anything."""
    noise = noisy_gradients(plain)
    gradients = zip(plain.parameters, plain.steps[0].grad_abs_max, strict=False)
    reference = {p.name: g for p, g in gradients if p.name not in noise}
    found = []
    for info, gradient in zip(scaled.parameters, scaled.steps[0].grad_abs_max, strict=False):
        expected = reference.get(info.name)
        if gradient and expected and math.isfinite(gradient) and math.isfinite(expected):
            found.append(_Ratio(info.name, gradient / scale / expected))
    return found


def _near(value: float, wanted: float) -> bool:
    return abs(value / wanted - 1.0) <= _TOLERANCE


def _behind_something(trace: StageTrace, scale: float, wrong: list[_Ratio], divided: bool) -> Finding:
    names = tuple(r.name for r in wrong)
    return compose(
        trace,
        "NP613",
        severity=Severity.ERROR,
        step=trace.steps[0].index,
        phase=Phase.BACKWARD,
        parameter=names[0],
        parameters=names,
        slots={"where": f"what follows {names[-1]}"},
        evidence={"loss_scale": scale, "factor": wrong[0].value, "parameters": len(names)},
        why=f"At the first step, from the same weights and data, the unscaled gradients of {len(names)} parameters "
        f"({', '.join(names[:3])}) are {figure(wrong[0].value)} times those of the fp32 stage: "
        f"{'divided' if divided else 'multiplied'} by the loss scale of {figure(scale)} on the way back.",
    )


def _at_function(trace: StageTrace, step: int, op: OpRecord, scale: float) -> Finding:
    where = f"{op.node} (line {line_of(op.source)})"
    return compose(
        trace,
        "NP613",
        severity=Severity.ERROR,
        step=step,
        phase=Phase.BACKWARD,
        op=op.op,
        module=op.module,
        source=op.source,
        slots={"where": where},
        evidence={"loss_scale": scale, "node": op.node},
        why=f"The backward function of {where} computes with {figure(scale)}, the loss scale of that step. Every "
        "gradient "
        "behind it is wrong by that factor once GradScaler has taken the scale out.",
    )


def _culprit(deep_steps: tuple[DeepStep, ...]) -> tuple[int, OpRecord, float] | None:
    """The first operation of a custom backward function that uses the loss scale and does not take it out again."""
    for deep in deep_steps:
        scale = deep.loss_scale
        if scale is None or scale < _MIN_SCALE:
            continue
        trail = Trail(deep)
        factors = {op.index: _factor(trail, op, scale) for op in deep.ops if _is_custom(op)}
        used = [op for op in deep.ops if factors.get(op.index) is not None]
        # Dividing and multiplying cancel out: such a function works on unscaled gradients, and rightly so.
        if used and sum(_power(op, factors[op.index] or 1.0) for op in used) != 0:
            return deep.step, used[0], scale
    return None


def _is_custom(op: OpRecord) -> bool:
    """Built-in autograd nodes end in a number (MulBackward0), those of Python functions do not."""
    return op.phase is Phase.BACKWARD and op.node is not None and op.node.endswith("Backward")


def _factor(trail: Trail, op: OpRecord, scale: float) -> float | None:
    """The number among what an operation computes with that is the scale, or one over it; None when there is none."""
    if base_name(op.op) not in _PRODUCTS:
        return None
    numbers = (*op.scalars, *(trail.value(op, r).abs_max for r in op.inputs if _is_number(trail, op, r)))
    return next((abs(n) for n in numbers if _same(n, scale)), None)


_PRODUCTS = frozenset({"mul", "div", "true_divide", "addcmul", "addcdiv"})


def _is_number(trail: Trail, op: OpRecord, record: InputRecord) -> bool:
    """A tensor of one number that stands for itself; the gradient of a loss is such a number too, and has the scale in
    it rightly.
    """
    if record.shape not in ((), (1,)):
        return False
    writers = trail.writers(op, record)
    external = trail.external(record)
    if not writers:
        return external is not None and external.kind is ExternalKind.CONSTANT
    return all(base_name(w.op) in {"lift_fresh", "scalar_tensor", "full"} for w in writers)


def _power(op: OpRecord, factor: float) -> int:
    """1 for a product with the scale, -1 for a quotient."""
    sign = 1 if factor > 1.0 else -1
    return -sign if base_name(op.op) in {"div", "true_divide"} else sign


def _same(number: float, scale: float) -> bool:
    size = abs(number)
    return size > 0.0 and (abs(size / scale - 1.0) < 1e-6 or abs(size * scale - 1.0) < 1e-6)
