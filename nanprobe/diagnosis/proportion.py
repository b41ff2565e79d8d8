"""Gradients that are not proportional to the loss scale: the same step in FP32 and under AMP, parameter by parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.wording import figure
from nanprobe.findings import Finding, Severity
from nanprobe.records import DeepStep, OpRecord, Phase, RunRecord, Source, StageName, StageTrace

# How far a ratio may lie from the scale: rounding in FP16 changes a gradient's largest element by far less. Our choice.
_TOLERANCE = 0.25
# Below this scale a wrong factor cannot be told from the difference between the formats.
_MIN_SCALE = 16.0


@dataclass(frozen=True, slots=True)
class _Ratio:
    name: str
    value: float  # unscaled AMP gradient / FP32 gradient, both the largest element at the first step


def scale_in_backward(run: RunRecord) -> Finding | None:
    """NP613: behind one operation every gradient is too large or too small by just the loss scale; None otherwise.

    Both stages start from the same seed, so at the first step their gradients agree up to rounding.
    """
    plain = next((t for t in run.stages if t.name is StageName.FP32 and t.steps), None)
    scaled = next((t for t in run.stages if t.name is StageName.AMP and t.steps and t.as_written), None)
    if plain is None or scaled is None:
        return None
    scale = scaled.steps[0].loss_scale
    if scale is None or scale < _MIN_SCALE or scaled.steps[0].skipped:
        return None
    ratios = _ratios(plain, scaled, scale)
    small = [r for r in ratios if _near(r.value, 1.0 / scale)]
    large = [r for r in ratios if _near(r.value, scale)]
    wrong = max((small, large), key=len)
    if not wrong:
        return None
    return _finding(scaled, scale, wrong, divided=wrong is small)


def _ratios(plain: StageTrace, scaled: StageTrace, scale: float) -> list[_Ratio]:
    reference = {p.name: g for p, g in zip(plain.parameters, plain.steps[0].grad_abs_max, strict=False)}
    found = []
    for info, gradient in zip(scaled.parameters, scaled.steps[0].grad_abs_max, strict=False):
        expected = reference.get(info.name)
        if gradient and expected and math.isfinite(gradient) and math.isfinite(expected):
            found.append(_Ratio(info.name, gradient / scale / expected))
    return found


def _near(value: float, wanted: float) -> bool:
    return abs(value / wanted - 1.0) <= _TOLERANCE


def _finding(trace: StageTrace, scale: float, wrong: list[_Ratio], divided: bool) -> Finding:
    names = tuple(r.name for r in wrong)
    culprit = _culprit(trace.deep_steps, scale)
    source: Source | None = culprit.source if culprit is not None else None
    where = f"line {source.line}" if source is not None else names[-1]
    verb = "divided" if divided else "multiplied"
    return compose(
        trace,
        "NP613",
        severity=Severity.ERROR,
        slots={"where": where},
        step=trace.steps[0].index,
        phase=Phase.BACKWARD,
        op=culprit.op if culprit is not None else None,
        module=culprit.module if culprit is not None else None,
        parameter=names[0],
        source=source,
        parameters=names,
        evidence={
            "loss_scale": scale,
            "factor": wrong[0].value,
            "parameters": len(names),
            "node": culprit.node if culprit is not None else None,
        },
        why=f"At the first step, from the same weights and data, the unscaled gradients of {len(names)} parameters "
        f"({', '.join(names[:3])}) are {figure(wrong[0].value)} times those of the fp32 stage: {verb} by the loss "
        "scale of "
        f"{figure(scale)} on the way back.",
    )


def _culprit(deep_steps: tuple[DeepStep, ...], scale: float) -> OpRecord | None:
    """The backward operation that has the loss scale, or its inverse, among its numbers."""
    for deep in deep_steps:
        for op in deep.ops:
            if op.phase is Phase.BACKWARD and any(_same(s, scale) for s in op.scalars):
                return op
    return None


def _same(number: float, scale: float) -> bool:
    return number > 0.0 and (abs(number / scale - 1.0) < 1e-6 or abs(number * scale - 1.0) < 1e-6)
