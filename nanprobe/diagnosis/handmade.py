"""A loss scale that the script makes itself: the loss multiplied by a constant, the gradients divided by it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.records import ExternalKind, OpRecord, Phase, RunRecord, StageTrace, StepRecord

# A factor from 8 upwards is taken for a scale even where nothing divides by it (an optimizer like Adam does not mind);
# smaller ones are weights of loss terms. Our choice.
SURELY_A_SCALE = 8.0
_TOLERANCE = 1e-3  # rounding of 1 / factor, and of a factor kept in half
_DIVIDES = frozenset({"div", "true_divide", "divide"})


def handmade_scale(trail: Trail) -> float:
    """The factor of a loss scaled by hand, `(loss * 256).backward()`; 1.0 when there is none to be seen."""
    factors = [f for f in _factors(trail) if f >= SURELY_A_SCALE or _is_taken_out(trail, f)]
    return factors[0] if factors else 1.0


def with_handmade_scale(run: RunRecord) -> RunRecord:
    """The run with the factor of the loss as its loss scale, in stages that are seen to take it out of the gradients.

    Masters are filled with gradients that have it taken out already: theirs are multiplied, so that all are alike.
    """
    return replace(run, stages=tuple(_scaled(trace) for trace in run.stages))


def _scaled(trace: StageTrace) -> StageTrace:
    if any(step.loss_scale is not None for step in trace.steps):
        return trace
    trails = [Trail(deep) for deep in trace.deep_steps]
    if not any(_is_taken_out(trail, f) for trail in trails for f in _factors(trail)):
        return trace
    return replace(trace, steps=tuple(_scaled_step(trace, step) for step in trace.steps))


def _scaled_step(trace: StageTrace, step: StepRecord) -> StepRecord:
    factor = step.loss_factor
    if factor is None:
        return step
    named = zip(trace.parameters, step.grad_abs_max, strict=False)
    return replace(
        step,
        loss_scale=factor,
        loss=None if step.loss is None else step.loss / factor,
        grad_abs_max=tuple(g * factor if g is not None and p.master_of is not None else g for p, g in named),
    )


def _factors(trail: Trail) -> Iterator[float]:
    """What the loss was multiplied by last, before backward."""
    for index in trail.deep.loss_writers:
        op = trail.ops.get(index)
        if op is not None and base_name(op.op) == "mul" and op.outputs and op.outputs[0].numel == 1:
            yield from (f for f in _numbers(trail, op) if f > 0.0)


def _is_taken_out(trail: Trail, factor: float) -> bool:
    """Whether something computed from gradients is divided by the factor, or multiplied by its inverse."""
    if factor == 1.0:
        return False
    for op in trail.deep.ops:
        if op.phase is not Phase.UPDATE or op.node is not None:
            continue
        name = base_name(op.op)
        wanted = factor if name in _DIVIDES else 1.0 / factor if name == "mul" else None
        if wanted is None or not any(abs(n / wanted - 1.0) < _TOLERANCE for n in _numbers(trail, op)):
            continue
        if trail.reads_gradients(op):
            return True
    return False


def _numbers(trail: Trail, op: OpRecord) -> Iterator[float]:
    """The plain numbers an operation computes with: arguments, and constants of one element."""
    yield from op.scalars
    for record in op.inputs:
        external = trail.external(record)
        if external is not None and external.kind is ExternalKind.CONSTANT and external.stats.numel == 1:
            yield external.stats.abs_max
