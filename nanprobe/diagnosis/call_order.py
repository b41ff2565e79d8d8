"""AMP's calls in the wrong order: one small rule each, over the calls of a stage as they happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.scene import base_severity
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import figure
from nanprobe.findings import Finding, Severity
from nanprobe.records import CallRecord, DeepStep, Phase, StageTrace, TensorStats

_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_"})


@dataclass(frozen=True, slots=True)
class _State:
    """What is true before a call."""

    scaled: bool = False  # gradients of a scaled loss exist
    pending: bool = False  # a loss was scaled, backward has not run yet
    unscaled: frozenset[str] = field(default_factory=frozenset)  # optimizers whose gradients were unscaled
    stepping: str | None = None  # optimizer that scaler.step is stepping now


def findings(trace: StageTrace) -> list[Finding]:
    """Every rule that the calls of the stage break, each with its first breach."""
    rules: tuple[Callable[[StageTrace], Finding | None], ...] = (
        clipped_before_unscale,
        stepped_on_scaled_gradients,
        never_updated,
        updated_every_micro_batch,
        stepped_every_micro_batch,
        clipped_other_optimizer,
        stepped_inside_autocast,
        never_cleared,
    )
    found = [rule(trace) for rule in rules]
    return [f for f in found if f is not None]


def clipped_before_unscale(trace: StageTrace) -> Finding | None:
    """NP601: a clip of gradients that still carry the loss scale."""
    breaches = [c for state, c in _walk(trace) if c.name in _CLIPS and state.scaled and not state.unscaled]
    if not breaches:
        return None
    call = breaches[0]
    scale = _scale_at(trace, call.step)
    if scale is None or scale <= 1.0 or _unscaled_by_hand(trace):
        return None
    limit = call.details.get("limit")
    norm = call.details.get("norm")
    seen = f" It measured a norm of {figure(norm)} against a limit of {limit}." if isinstance(norm, float) else ""
    return _finding(
        trace,
        call,
        "NP601",
        {"scale": figure(scale)},
        f"{call.name} ran in {len(breaches)} places of {len(trace.steps)} steps before unscale_, while the "
        "gradients were "
        f"multiplied by {figure(scale)}.{seen}",
        {"loss_scale": scale, "times_seen": len(breaches), "norm": norm, "limit": limit},
    )


def stepped_on_scaled_gradients(trace: StageTrace) -> Finding | None:
    """NP602: `optimizer.step()` where `scaler.step(optimizer)` belongs."""
    breaches = [
        c
        for state, c in _walk(trace)
        if c.name == "optimizer.step"
        and state.scaled
        and state.stepping is None
        and _optimizer(c) not in state.unscaled
    ]
    if not breaches or _unscaled_by_hand(trace):
        return None
    scale = _scale_at(trace, breaches[0].step)
    if scale is None or scale <= 1.0:
        return None
    return _finding(
        trace,
        breaches[0],
        "NP602",
        {"scale": figure(scale)},
        f"The optimizer stepped {len(breaches)} times on gradients multiplied by {figure(scale)}, outside scaler.step.",
        {"loss_scale": scale, "times_seen": len(breaches)},
    )


def never_updated(trace: StageTrace) -> Finding | None:
    """NP603: `scaler.step` again and again, `scaler.update` never."""
    steps = [c for c in trace.calls if c.name == "scaler.step"]
    if len(steps) < 2 or any(c.name == "scaler.update" for c in trace.calls):
        return None
    return _finding(
        trace,
        steps[0],
        "NP603",
        {"steps": len(steps)},
        f"scaler.step was called {len(steps)} times and scaler.update never, so the loss scale stays where it began.",
        {"scaler_steps": len(steps)},
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
    return _finding(
        trace,
        idle[0],
        "NP604",
        {"call": "scaler.update()", "calls": updates, "rounds": f"{steps} optimizer steps"},
        f"scaler.update ran {updates} times for {steps} optimizer steps: the scale may change between the "
        "micro-batches "
        "whose gradients are added up.",
        {"updates": updates, "optimizer_steps": steps},
    )


def stepped_every_micro_batch(trace: StageTrace) -> Finding | None:
    """NP604: an optimizer that steps several times for each time its gradients are cleared, on gradients that pile up."""
    clears_all = sum(c.name == "module.zero_grad" for c in trace.calls)
    for name in sorted({_optimizer(c) for c in trace.calls if c.name == "optimizer.step"}):
        steps = [c for c in trace.calls if c.name == "optimizer.step" and _optimizer(c) == name]
        clears = clears_all + sum(c.name == "optimizer.zero_grad" and _optimizer(c) == name for c in trace.calls)
        if (
            clears < 2
            or len(steps) < 2 * clears
            or not any(_stale_gradients(d) for d in trace.deep_steps if d.step > 0)
        ):
            continue
        call = "scaler.step(optimizer)" if any(c.name == "scaler.step" for c in trace.calls) else "optimizer.step()"
        return _finding(
            trace,
            steps[0],
            "NP604",
            {"call": call, "calls": len(steps), "rounds": f"{clears} rounds of accumulation"},
            f"{name} stepped {len(steps)} times and its gradients were cleared {clears} times: each step also "
            "applies the "
            "gradients of the micro-batches before it.",
            {"optimizer_steps": len(steps), "gradients_cleared": clears},
        )
    return None


def clipped_other_optimizer(trace: StageTrace) -> Finding | None:
    """NP615: with several optimizers, a clip of the gradients of one that was not unscaled."""
    for state, call in _walk(trace):
        owner = call.details.get("optimizer")
        if call.name not in _CLIPS or not isinstance(owner, str) or not state.scaled:
            continue
        if state.unscaled and owner not in state.unscaled:
            return _finding(
                trace,
                call,
                "NP615",
                {"optimizer": owner},
                f"{call.name} cuts gradients of {owner}, which still carry the loss scale; only those of "
                f"{', '.join(sorted(state.unscaled))} were unscaled.",
                {"unscaled": sorted(state.unscaled), "clipped": owner},
            )
    return None


def stepped_inside_autocast(trace: StageTrace) -> Finding | None:
    """NP606: an autocast context that outlives an optimizer step (error), or a backward pass in one (warning)."""
    spans = _autocast_spans(trace)
    for entered, inside in spans:
        steps = [c for c in inside if c.name == "optimizer.step"]
        if len(steps) >= 2:
            return _finding(
                trace,
                entered,
                "NP606",
                {"what": "the optimizer step"},
                f"{len(steps)} optimizer steps ran inside one autocast context: it keeps casting the weights it "
                "saw first.",
                {"steps_inside": len(steps)},
            )
    backwards = [c for c in trace.calls if c.name == "backward" and c.details.get("autocast") is True]
    if not backwards or not trace.as_written:
        return None
    found = _finding(
        trace,
        backwards[0],
        "NP606",
        {"what": "the backward pass"},
        f"{len(backwards)} backward passes ran inside autocast, which PyTorch advises against.",
        {"times_seen": len(backwards)},
    )
    return replace(found, severity=Severity.NOTE)


def never_cleared(trace: StageTrace) -> Finding | None:
    """NP616: a backward pass that adds to the gradients of the step before."""
    cleared = any(c.name in ("optimizer.zero_grad", "module.zero_grad") for c in trace.calls)
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
    external = {e.index: e for e in deep.externals}
    count = 0
    for op in deep.ops:
        if op.node != "AccumulateGrad" or base_name(op.op) != "add" or not op.outputs:
            continue
        old = [external[r.external] for r in op.inputs if r.external in external and not r.writers]
        count += any(e.stats.shape == op.outputs[0].shape and _holds_something(e.stats) for e in old)
    return count


def _holds_something(stats: TensorStats) -> bool:
    return stats.abs_max > 0.0 or stats.nan_count + stats.inf_count > 0


def _walk(trace: StageTrace) -> Iterator[tuple[_State, CallRecord]]:
    """Each call with what was true before it."""
    state = _State()
    for call in trace.calls:
        if state.stepping is not None and call.name not in ("scaler.unscale_", "optimizer.step", "backward"):
            state = replace(state, stepping=None)
        yield state, call
        state = _after(state, call)


def _after(state: _State, call: CallRecord) -> _State:
    if call.name == "scaler.scale":
        return replace(state, pending=True)
    if call.name == "backward":
        return replace(state, scaled=state.scaled or state.pending, pending=False)
    if call.name == "scaler.unscale_":
        return replace(state, unscaled=state.unscaled | {_optimizer(call)})
    if call.name == "scaler.step":
        return replace(state, stepping=_optimizer(call))
    if call.name == "optimizer.step":
        return replace(state, stepping=None)
    if call.name == "scaler.update":
        return _State()
    if call.name in ("optimizer.zero_grad", "module.zero_grad"):
        return replace(state, scaled=False, unscaled=frozenset())
    return state


def _autocast_spans(trace: StageTrace) -> list[tuple[CallRecord, list[CallRecord]]]:
    spans: list[tuple[CallRecord, list[CallRecord]]] = []
    open_spans: list[tuple[CallRecord, list[CallRecord]]] = []
    for call in trace.calls:
        if call.name == "autocast.enter":
            open_spans.append((call, []))
            spans.append(open_spans[-1])
        elif call.name == "autocast.exit":
            if open_spans:
                open_spans.pop()
        else:
            for _, inside in open_spans:
                inside.append(call)
    return spans


def _unscaled_by_hand(trace: StageTrace) -> bool:
    """Whether a deep step shows gradients divided by the loss scale between backward and the step."""
    for deep in trace.deep_steps:
        scale = deep.loss_scale
        if not scale or scale <= 1.0:
            continue
        for op in deep.ops:
            if op.phase is not Phase.UPDATE or base_name(op.op) not in {"mul", "div"}:
                continue
            factors = [s for s in op.scalars if s > 0.0]
            if any(abs(f * scale - 1.0) < 1e-3 or abs(f / scale - 1.0) < 1e-3 for f in factors):
                return True
    return False


def _scale_at(trace: StageTrace, step: int) -> float | None:
    scales = [s.loss_scale for s in trace.steps if s.index >= step and s.loss_scale is not None]
    return scales[0] if scales else None


def _optimizer(call: CallRecord) -> str:
    return str(call.details.get("optimizer"))


def _finding(
    trace: StageTrace, call: CallRecord, code: str, slots: dict[str, object], why: str, evidence: dict[str, object]
) -> Finding:
    return compose(
        trace,
        code,
        severity=base_severity(trace),
        slots=slots,
        step=call.step,
        phase=Phase.CALLS,
        source=call.source,
        evidence=evidence,
        why=why,
    )
