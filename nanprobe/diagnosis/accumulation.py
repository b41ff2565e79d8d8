"""Gradients over several backward passes: cleared too seldom, or stepped and rescaled too often."""

from __future__ import annotations

from nanprobe.diagnosis.call_rules import CLEARS, at_call, optimizer_of
from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import times
from nanprobe.findings import Finding, Severity
from nanprobe.records import (
    CallRecord,
    DeepStep,
    ExternalKind,
    ExternalRecord,
    InputRecord,
    OpRecord,
    Phase,
    StageTrace,
    TensorStats,
)


def updated_every_micro_batch(trace: StageTrace) -> Finding | None:
    """NP604: `scaler.update` on micro-batches that do not step."""
    stepped = False
    backwards = 0
    idle: list[CallRecord] = []
    for call in trace.calls:
        if call.name == "backward":
            backwards += 1
        elif call.name == "scaler.step":
            stepped = True
        elif call.name == "scaler.update":
            if not stepped and backwards:
                idle.append(call)
            stepped, backwards = False, 0
    steps = sum(c.name == "scaler.step" for c in trace.calls)
    updates = sum(c.name == "scaler.update" for c in trace.calls)
    # A loop may skip a bad step now and then and still update, as it should; every other update is a habit.
    if not steps or len(idle) < 2 or len(idle) < 0.5 * updates:
        return None
    return at_call(
        trace,
        idle[0],
        "NP604",
        {"call": "scaler.update()", "calls": times(updates), "rounds": f"{steps} optimizer steps"},
        f"scaler.update ran {updates} times for {steps} optimizer steps: the scale may change between the "
        "micro-batches "
        "whose gradients are added up.",
        {"updates": updates, "optimizer_steps": steps},
    )


def stepped_every_micro_batch(trace: StageTrace) -> Finding | None:
    """NP604: an optimizer that steps several times before its gradients are cleared, on gradients that pile up."""
    clears_all = sum(c.name == "module.zero_grad" for c in trace.calls)
    for name in sorted({optimizer_of(c) for c in trace.calls if c.name == "optimizer.step"}):
        steps = [c for c in trace.calls if c.name == "optimizer.step" and optimizer_of(c) == name]
        clears = clears_all + sum(c.name == "optimizer.zero_grad" and optimizer_of(c) == name for c in trace.calls)
        if (
            clears < 2
            or len(steps) < 2 * clears
            or not any(_stale_gradients(d) for d in trace.deep_steps if d.step > 0)
        ):
            continue
        call = "scaler.step(optimizer)" if any(c.name == "scaler.step" for c in trace.calls) else "optimizer.step()"
        return at_call(
            trace,
            steps[0],
            "NP604",
            {"call": call, "calls": times(len(steps)), "rounds": f"{clears} rounds of accumulation"},
            f"{name} stepped {len(steps)} times and its gradients were cleared {clears} times: each step also "
            "applies the "
            "gradients of the micro-batches before it.",
            {"optimizer_steps": len(steps), "gradients_cleared": clears},
        )
    return None


def never_cleared(trace: StageTrace) -> Finding | None:
    """NP616: a backward pass that adds to the gradients of the step before."""
    cleared = any(c.name in CLEARS for c in trace.calls)
    if cleared:
        return None
    for deep in trace.deep_steps:
        piled_up = _stale_gradients(deep) if deep.step > 0 else 0
        if piled_up and 2 * piled_up >= len(deep.grads):
            return _piling_up(trace, deep, piled_up)
    return None


def _piling_up(trace: StageTrace, deep: DeepStep, piled_up: int) -> Finding:
    call = next((c for c in trace.calls if c.name == "backward"), None)
    record = next((s for s in trace.steps if s.index == deep.step), None)
    # Not a matter of the number format: an error in whatever stage it is seen.
    return compose(
        trace,
        "NP616",
        severity=Severity.ERROR,
        slots={},
        step=deep.step,
        phase=Phase.CALLS,
        source=call.source if call else (record.source if record else None),
        evidence={"parameters_piled_up": piled_up, "parameters": len(deep.grads)},
        why=f"At step {deep.step} the backward pass adds to {piled_up} of {len(deep.grads)} gradients that were "
        "left by "
        "earlier steps, and no zero_grad was called in the whole run.",
    )


def _stale_gradients(deep: DeepStep) -> int:
    """Gradients that backward added to although nothing in this step had written or cleared them."""
    ops = {op.index: op for op in deep.ops}
    external = {e.index: e for e in deep.externals}
    count = 0
    for op in deep.ops:
        if op.node == "AccumulateGrad" and base_name(op.op) == "add" and op.outputs:
            count += any(_is_left_over(record, op.outputs[0].shape, ops, external) for record in op.inputs)
    return count


def _is_left_over(
    record: InputRecord, shape: tuple[int, ...], ops: dict[int, OpRecord], external: dict[int, ExternalRecord]
) -> bool:
    """Whether a gradient comes from an earlier step: read as it was, or after its loss scale was renewed."""
    if not record.writers:
        old = external.get(record.external) if record.external is not None else None
        return old is not None and old.stats.shape == shape and _holds_something(old.stats)
    rescaled = [ops[w] for w in record.writers if w in ops and base_name(ops[w].op) in {"mul", "div"}]
    held = [external[r.external] for op in rescaled for r in op.inputs if r.external in external and not r.writers]
    return any(e.kind is ExternalKind.GRADIENT and e.stats.shape == shape and _holds_something(e.stats) for e in held)


def _holds_something(stats: TensorStats) -> bool:
    return stats.abs_max > 0.0 or stats.nan_count + stats.inf_count > 0
